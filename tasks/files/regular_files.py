"""Regular files alone: a pipe gives nothing until somebody writes, and a device never ends."""

from __future__ import annotations

import stat
from pathlib import Path

from anchorfl.tasks.errors import InputError

MAX_BYTES = 1 << 28
"""Bytes of the largest file that is read whole as text."""


def regular(path: Path) -> Path:
    """Return the path. InputError where something else than a regular file is there; nothing is the caller's to say."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return path
    except NotADirectoryError as error:
        raise InputError(f"{path}: {path.parent} is no folder; name a folder that holds {path.name}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or a socket"
        raise InputError(f"{path} is {kind}, where a file is needed")
    return path


def outside(path: Path, folder: Path) -> bool:
    """Return whether a path leads out of a folder, also by a link. OSError, ValueError or RuntimeError where it can be
    no path: too long, a NUL, a circle of links.
    """
    return not path.resolve().is_relative_to(folder.resolve())


def read_text_bytes(path: Path) -> bytes:
    """Return the bytes of a text. InputError where that is no regular file, or one of more than ``MAX_BYTES``."""
    with regular(path).open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} has more than {MAX_BYTES} bytes, and is read whole; restore it from a copy")
    return data
