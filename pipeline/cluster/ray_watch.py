"""The end of this process where a Ray of its own dies: one line that says how to go on, and exit code 3.

Nothing can go on then. Ray itself ends a driver whose raylet or GCS is gone in C++, at its next need of them (at once,
or after a minute), with status 1 and its own state as text: no handler and no ``finally`` of Python runs. So a thread
waits for each of the two, and for Ray's agents, with which the raylet ends; it is first.
"""

from __future__ import annotations

import atexit
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import psutil
import ray

EXIT_RAY_DIED = 3
AGENTS = {
    "dashboard agent": ("ray::DashboardAgent", os.path.join("dashboard", "agent.py")),
    "runtime environment agent": ("ray::RuntimeEnvAgent", os.path.join("agent", "main.py")),
}
"""Name -> title of the process, and the end of its program's path, which it has before it sets the title."""

_closers: list[Callable[[], str]] = []
_ending = threading.Lock()


@contextmanager
def if_ray_dies(close: Callable[[], str]) -> Iterator[None]:
    """Have ``close`` called, in another thread, where Ray dies during the block.

    It closes the records as far as it can, and returns the command that goes on; "" where there is nothing to go on
    with. Of nested blocks, the command of the outermost is shown.
    """
    _closers.append(close)
    try:
        yield
    finally:
        _closers.remove(close)


class RayWatch:
    """A watch over the processes of the Ray that this process started just now, until ``stop`` or its own end."""

    def __init__(self) -> None:
        from ray._private import worker

        node: Any = worker._global_node
        main = {name: node.all_processes[name][0].process.pid for name in ("raylet", "gcs_server")}
        self.processes = {name: psutil.Process(pid) for name, pid in main.items()}
        self.processes |= _agents(self.processes["raylet"])
        self._stopped = False
        atexit.register(self.stop)  # runs before Ray's own, which ends these processes
        for name, process in self.processes.items():
            threading.Thread(target=self._watch, args=(name, process), daemon=True).start()

    def stop(self) -> None:
        """Watch no more: Ray is about to be ended."""
        self._stopped = True

    def _watch(self, name: str, process: psutil.Process) -> None:
        _wait(process)
        if not self._stopped and ray.is_initialized():  # it is not after a ``ray.shutdown`` of somebody else
            self._end(f"Ray's {name} (process {process.pid}) has ended, and Ray with it")

    def _end(self, what: str) -> NoReturn:
        """Say what happened and how to go on, close the records, and end Ray and this process."""
        _ending.acquire()  # for good: of several that end at one instant, the first is named
        for process in self.processes.values():  # first of all, lest Ray's threads here learn of an end from one
            with suppress(psutil.NoSuchProcess):
                process.kill()
        commands = [close() for close in list(_closers)]
        command = next(filter(None, commands), "")
        then = f"the last completed round is kept, go on with: {command}" if command else "start the command again"
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os.write(2, f"{os.linesep if sys.stderr.isatty() else ''}anchorfl: {what}; {then}\n".encode())
        os._exit(EXIT_RAY_DIED)


def _agents(raylet: psutil.Process) -> dict[str, psutil.Process]:
    """Return the agents of a raylet by name."""
    found = {}
    for child in raylet.children():
        with suppress(psutil.NoSuchProcess):  # an idle worker may end at any time
            command = child.cmdline()
            for name, ends in AGENTS.items():
                if any(word.endswith(ends) for word in command[:3]):
                    found[name] = child
    return found


def _wait(process: psutil.Process) -> None:
    """Return once a process has ended; a child of this one is left for its ``Popen`` to reap."""
    if sys.platform != "linux":
        process.wait()
        return
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    ended.poll()
    os.close(handle)
