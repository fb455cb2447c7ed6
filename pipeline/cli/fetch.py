"""``anchorfl data fetch``: bring the raw files of a data set to this machine, whose terms were accepted."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfl.pipeline.storage.atomic_files import read_json, write_json
from anchorfl.pipeline.terminal import say, say_live
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.sources import SOURCES, RemoteFile
from anchorfl.tasks.options import TaskOptions

if TYPE_CHECKING:
    from anchorfl.tasks.contract import Task
    from anchorfl.tasks.files.download import Progress

RECORD = "fetched.json"
"""File in the folder of a data set: path -> address, SHA-256, bytes, and whether a published digest was compared."""


def fetch(arguments: list[str]) -> int:
    """Download the raw files of a data set, once its terms are accepted."""
    parser = argparse.ArgumentParser(
        prog="anchorfl data fetch",
        description="Download the raw files of a data set, check their digests and unpack them. A download that was "
        "interrupted goes on. Files that are put there by hand do as well: anchorfl data NAME says which.",
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(SOURCES))
    parser.add_argument("--accept-licence", action="store_true", help="you have read the terms and keep to them")
    parser.add_argument(
        "--unverified", action="store_true",
        help="also files of which nobody publishes a digest; theirs is printed and recorded",
    )  # fmt: skip
    parser.add_argument(
        "--root", "--task.root", dest="root", metavar="FOLDER", default="",
        help="where to (default: the folder of the data set below $ANCHORFL_DATA)",
    )  # fmt: skip
    parser.add_argument(
        "--variant", "--task.variant", dest="variant", default="", help="form of the files, where several"
    )
    options = parser.parse_args(arguments)
    from anchorfl.tasks.files.raw_files import status
    from anchorfl.tasks.registry import find_task

    task = find_task(options.name)
    wanted = TaskOptions(name=task.name, variant=options.variant, root=options.root)
    state = status(task, wanted)
    archives = [file.path for file in SOURCES.get(task.name, ()) if file.path.endswith(".zip")]
    unfinished = state.folder and any((Path(state.folder) / name).exists() for name in archives)
    if state.found and not unfinished:
        say(f"{task.name} is {f'in {state.folder}' if state.folder else 'bundled'}: nothing to fetch")
        return 0
    files = _files(task, wanted)
    folder = _folder(task, options.root)
    for line in _terms(task, files, folder):
        say(line)
    _check_consent(task, files, folder, options.accept_licence, options.unverified)
    fetch_files(task, wanted, files, folder)
    return 0


def _files(task: Task, options: TaskOptions) -> list[RemoteFile]:
    """Return the files of a variant. Raises InputError where no address is known for them."""
    from anchorfl.tasks.files.raw_files import file_names, variant

    chosen = variant(task, options)
    files = [file for file in SOURCES.get(task.name, ()) if file.variant in ("", chosen)]
    if not files:
        gate = "; access must be applied for" if task.source.gated else ""
        raise InputError(
            f"{task.name}: no address is known that gives {', '.join(file_names(task, options)[:4])}; get the files by"
            f" hand from {task.source.url} (licence: {task.source.licence}{gate})"
        )
    return files


def _folder(task: Task, root: str) -> Path:
    """Return the folder to fetch into."""
    if root:
        return Path(root).expanduser()
    data = os.environ.get("ANCHORFL_DATA", "")
    if not data:
        raise InputError("nowhere to put the files: set $ANCHORFL_DATA to a folder for data, or give --root FOLDER")
    return Path(data).expanduser() / task.folder


def _terms(task: Task, files: Sequence[RemoteFile], folder: Path) -> list[str]:
    """Return what is to be known before anything is asked for."""
    lines = [task.title, f"terms   {task.source.licence}", f"        {task.source.url}", f"into    {folder}"]
    unknown = " (no digest is published)"
    return [*lines, *(f"file    {file.path}{'' if file.digest else unknown} from {file.url}" for file in files)]


def _check_consent(task: Task, files: Sequence[RemoteFile], folder: Path, accepted: bool, unverified: bool) -> None:
    """Raise InputError where the user has not said what is needed; nothing has been asked for then."""
    if not accepted:
        raise InputError(
            f"{task.name}: its terms ({task.source.licence}) are not accepted: read them at {task.source.url}, then add"
            " --accept-licence"
        )
    record = read_json(folder / RECORD)
    unknown = [file.path for file in files if not file.digest and file.path not in record]
    if unknown and not unverified:
        raise InputError(
            f"{task.name}: nobody publishes a digest of {', '.join(unknown)}: add --unverified to fetch what the server"
            " gives, or put the files there by hand"
        )


def fetch_files(task: Task, options: TaskOptions, files: Sequence[RemoteFile], folder: Path) -> None:
    """Fetch the files that a folder lacks, unpack archives, note in ``fetched.json`` what came.

    Raises InputError; what has come whole stays, and the next call goes on.
    """
    from anchorfl.tasks.files.archives import unpack
    from anchorfl.tasks.files.download import fetch as download
    from anchorfl.tasks.files.raw_files import file_names, has_file, status

    for file in files:
        path = folder / file.path
        archive = path.suffix == ".zip"
        if not archive and has_file(folder, file.path):
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            record = read_json(folder / RECORD)
            known = record.get(file.path, {}).get("sha256", "")
            sha256 = download(file.url, path, file.digest or (known and f"sha256:{known}"), _progress(file.path))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; give a folder that can be written with --root") from error
        size = path.stat().st_size
        checked = "" if file.digest or known else ", compared with nothing"
        say(f"{file.path}  {size / 1e6:.1f} MB, sha256 {sha256}{checked}")
        record[file.path] = {"url": file.url, "sha256": sha256, "bytes": size, "verified": bool(file.digest)}
        write_json(folder / RECORD, record)
        if archive:
            count = unpack(path, folder, [*file_names(task, options), *task.source.optional])
            path.unlink()
            say(f"{file.path}  {count} files unpacked")
    state = status(task, TaskOptions(name=task.name, variant=options.variant, root=str(folder)))
    if not state.found:
        raise InputError(
            f"{folder} still lacks {', '.join(state.missing)}; get the files by hand from {task.source.url}"
        )
    root = f": give it to runs as --task.root {shlex.quote(str(folder))}" if options.root else ""
    say(f"{task.name} is in {folder}{root}")


def _progress(name: str) -> Progress:
    """Return what shows on the live line how much of a file has come."""

    def show(done: int, total: int | None) -> None:
        say_live(f"{name}  {done / 1e6:.1f}{f' of {total / 1e6:.1f}' if total else ''} MB")

    return show
