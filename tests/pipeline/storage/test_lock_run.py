"""The lock of a run folder: one process at a time, and none after its death."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from anchorfl.pipeline.storage.run_folder import LOCK, lock_run
from anchorfl.tasks.errors import InputError

ROOT = Path(__file__).parents[3]
HOLD = """
import sys, pathlib
from anchorfl.pipeline.storage.run_folder import lock_run
with lock_run(pathlib.Path(sys.argv[1])):
    (pathlib.Path(sys.argv[1]) / "config.json").write_text("{}")
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds ``tmp_path / "run"``."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_until_the_first_is_killed(other, tmp_path):
    folder = tmp_path / "run"
    text = rf"run is in use by process {other.pid}: wait for it, or give another --output\Z"
    for _ in range(2):  # a refused process takes nothing from the one that holds
        with pytest.raises(InputError, match=text):
            ExitStack().enter_context(lock_run(folder))
    other.kill()
    with lock_run(folder, patience_s=30):
        assert (folder / "config.json").exists()


def test_who_waits_gets_the_folder_once_it_is_free(tmp_path):
    folder, order = tmp_path / "run", []

    def wait():
        with lock_run(folder, patience_s=30):
            order.append("second")

    with lock_run(folder):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.5)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_only_an_empty_folder_goes(tmp_path):
    with lock_run(tmp_path / "empty"):
        pass
    with lock_run(tmp_path / "run"):
        (tmp_path / "run" / "config.json").write_text("{}")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "run",
        f"run/{LOCK}",
        "run/config.json",
    ]


def test_an_error_of_the_work_is_no_lock_that_is_taken(tmp_path):
    from filelock import Timeout

    with pytest.raises(Timeout), lock_run(tmp_path / "run"):
        raise Timeout("another")


def test_no_module_needs_fcntl():
    """Windows has none: an import of it would end every command there."""
    files = [path for folder in ("pipeline", "tasks", "tuning", "models") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    assert [path.name for path in files if "fcntl" in path.read_text(encoding="utf-8")] == []
