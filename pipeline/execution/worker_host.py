"""The process that forks a machine's workers: it imports everything once, and a worker is there in milliseconds.

The driver itself cannot fork them: torch's autograd does not survive a fork of a process that has trained, nor do the
threads of MLflow and of notebooks. The host does nothing but fork, so it has neither.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection

MESSAGE = struct.Struct("ii")
FORK, KILL, REAP = range(3)
"""Requests of the driver, as (request, number of the worker). ``FORK`` comes with the descriptors of the worker's
connection and memory; ``REAP`` is answered by (number, wait status)."""
DESCRIPTORS = 5
PR_SET_PDEATHSIG = 1
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""For large buffers on Linux: fewer faults, the same bits (docs/speed.md)."""


class WorkerHost:
    """The driver's side: starts the host, and asks it for workers."""

    _shared: WorkerHost | None = None

    def __init__(self) -> None:
        """Start the process; it need not be waited for."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            # a session of its own: Ctrl-C is for the driver alone
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import main; main({theirs.fileno()})"],
                pass_fds=[theirs.fileno()], start_new_session=True,
                env=HUGE_PAGES | os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )  # fmt: skip
        self._count = 0
        self._lock = threading.Lock()  # runs of several threads share the host

    @classmethod
    def of_process(cls) -> WorkerHost:
        """Return the host of this process, which is started where there is none that lives."""
        if cls._shared is None or cls._shared._process.poll() is not None:
            cls._shared = cls()
            atexit.register(cls._shared.close)
        return cls._shared

    def fork(self, memory: Sequence[int]) -> tuple[int, Connection]:
        """Ask for a worker with this shared memory (descriptors); return its number, and the connection to it.

        OSError where the host is gone.
        """
        mine, theirs = socket.socketpair()
        with mine, theirs, self._lock:
            self._count = worker = self._count + 1
            socket.send_fds(self._socket, [MESSAGE.pack(FORK, worker)], [theirs.fileno(), *memory])
            return worker, Connection(mine.detach())

    @classmethod
    def forked(cls, memory: Sequence[int]) -> tuple[WorkerHost, int, Connection]:
        """Return the host of this process and what its ``fork`` does; of a new host where it is gone, and nobody has
        seen it yet.
        """
        host = cls.of_process()
        try:
            return host, *host.fork(memory)
        except OSError:
            host._process.kill()
            host._process.wait()
        host = cls.of_process()
        return host, *host.fork(memory)

    def kill(self, worker: int) -> None:
        """End a worker, whatever it does."""
        with self._lock:
            self._socket.sendall(MESSAGE.pack(KILL, worker))

    def reap(self, worker: int) -> int:
        """Return the wait status of a worker that has ended. OSError where the host is gone."""
        with self._lock:
            self._socket.sendall(MESSAGE.pack(REAP, worker))
            answer = self._socket.recv(MESSAGE.size, socket.MSG_WAITALL)
        if len(answer) < MESSAGE.size:
            raise ConnectionResetError("the process that starts workers is gone")
        status: int = MESSAGE.unpack(answer)[1]
        return status

    def close(self) -> None:
        """End the host and all its workers."""
        self._socket.close()
        self._process.wait()


def main(descriptor: int) -> None:
    """Fork workers as the driver asks, until it closes the socket or is gone."""
    driver = socket.socket(fileno=descriptor)
    from anchorfl.pipeline.execution.worker import serve  # with torch: what every worker finds imported

    pids = dict[int, int]()
    while True:
        message, descriptors, *_ = socket.recv_fds(driver, MESSAGE.size, DESCRIPTORS)
        if not message:
            break
        request, worker = MESSAGE.unpack(message)
        if request == FORK:
            pid = os.fork()
            if not pid:
                _end_with_parent()
                driver.close()
                serve(*descriptors)
                os._exit(0)
            pids[worker] = pid
            for number in descriptors:
                os.close(number)
        elif request == KILL and worker in pids:
            os.kill(pids[worker], signal.SIGKILL)
        elif request == REAP:
            driver.sendall(MESSAGE.pack(worker, os.waitpid(pids.pop(worker), 0)[1]))
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)  # nobody else has reaped them, so these numbers are theirs


def _end_with_parent() -> None:
    """Have the system end this process when the host ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
