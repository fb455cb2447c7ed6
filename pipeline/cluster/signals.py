"""The handler by which SIGTERM ends a command as Ctrl-C does.

It is what schedulers, containers and ``ray job stop`` send before they take the machine: a run then keeps its last
completed round, closes its records as KILLED, and says how to go on. Only the console script asks for that; a program
that imports the packages keeps its own handlers.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_asked: list[bool] = []
_received: list[bool] = []


def as_ctrl_c() -> None:
    """Let SIGTERM interrupt from now on; a second one ends the process at once."""
    _asked.append(True)
    renew()


def renew() -> None:
    """Set the handler again, where ``as_ctrl_c`` was asked for.

    Ray, as it starts, puts in its own, which prints the stack and aborts.
    """
    if _asked and not _received and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def received() -> bool:
    """Return whether a SIGTERM interrupted this process."""
    return bool(_received)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ray Tune has a handler of its own while it searches; in a shell's background there is none.
    if callable(signal.getsignal(signal.SIGINT)):
        signal.raise_signal(signal.SIGINT)
    else:
        raise KeyboardInterrupt
