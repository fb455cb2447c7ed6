"""Large JSON files, read so that only what a reader keeps of them stays in memory."""

from __future__ import annotations

import gzip
import json
import mmap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.decompression import check_growth
from anchorfl.tasks.files.json_schema import LARGEST

CHUNK = 1 << 20
"""Bytes of a gzip file that are unpacked at a time."""


def parsed(path: Path, keep: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the content of a JSON file, plain or gzip. ``keep`` is given every object as soon as it is read, the inner
    ones first and with what it made of their own inner ones, and gives what stands in its place: so the peak is the
    text and what is kept, never the tree of a file of gigabytes.

    Raises InputError with file, line and column where it is no JSON, or the gzip stream is damaged.
    """
    try:
        return json.loads(_text(path), object_hook=keep)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: column {error.colno} is no JSON ({error.msg}); get the file again"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: the gzip file is damaged or cut short ({error}); get it again") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start + 1} is no UTF-8; get the file again") from error
    except RecursionError as error:
        raise InputError(f"{path}: brackets within brackets within brackets; get the file again") from error
    except ValueError as error:
        raise InputError(f"{path}: a number in it cannot be read ({error}); get the file again") from error


def listed(content: Any, key: str, path: Path) -> list[Any]:
    """Return the list under a key of a JSON object. Raises InputError where there is none."""
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, list):
        raise InputError(f"{path}: no list {key!r} in the file; get it again")
    return value


def whole(value: Any) -> int:
    """Return the value if it is a whole number from 0, else -1."""
    return value if type(value) is int and 0 <= value < LARGEST else -1


def _text(path: Path) -> str:
    """Return the whole text; a plain file is mapped, so that its bytes do not stand beside it in memory."""
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as stream:
            parts, size = list[bytes](), 0
            while data := stream.read(CHUNK):
                parts.append(data)
                size += len(data)
                check_growth(path, size)
            return b"".join(parts).decode("utf-8")
    with path.open("rb") as stream:
        if not path.stat().st_size:
            return ""
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return str(view, "utf-8")
