"""Faults of a client's training, as exceptions and by kind."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from anchorfl.tasks.errors import first_line

FaultKind = Literal["exception", "crash", "deadline", "memory", "rejected"]
"""The client raised; its process died; it did not answer in time; it ran out of memory; its update cannot be merged."""

LIBRARIES = frozenset(
    {"anchorfl", "mlflow", "numpy", "pyarrow", "ray", "scipy", "sklearn", "torch", *sys.stdlib_module_names}
)
"""Packages whose lines do not say where a plug-in went wrong."""
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages. A plug-in may be in one as well, beside the libraries that it calls."""


class UpdateError(RuntimeError):
    """A client's update cannot be merged: empty, of the wrong shape or type, or not finite."""


class RejectedError(RuntimeError):
    """The server refuses updates, and has merged none. ``reasons``: client -> one line; ``again``: clients whose
    updates are lost with them, through no fault of theirs.
    """

    def __init__(self, reasons: Mapping[int, str], again: Sequence[int] = ()) -> None:
        super().__init__("; ".join(f"client {client}: {reason}" for client, reason in reasons.items()))
        self.reasons, self.again = dict(reasons), tuple(again)

    def __reduce__(self) -> tuple[type[RejectedError], tuple[dict[int, str], tuple[int, ...]]]:
        return type(self), (self.reasons, self.again)  # it travels from the server actor to the driver


class QuorumError(RuntimeError):
    """Too few clients answered to go on, or to score their models; the last completed round is on the disk."""


class LostError(RuntimeError):
    """The server, or an object that only a lost node had, is gone, or a node has no room for one; the last completed
    round is on the disk.
    """


def fault_line(error: BaseException) -> str:
    """Return an exception as one line; where it passed through a plug-in also the plug-in's innermost line:
    ``ValueError: no rows (mine.py:12)``.
    """
    line = first_line(error)
    places = [
        (Path(frame.f_code.co_filename), number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in LIBRARIES
    ]
    if not places:
        return line
    path, number = ([place for place in places if INSTALLED.isdisjoint(place[0].parts)] or places)[-1]
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{line} ({shown}:{number})"


def fault_kind(error: BaseException) -> FaultKind:
    """Return the kind of fault that an exception of a client is."""
    if isinstance(error, UpdateError):
        return "rejected"
    torch = sys.modules.get("torch")  # imported where it can be what failed; the command line does without
    out_of_memory = isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError))
    return "memory" if out_of_memory else "exception"
