"""What outlives a process that ends without a word: one line, and the end of its Ray. No Ray is started here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from anchorfl.pipeline.cluster import last_words
from tests.processes import python

CODE = """
import os, signal, subprocess, sys
from anchorfl.pipeline.cluster.last_words import LastWords
words = LastWords()
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
print(child.pid, words._process.pid, flush=True)
words.tell([["", "anchorfl resume a"]], [])
words.tell([["gone", "anchorfl sweep --resume b"], ["there", "anchorfl resume 'c d'"]], [child.pid])
open("there", "w").close()
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
LINE = "anchorfl: the process ended without a word: it was killed, or its Ray died; "


def ended(pid: int) -> bool:
    """Return whether a process ends within seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("end", [KILLED, "os._exit(1)"])
def test_one_line_and_the_end_of_what_it_started(tmp_path, end):
    """The first command that can go on is named."""
    done = python(CODE + end, tmp_path)
    assert done.returncode in (-signal.SIGKILL, 1)
    assert done.stderr == f"{LINE}the last completed round is kept, go on with: anchorfl resume 'c d'\n"
    assert all(ended(int(pid)) for pid in done.stdout.split())


def test_nothing_to_go_on_with(tmp_path):
    done = python(CODE + f"words.tell([['gone', 'anchorfl resume a']], []); {KILLED}", tmp_path)
    assert done.stderr == f"{LINE}start the command again\n"


def test_a_process_that_ends_well_is_followed_by_nothing(tmp_path):
    done = python(CODE + "words.dismiss()\nwords.tell([['', 'late']], [])", tmp_path)
    child, own = map(int, done.stdout.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert ended(own)
    assert psutil.pid_exists(child)
    os.kill(child, signal.SIGKILL)


def test_it_hears_no_ctrl_c_and_needs_no_package(tmp_path):
    """It is in a session of its own, and there in a few hundredths of a second."""
    same = "os.getpgid(words._process.pid) == os.getpgid(0)"
    done = python(f"{CODE}print({same}); words.dismiss(); child.kill()", tmp_path)
    assert done.stdout.split()[-1] == "False"
    program = [sys.executable, "-I", "-S", "-X", "importtime", last_words.__file__]
    alone = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert "psutil" not in alone.stderr
    assert "anchorfl.pipeline" not in alone.stderr
    assert alone.stderr.endswith(f"{LINE}start the command again\n")
