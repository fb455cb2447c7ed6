"""Processes of tests: a free port, the wait for a server, its end, and code that runs by itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
MAIN = "import sys; from anchorfl.tuning.cli import main; sys.exit(main(sys.argv[1:]))"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for_health(port: int, process: subprocess.Popen, seconds: float = 120) -> None:
    """Wait until the MLflow server of this process answers."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, "the server ended"
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(0.2)
    raise AssertionError(f"no answer within {seconds:g} s")


def end(processes: Iterable[subprocess.Popen]) -> None:
    """End each ``ray start --block``, which ends what it started; then by pid what of it is still there."""
    alive = [process for process in processes if process.poll() is None]
    known = [child for process in alive for child in psutil.Process(process.pid).children(recursive=True)]
    for process in alive:
        process.terminate()
    until = time.monotonic() + 5
    for process in alive:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)
    for left in psutil.wait_procs(known, timeout=2)[1]:
        with suppress(psutil.NoSuchProcess):
            left.kill()


def python(code: str, folder: Path, *words: str, timeout: float = 300, **env: str) -> subprocess.CompletedProcess:
    """Run code in a folder, which also has its cache, with AnchorFL on its path."""
    own = os.environ | {"PYTHONPATH": str(ROOT / "src"), "ANCHORFL_CACHE": str(folder / "cache")} | env
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=own, capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip


def checksum_of(done: subprocess.CompletedProcess) -> str:
    """Return the checksum of the weights that a run printed."""
    found = done.stdout.partition("weights sha256 ")[2][:64]
    assert len(found) == 64, done.stdout + done.stderr
    return found
