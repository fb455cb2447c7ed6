"""Raw files: where they are, how they are opened, and what to say when they are missing or damaged.

``Source.files`` may name variants: ``r8-train-{stemmed|textgcn}.txt`` is one file per variant, by default the first.
"""

from __future__ import annotations

import difflib
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from tasks.contract import InputError, Task, TaskOptions

_VARIANTS = re.compile(r"\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Status:
    """What ``anchorfl data`` shows for one task."""

    found: bool
    """True where every file is there, or none is needed."""
    folder: Path | None
    """Where they are; None if nothing was found or nothing is needed."""
    places: tuple[Path, ...]
    """Every folder that was looked at."""
    missing: tuple[str, ...]
    """Files that are not in ``folder``, or in none of ``places``."""


def find_task(name: str) -> Task:
    """The task of that name. Raises InputError with the nearest name."""
    from tasks import TASKS  # here, because the tasks of this registry import this file

    if name not in TASKS:
        msg = f"[task] name = {name!r} is no task{nearest(name, TASKS)}; there are {', '.join(TASKS)}"
        raise InputError(msg)
    return TASKS[name]()


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the closest known word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def file_names(task: Task, options: TaskOptions) -> tuple[str, ...]:
    """Names of the files that this variant needs. Raises InputError on an unknown variant."""
    chosen = variant(task, options)
    return tuple(_VARIANTS.sub(chosen, name) for name in task.source.files)


def variant(task: Task, options: TaskOptions) -> str:
    """The variant of the raw files: ``options.variant``, else the task's first; empty where it has none."""
    found = (_VARIANTS.search(name) for name in task.source.files)
    known = next((match[1].split("|") for match in found if match), [""])
    if options.variant and options.variant not in known:
        offer = f"it has {', '.join(known)}" if known != [""] else "it has none; leave it empty"
        hint = nearest(options.variant, known)
        msg = f"[task] variant = {options.variant!r} is no variant of {task.name}{hint}: {offer}"
        raise InputError(msg)
    return options.variant or known[0]


def status(task: Task, options: TaskOptions) -> Status:
    """Whether the raw files are there; touches nothing but the file system."""
    names = file_names(task, options)
    if not names:
        return Status(True, None, (), ())
    places = _places(task, options)
    lacking = {place: tuple(name for name in names if _existing(place, name) is None) for place in places}
    best = min(places, key=lambda place: len(lacking[place]), default=None)
    if best is None or len(lacking[best]) == len(names):
        return Status(False, None, places, names)
    return Status(not lacking[best], best, places, lacking[best])


def raw_folder(task: Task, options: TaskOptions) -> Path | None:
    """Folder with all raw files: ``options.root``, else below or in ``$ANCHORFL_DATA``; None where the task needs none.

    Raises InputError that names every place looked at and where to get the files.
    """
    state = status(task, options)
    if state.found:
        return state.folder
    looked = ", ".join(str(place) for place in state.places) or "nowhere: [task] root and $ANCHORFL_DATA are empty"
    gate = ", access must be applied for" if task.source.gated else ""
    msg = (
        f"{task.name}: no {', '.join(state.missing)} (plain or .gz); looked in {looked}. Get the files from "
        f"{task.source.url} (licence: {task.source.licence}{gate}) and set [task] root or $ANCHORFL_DATA"
    )
    raise InputError(msg)


def find_file(folder: Path, name: str) -> Path:
    """The file, plain or gzipped. Raises InputError where there is neither."""
    path = _existing(folder, name)
    if path is None:
        msg = f"{folder}: no {name} or {name}.gz there; set [task] root to the folder that holds it"
        raise InputError(msg)
    return path


def open_text(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1, without line ends) of a UTF-8 text, plain or gzip.

    Raises InputError with file and line on a damaged gzip stream or on bytes that are no UTF-8.
    """
    number = 0
    # the gzip module's file is a binary stream, whatever its stub calls it
    with cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb") as stream:
        while True:
            number += 1
            try:
                line = stream.readline()
                if not line:
                    return
                text = line.decode("utf-8").rstrip("\r\n")
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                msg = f"{path}:{number}: the gzip file is damaged or cut short ({error}); get it again"
                raise InputError(msg) from error
            except UnicodeDecodeError as error:
                msg = f"{path}:{number}: byte {error.start + 1} of the line is no UTF-8; convert the file to UTF-8"
                raise InputError(msg) from error
            yield number, text


def _places(task: Task, options: TaskOptions) -> tuple[Path, ...]:
    if options.root:
        return (Path(options.root).expanduser(),)
    data = os.environ.get("ANCHORFL_DATA", "")
    return (Path(data).expanduser() / task.folder, Path(data).expanduser()) if data else ()


def _existing(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
