"""The command that goes on with what was ended early, as a note on the exception that ended it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GO_ON = "go on with: "


@contextmanager
def resumable(*command: str | Path, begun: Path | None = None) -> Iterator[None]:
    """Note on whatever ends the block early which command goes on.

    begun: file or folder without which there is nothing to go on with.
    """
    try:
        yield
    except BaseException as error:
        if begun is None or begun.exists():
            error.add_note(GO_ON + shlex.join(map(str, command)))
        raise


def command_of(error: BaseException) -> str:
    """Return the command that goes on after an error; empty where there is none."""
    notes = getattr(error, "__notes__", [])
    return next((note.removeprefix(GO_ON) for note in notes if note.startswith(GO_ON)), "")
