"""A process that outlives this one. Where this one ends without a word, it says how to go on, and ends its Ray.

Nothing of Python runs where SIGKILL comes, as from a memory cgroup, or where Ray's C++ ends a driver whose raylet or
GCS is gone before ``ray_watch`` has seen it. The processes of a Ray of our own then wait for their GCS, for a minute.

This file is also the program of that process, which needs nothing but Python: it reads what it may have to say and to
end from a pipe, and acts when the pipe closes before a ``null``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

Command = tuple[str, str]
"""File or folder without which there is nothing to go on with ("": needs none), and the command that goes on."""


def how_to_go_on(commands: Iterable[Command]) -> str:
    """Return the end of a line: the first command that can go on, else that the command is to be started again."""
    command = next((command for begun, command in commands if not begun or os.path.exists(begun)), "")
    return f"the last completed round is kept, go on with: {command}" if command else "start the command again"


class LastWords:
    """The process, from now until ``dismiss``."""

    def __init__(self) -> None:
        program = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        # a session of its own: Ctrl-C is not for it
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def tell(self, commands: Sequence[Command], processes: Iterable[int]) -> None:
        """Say what to say and which processes to end, in place of what was said before. processes: their ids."""
        self._write({"commands": list(commands), "processes": sorted(processes)})

    def dismiss(self) -> None:
        """End it: nothing is to be said any more."""
        self._write(None)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def _write(self, content: object) -> None:
        with suppress(OSError, ValueError):  # somebody ended it, or it was dismissed
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(content).encode() + b"\n")
                self._process.stdin.flush()


def main() -> None:
    """Wait for the end of the process that writes to standard input."""
    latest: Any = {"commands": [], "processes": []}
    handles = dict[int, int]()
    for line in sys.stdin:
        latest = json.loads(line)
        if latest is None:
            return
        for process in latest["processes"] if sys.platform == "linux" else []:
            with suppress(ProcessLookupError):  # a handle cannot come to mean another process, as a number can
                handles.setdefault(process, os.pidfd_open(process))
    for handle in handles.values():
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    what = "the process ended without a word: it was killed, or its Ray died"
    with suppress(OSError):
        os.write(2, f"anchorfl: {what}; {how_to_go_on(latest['commands'])}\n".encode())


if __name__ == "__main__":
    main()
