"""The digest of raw files, without reading gigabytes at every start."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.folders import cache_root
from anchorfl.tasks.files.raw_files import file_names, find_file, find_files, has_file
from anchorfl.tasks.ingest.cache_folder import data_digest
from anchorfl.tasks.options import TaskOptions

MEMORY = "raw-digests"
"""Folder in the cache folder, with one file per folder of raw files: what was read once is not read again while its
size and its time are the same.
"""
SETTLED_NS = 2_000_000_000
"""A file that has just been written is not remembered: it may be written again at the same time of the clock."""


def raw_digest(task: Task, options: TaskOptions, folder: Path | None) -> str:
    """Return the sha256 over the names and bytes of the raw files that this variant needs."""
    if folder is None:
        return data_digest({})
    folder_digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    memory = cache_root(options.cache) / MEMORY / f"{task.name}-{folder_digest}.json"
    known, seen, digests = _read_memory(memory), dict[str, str](), dict[str, str]()
    for name, path in raw_files(task, options, folder):
        status = path.stat()
        key = f"{name}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
        digests[name] = known.get(key) or _digest(path)
        if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
            seen[key] = digests[name]
    if not seen.items() <= known.items():
        with suppress(InputError):  # a cache that cannot be written: this only saves time
            object_store.write_bytes(str(memory), json.dumps(known | seen).encode())
    return data_digest(digests)


def raw_files(task: Task, options: TaskOptions, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every raw file that this variant needs, of the optional ones that are there and of
    those that they name; a pattern gives the names below the folder.
    """
    there = [name for name in task.source.optional if has_file(folder, name)]
    for name in (*file_names(task, options), *there):
        if "*" not in name:
            yield name, find_file(folder, name)
            continue
        for path in find_files(folder, name):
            yield path.relative_to(folder).as_posix(), path
    for name in task.named_files(folder, options) if task.named_files else ():
        # of a name too long, no error; what is none makes its row a bad one, which is for the reader to say
        if os.path.isfile(folder / name):
            yield name, folder / name


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_memory(memory: Path) -> dict[str, str]:
    """Return the digests of earlier starts; nothing where the file is missing or damaged, as it only saves time."""
    try:
        content = json.loads(memory.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}
