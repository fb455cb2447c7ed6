"""Raw files: finding and opening them, and the errors where they are missing or damaged.

``Source.files`` may name variants: ``r8-train-{stemmed|textgcn}.txt`` is one file per variant, by default the first. A
variant may be called otherwise than its part of the file name: ``{npz28=pbc_28.npz|jpg=*/*.jpg}``. A file whose
variants do not include the chosen one is not needed.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.decompression import check_growth
from anchorfl.tasks.files.regular_files import regular
from anchorfl.tasks.files.remote_root import root_of
from anchorfl.tasks.files.remote_table import table_path
from anchorfl.tasks.files.sources import SOURCES
from anchorfl.tasks.options import TaskOptions

MAX_LINE_BYTES = 1 << 26
"""Bytes of a line of text."""
CHECKED = 1 << 20
"""Bytes of text between two checks of how much a file has unpacked to."""
_VARIANTS = re.compile(r"\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one task's raw files, as ``anchorfl data`` shows it."""

    found: bool
    """True where every file is there, or none is needed."""
    folder: Path | None
    """Folder that holds them; None if nothing was found or nothing is needed."""
    searched: tuple[Path, ...]
    """Every folder that was searched."""
    missing: tuple[str, ...]
    """Files that are not in ``folder``, or in none of ``searched``."""


def file_names(task: Task, options: TaskOptions) -> tuple[str, ...]:
    """Return the names of the files that this variant needs. Raises InputError on an unknown variant."""
    wanted = variant(task, options)
    parts = {name: _variants(name) for name in task.source.files}
    needed = [name for name, known in parts.items() if wanted in known or not known]
    return tuple(_VARIANTS.sub(parts[name].get(wanted, ""), name) for name in needed)


def variants(task: Task) -> list[str]:
    """Return the variants of a task's raw files, its first choice first; empty where it has none."""
    return [*dict.fromkeys(known for name in task.source.files for known in _variants(name))]


def variant(task: Task, options: TaskOptions) -> str:
    """Return the variant of the raw files: ``options.variant``, else the task's first; empty where it has none."""
    known = variants(task) or [""]
    if options.variant and options.variant not in known:
        offer = f"it has {', '.join(known)}" if known != [""] else "it has none; leave it empty"
        hint = nearest(options.variant, known)
        raise InputError(f"[task] variant = {options.variant!r} is no variant of {task.name}{hint}: {offer}")
    return options.variant or known[0]


def status(task: Task, options: TaskOptions) -> Status:
    """Return whether the raw files are there; touches nothing but the file system."""
    names = file_names(task, options)
    if not names:
        return Status(True, None, (), ())
    searched = _candidate_folders(task, options)
    lacking = {folder: tuple(n for n in names if _existing(folder, n) is None) for folder in searched}
    best = min(searched, key=lambda folder: len(lacking[folder]), default=None)
    if best is None or len(lacking[best]) == len(names):
        return Status(False, None, searched, names)
    return Status(not lacking[best], best, searched, lacking[best])


def raw_folder(task: Task, options: TaskOptions) -> Path | None:
    """Return the folder with all raw files; None where the task needs none.

    It is ``options.root``, else below or in ``$ANCHORFL_DATA``. Raises InputError that names every folder searched and
    where to get the files.
    """
    state = status(task, options)
    if state.found:
        return state.folder
    folders = ", ".join(str(folder) for folder in state.searched) or "nowhere: [task] root and $ANCHORFL_DATA are empty"
    gate = ", access must be applied for" if task.source.gated else ""
    fetch = f", or fetch them: anchorfl data fetch {task.name}" if task.name in SOURCES else ""
    others = " or ".join(f"--task.variant {name}" for name in other_forms(task, options))
    raise InputError(
        f"{task.name}: no {', '.join(state.missing)} (plain or .gz); looked in {folders}. "
        f"{f'Another form of the data is there: {others}. Or get' if others else 'Get'} the files from "
        f"{task.source.url} (licence: {task.source.licence}{gate}) and set [task] root or $ANCHORFL_DATA{fetch}"
    )


def other_forms(task: Task, options: TaskOptions) -> list[str]:
    """Return the variants whose files are there, but for the one that is asked for."""
    rest = [name for name in variants(task) if name != variant(task, options)]
    return [name for name in rest if status(task, replace(options, variant=name)).found]


def has_file(folder: Path, name: str) -> bool:
    """Return whether the folder has a file of that name, or one that matches, with ``.gz`` or without."""
    return _existing(folder, name) is not None


def find_file(folder: Path, name: str) -> Path:
    """Return the file, plain or gzipped. Raises InputError where there is neither."""
    path = _existing(folder, name)
    if path is None:
        raise InputError(f"{folder}: no {name} or {name}.gz there; set [task] root to the folder that holds it")
    return path


def find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match a pattern of ``Source.files``, as ``*.csv`` or ``images/**/*.jpg``, with ``.gz`` or
    without, in the order of their names. Raises InputError where there is none.
    """
    paths = sorted(_matching(folder, pattern))
    if not paths:
        raise InputError(f"{folder}: no file {pattern} there; set [task] root to the folder that holds them")
    return paths


def find_one(folder: Path, pattern: str) -> Path:
    """Return the one file that matches a pattern; the plain one where it is there gzipped too. Raises InputError where
    there is none, or several.
    """
    paths = {path.with_suffix("") if path.suffix == ".gz" else path for path in find_files(folder, pattern)}
    if len(paths) > 1:
        names = ", ".join(sorted(path.name for path in paths))
        raise InputError(f"{folder}: several files match {pattern}: {names}; leave one of them in the folder")
    return find_file(folder, paths.pop().name)


def open_bytes(path: Path) -> IO[bytes]:
    """Return a file, plain or gzip by its name. Raises InputError where it may not be read."""
    regular(path)
    try:
        # the gzip module's file is a binary stream, whatever its stub calls it
        return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")
    except PermissionError as error:
        raise InputError(f"{path}: {error.strerror}; make the file readable") from error


def open_text(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines (from 1, without line ends) of a UTF-8 text, plain or gzip.

    Raises InputError with file and line on a damaged gzip stream or on bytes that are no UTF-8.
    """
    number = size = checked = 0
    with open_bytes(path) as stream:
        while True:
            number += 1
            try:
                line = stream.readline(MAX_LINE_BYTES)
                if not line:
                    return
                size += len(line)
                if size > checked:
                    check_growth(path, size)
                    checked = size + CHECKED
                if len(line) == MAX_LINE_BYTES:
                    raise InputError(
                        f"{path}:{number}: the line is longer than {MAX_LINE_BYTES} bytes; cut the text up"
                    )
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise InputError(
                    f"{path}:{number}: the gzip file is damaged or cut short ({error}); get it again"
                ) from error
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}:{number}: byte {error.start + 1} of the line is no UTF-8; convert the file to UTF-8"
                ) from error
            yield number, text


def _variants(name: str) -> dict[str, str]:
    """Return the variant -> its part of the file name; nothing where the name has no variants."""
    match = _VARIANTS.search(name)
    pairs = (choice.partition("=") for choice in match[1].split("|")) if match else ()
    return {variant: part if equals else variant for variant, equals, part in pairs}


def _candidate_folders(task: Task, options: TaskOptions) -> tuple[Path, ...]:
    if options.file:
        return (table_path(options).parent,)
    if options.root:
        return (root_of(options),)
    data = os.environ.get("ANCHORFL_DATA", "")
    return (Path(data).expanduser() / task.folder, Path(data).expanduser()) if data else ()


def _matching(folder: Path, pattern: str) -> set[Path]:
    paths = {*folder.glob(pattern), *folder.glob(f"{pattern}.gz")}
    return {path for path in paths if path.is_file() and not path.name.startswith(".")}


def _existing(folder: Path, name: str) -> Path | None:
    """Return a file of that name, or any that matches where it is a pattern."""
    if "*" in name:
        return min(_matching(folder, name), default=None)
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
