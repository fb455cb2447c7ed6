"""Restore a run folder from its copy (``pipeline/storage/backup.py``), and check whose copy it is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.backup import CHECKPOINT, FINAL_SCORES, INDEX, Backup, checkpoint_files, is_left
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.pipeline.storage.named_files import named_file
from anchorfl.pipeline.storage.run_folder import CONFIG, RESULT, RUNS, lock_run
from anchorfl.pipeline.terminal import Log
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.json_schema import parsed, type_error

ATTEMPTS = 3
"""A copy that another machine brings up to date meanwhile is read so many times."""
PROBE = ".writable"
"""File that is written and deleted to see whether the store can be written."""


@dataclass(frozen=True, slots=True)
class BackupStatus:
    """The progress of a run folder or of its copy."""

    run: str
    """Identity of the run; "" where there is none."""
    finished: bool
    round: int
    """Round of the checkpoint; without one, of the last record (in a sweep: the trials that ended)."""

    @property
    def progress(self) -> tuple[int, bool]:
        """A key that is larger for what is further: an end that a callback asked for comes before later rounds."""
        return self.round, self.finished

    def __str__(self) -> str:
        return "finished" if self.finished else f"at {self.round}" if self.round >= 0 else "not begun"


def backup_status(uri: str) -> BackupStatus:
    """Return how far the run at ``uri`` is. Raise InputError where the store cannot be used.

    A run whose last checkpoint's index is damaged here has not begun, as far as a copy of it is concerned: a whole one
    is further, and without one the run goes on from the checkpoint before.
    """
    run = _read_json(uri, "run.json").get("id", "")
    try:
        round_ = _read_json(uri, INDEX).get("round")
    except InputError:
        if object_store.is_remote(uri):
            raise
        round_ = -1
    if fault := type_error(run, str, "id") or type_error(round_, int | None, "round"):
        raise InputError(f"{object_store.shown(uri)}: run.json or {INDEX} is damaged ({fault}); restore it from a copy")
    if round_ is None:
        round_ = (_read(uri, "metrics.jsonl") or b"").count(b"\n") - 1
    return BackupStatus(run, object_store.exists(object_store.join(uri, RESULT)), round_)


def digest_at(uri: str) -> str | None:
    """Return the digest of the options of the run at ``uri``; None where it has none.

    Raises InputError as ``backup_status``.
    """
    digest = _read_json(uri, CONFIG).get("digest")
    return digest if isinstance(digest, str) else None


def backup_uri(backup: str, folder: Path) -> str:
    """Return the URI of the copy of a run folder."""
    return object_store.join(backup, folder.resolve().name)


def check_backup_owner(uri: str, folder: Path, log: Log, again: str = "anchorfl resume") -> None:
    """Check that the copy at ``uri`` is this folder's, and that it can be written.

    again: the command that goes on with a copy. Raises InputError where the copy is another run's, or further than the
    folder; for a new run also where the store cannot be used. A run that goes on only says so: it has work to lose.
    """
    local, where = backup_status(str(folder)), object_store.shown(uri)
    if not object_store.is_remote(uri) and Path(uri).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"cluster.backup: the copy {where} would lie in {folder} itself: give another folder")
    try:
        copy = backup_status(uri)
        object_store.write_bytes(object_store.join(uri, PROBE), b"")
        object_store.delete(object_store.join(uri, PROBE))
    except InputError as error:
        if not local.run:
            raise
        log(f"backup: {error}; the run goes on")
        return
    if copy.run and not local.run:
        raise InputError(f"the backup holds {where} already: go on with '{again} {where}', or give another --output")
    if copy.run and copy.run != local.run:
        raise InputError(f"{where} is the copy of another run than {folder}: give another cluster.backup")
    if copy.progress > local.progress:
        raise InputError(
            f"{where} is further ({copy}) than {folder} ({local}): move {folder} away, and go on with '{again} {where}'"
        )


def update_backup(uri: str, folder: Path, kept: int, log: Log) -> None:
    """Bring the copy of a finished run up to date, where it is not. kept: ``cluster.keep_checkpoints``.

    Raise InputError as ``check_backup_owner``.
    """
    check_backup_owner(uri, folder, log)
    backup = Backup(folder, uri, log, Checkpoints(folder, kept))
    try:
        same = all(_read(uri, name) == _read(str(folder), name) for name in ("run.json", RESULT))
    except InputError:  # said by now; close counts it and says what it means
        same = False
    if not same:
        backup.close()


def restore_if_remote(source: str, log: Log, again: str = "anchorfl resume", **scope: Any) -> Path:
    """Return the folder of a run that is named by its folder or by its copy.

    The copy is fetched into ``runs/`` where it is further. scope: as for ``fetch_run``. Raises InputError where there
    is no copy, or the folder in ``runs/`` is further, in use, or another run's.
    """
    if not object_store.is_remote(source):
        return Path(source)
    object_store.check_location(source, again)
    marker, where = scope.get("marker", CONFIG), object_store.shown(source)
    folder = RUNS / object_store.last_name(source)
    if marker not in object_store.sizes(source):  # which says where the bucket itself is missing
        raise InputError(f"{where} holds no copy to go on with ({marker} is missing)")
    with lock_run(folder):
        copy, local = backup_status(source), backup_status(str(folder))
        if local.run and local.run != copy.run:
            raise InputError(f"{folder} is another run than {where}: move it away, or start in another directory")
        if local.progress > copy.progress:
            raise InputError(
                f"{folder} is further ({local}) than {where} ({copy}): go on with '{again} {folder}', or move it away"
            )
        if copy.progress > local.progress or not (folder / marker).exists():
            fetch_run(source, folder, **scope)
            log(f"{where} ({copy}) fetched into {folder}")
    return folder


def restore_if_ahead(uri: str, folder: Path, log: Log, *, finished: bool = False) -> None:
    """Fetch the copy where it is further than the folder, or there is no folder.

    finished: only that of a finished run. A store that cannot be used is said: rounds that were done elsewhere are then
    done again, with the same result.
    """
    try:
        copy = backup_status(uri)
        if (copy.finished or not finished) and copy.progress > backup_status(str(folder)).progress:
            fetch_run(uri, folder)
            log(f"{object_store.shown(uri)} fetched into {folder}")
    except InputError as error:
        log(f"backup: {error}; going on with what {folder} holds")


def fetch_run(uri: str, folder: Path, *, marker: str = CONFIG, leave: tuple[str, ...] = ()) -> None:
    """Bring a copy into ``folder``, in an order that leaves the folder whole if this process is killed.

    marker: the file that makes it a run, which comes last. leave: as for ``Backup``. Raises InputError where a part is
    missing or damaged, or the store cannot be used.
    """

    def bring(name: str, data: bytes | None) -> None:
        if data is not None:
            named_file(folder, name, object_store.shown(uri))
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, data)

    result = _read(uri, RESULT)  # first: what comes after it is as new, or newer
    index = _fetch_checkpoint(uri, folder / CHECKPOINT)
    for name in sorted(object_store.sizes(uri).keys() - {RESULT, marker}):
        if not name.startswith(f"{CHECKPOINT}/") and not is_left(name, leave):
            bring(name, _read(uri, name))
    if result is None:  # the folder may have that of an end that a callback asked for, from which the copy went on
        for name in (RESULT, FINAL_SCORES):
            (folder / name).unlink(missing_ok=True)
    bring(INDEX, index)  # the records are here: now the rounds may count
    bring(RESULT, result)
    bring(marker, _read(uri, marker))


def _fetch_checkpoint(uri: str, folder: Path) -> bytes | None:
    """Bring the parts of a checkpoint; return the text of its index, which is not written yet, or None without one."""
    lost = ""
    for _ in range(ATTEMPTS):
        index = _read(uri, INDEX)
        for file, checksum in checkpoint_files(index, f"{object_store.shown(uri)}/{INDEX}").items():
            path = folder / file
            if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == checksum:
                continue
            data = _read(uri, f"{CHECKPOINT}/{file}")
            if data is None or hashlib.sha256(data).hexdigest() != checksum:
                lost = file
                break
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        else:
            return index
    raise InputError(f"{object_store.shown(uri)}/{CHECKPOINT}: {lost} is missing or damaged; go on from another copy")


def _read(uri: str, name: str) -> bytes | None:
    try:
        return object_store.read_bytes(object_store.join(uri, name))
    except FileNotFoundError:
        return None


def _read_json(uri: str, name: str) -> dict[str, Any]:
    """Return a JSON object of the folder at ``uri``; {} where there is none."""
    content: dict[str, Any] = {}
    if data := _read(uri, name):
        content = parsed(data, dict[str, Any], f"{object_store.shown(uri)}/{name}", "restore it from a copy")
    return content
