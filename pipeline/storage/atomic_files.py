"""Files that are there whole or not at all, whatever kills the process or the machine."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anchorfl.tasks.files.folders import sync_folder
from anchorfl.tasks.files.json_schema import parsed
from anchorfl.tasks.files.regular_files import read_text_bytes

SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Where somebody else has put a link or a pipe in a draft's place, opening it is an OSError."""
_one_at_a_time = threading.Lock()
"""Two threads may write one file: a run that ends, and the watch over its Ray."""


def write_json(path: Path, content: object) -> None:
    """Replace a JSON file so that a reader, or a kill, meets the old or the new one and never half of one."""
    write_atomically(path, json.dumps(content, indent=1).encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file; {} where there is no file. Raise InputError where it is not a JSON object."""
    try:
        content: dict[str, Any] = parsed(read_text_bytes(path), dict[str, Any], path, "restore it from a copy")
    except FileNotFoundError:
        return {}
    return content


def write_csv(path: Path, rows: Iterable[Iterable[object]], line_end: str = "\r\n") -> None:
    """Replace a CSV file as ``write_json`` does a JSON file."""
    text = io.StringIO()
    csv.writer(text, lineterminator=line_end).writerows(rows)
    write_atomically(path, text.getvalue().encode())


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write to a temporary name, sync, rename over ``path``, sync the folder. mode: of the file, less the umask."""
    write_synced(path, data, mode)
    sync_folder(path.parent)


def write_synced(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write as ``write_atomically`` does, but for the name in the folder, which ``sync_folder`` makes last: once for
    several files.
    """
    draft = path.with_name(f".{path.name}.tmp")
    with _one_at_a_time, open(draft, "wb", opener=lambda name, flags: os.open(name, flags | SAFELY, mode)) as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
        draft.replace(path)
