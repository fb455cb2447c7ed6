"""The files that the records of a folder name: none but its own."""

from __future__ import annotations

from pathlib import Path

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.regular_files import outside


def named_file(folder: Path, name: str, record: object) -> Path:
    """Return the file or folder ``name`` of a folder; it may be missing.

    record: says the name. InputError where the name is absolute, leads out of the folder, also by a link, or is of
    something else than a file or folder, or no name at all.
    """
    path = folder / name
    try:
        leaves = outside(path, folder)
        other = path.exists() and not (path.is_file() or path.is_dir())
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a circle of links
        raise InputError(f"{record} names {name!r}, which can be no file ({error}): take the name out of it") from error
    if leaves:
        raise InputError(f"{record} names {name!r}, which lies outside of {folder}: take the name out of it")
    if other:
        raise InputError(f"{record} names {name!r}, which is no regular file: delete it")
    return path


def named_files(folder: Path, name: str, record: object) -> list[Path]:
    """Return ``name`` and all that lies below it, sorted; [] where it is missing. InputError as ``named_file``."""
    path = named_file(folder, name, record)
    inner = sorted(path.rglob("*")) if path.is_dir() else []
    for below in inner:
        named_file(folder, str(below.relative_to(folder)), record)
    return [path, *inner] if path.exists() else []
