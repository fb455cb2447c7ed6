"""The end of this process where a Ray of its own dies: one line that says how to go on, and exit code 3.

Nothing can go on then. Ray itself ends a driver whose raylet or GCS is gone in C++, at its next need of them (at once,
or after a minute), with status 1 and its own state as text: no handler and no ``finally`` of Python runs. So a thread
waits for each of the two, and for Ray's agents, with which the raylet ends; it is first, nearly always. Where it is
not, ``last_words`` says the line.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil
import ray

from anchorfl.pipeline.cluster.last_words import LastWords, how_to_go_on
from anchorfl.tasks.errors import InputError

EXIT_RAY_DIED = 3
POLL_S = 0.2
"""Seconds between two looks at what Ray has started, while it starts."""
AGENTS = {
    "dashboard agent": ("ray::DashboardAgent", os.path.join("dashboard", "agent.py")),
    "runtime environment agent": ("ray::RuntimeEnvAgent", os.path.join("agent", "main.py")),
}
"""Name -> title of the process, and the end of its program's path, which it has before it sets the title."""


class _Block(NamedTuple):
    """A block that can be gone on with."""

    begun: str
    """File or folder without which there is nothing to go on with; "": needs none."""
    command: str
    close: Callable[[], None] | None


_blocks: list[_Block] = []
_watches: list[RayWatch] = []
"""The one of this process, while there is one."""
_ending = threading.Lock()


@contextmanager
def if_ray_dies(command: str, begun: Path | None = None, close: Callable[[], None] | None = None) -> Iterator[None]:
    """Say, where Ray dies or this process is killed during the block, that ``command`` goes on.

    begun: without this file or folder there is nothing to go on with. close: closes the records as far as it can, in
    another thread; not where the process ends at once. Of nested blocks, the command of the outermost is shown.
    """
    block = _Block("" if begun is None else os.path.abspath(begun), command, close)
    _blocks.append(block)
    _tell()
    try:
        yield
    finally:
        _blocks.remove(block)
        _tell()


def _tell() -> None:
    for watch in _watches:
        watch.tell()


def _commands() -> list[tuple[str, str]]:
    return [(block.begun, block.command) for block in _blocks]


class RayWatch:
    """A watch over this process, from before it starts or joins a Ray until ``end`` or its own end."""

    def __init__(self) -> None:
        self.processes: dict[str, psutil.Process] = {}
        self._of_ray = list[psutil.Process]()
        self._last_words = LastWords()
        self._starting, self._stopped = True, False
        _watches.append(self)
        self.tell()
        atexit.register(self.end)  # runs before Ray's own, which ends its processes
        threading.Thread(target=self._tell_while_ray_starts, daemon=True).start()

    def tell(self) -> None:
        """Pass on what is to be said and ended where this process ends without a word."""
        self._last_words.tell(_commands(), [process.pid for process in self._of_ray])

    def _tell_while_ray_starts(self) -> None:
        while self._starting and not self._stopped:
            found = processes_of_ray()
            if self._starting and found != self._of_ray:
                self._of_ray = found
                self.tell()
            time.sleep(POLL_S)

    def started(self, *, own: bool) -> None:
        """Watch the processes of a Ray that this process has started (``own``), none of one that it has joined."""
        self._starting = False
        if not own:
            return
        from ray._private import worker

        node: Any = worker._global_node
        main = {name: node.all_processes[name][0].process.pid for name in ("raylet", "gcs_server")}
        self.processes = {name: psutil.Process(pid) for name, pid in main.items()}
        self.processes |= _agents(self.processes["raylet"])
        self._of_ray = processes_of_ray()
        self.tell()
        for name, process in self.processes.items():
            threading.Thread(target=self._watch, args=(name, process), daemon=True).start()

    def stop(self) -> None:
        """Watch Ray no more, which is about to be ended: it may still take this process along."""
        self._stopped = True

    def end(self) -> None:
        """Watch no more."""
        self.stop()
        if self in _watches:
            _watches.remove(self)
            self._last_words.dismiss()

    def _watch(self, name: str, process: psutil.Process) -> None:
        _wait(process)
        if not self._stopped and ray.is_initialized():  # it is not after a ``ray.shutdown`` of somebody else
            self._end(f"Ray's {name} (process {process.pid}) has ended, and Ray with it")

    def _end(self, what: str) -> NoReturn:
        """Say what happened and how to go on, close the records, and end Ray and this process."""
        _ending.acquire()  # for good: of several that end at one instant, the first is named
        self._signal(signal.SIGSTOP)  # first of all: Ray's threads here hear nothing of what stands still
        for block in _blocks:
            if block.close is not None:
                with suppress(OSError, InputError):  # a full disk keeps no line back
                    block.close()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os.write(
            2, f"{os.linesep if sys.stderr.isatty() else ''}anchorfl: {what}; {how_to_go_on(_commands())}\n".encode()
        )
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Ray's threads here have words for what follows
        self._last_words.dismiss()
        self._signal(signal.SIGKILL)
        os._exit(EXIT_RAY_DIED)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def processes_of_ray() -> list[psutil.Process]:
    """Return the processes that Ray started for this one, and what these started."""
    found = list[psutil.Process]()
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended
            if child.exe().startswith(os.path.dirname(ray.__file__)):
                found += [child, *child.children(recursive=True)]
    return found


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
