"""Servers in processes of their own: a free port, the wait for an answer, and their end."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterable
from contextlib import suppress

import psutil


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


def checksum_in(shown: str) -> str:
    """Return the checksum of the weights that a run printed."""
    found = shown.partition("weights sha256 ")[2][:64]
    assert len(found) == 64, shown
    return found
