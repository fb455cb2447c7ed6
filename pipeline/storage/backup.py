"""The copy of a run folder on object storage: whole at any instant, so that a run outlives the disk of its machine.

A thread copies what has changed, after every checkpoint and at the end. Order is what makes the copy whole: the records
and the parts of a checkpoint before the ``checkpoint.json`` that names them, everything before ``result.json``, which
says that the run is finished, and after that the deletion of parts that no checkpoint names any more. Nothing else is
ever deleted but the ``result.json`` and the final scores of a run that goes on: the copy outlives the
folder. A store that does not answer never stops a run: it is said, and tried again after the next checkpoint.
``pipeline/storage/restore.py`` has the way back.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

from anchorfl.pipeline.storage.checkpoint import Checkpoints, index_of
from anchorfl.pipeline.storage.run_folder import RESULT
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store

FINAL_SCORES = "final_scores/metrics.jsonl"
CHECKPOINT, INDEX, RECORD = "checkpoint", "checkpoint/checkpoint.json", "run.json"
END_ATTEMPTS = 3
"""At the end of a run a store that does not answer is asked so many times."""
LONG_S, STALL_S = 10.0, 300.0
"""Seconds until a line says what the end waits for; and seconds without a copied file until it gives up."""
Stamp = tuple[int, int]
"""Size of a file in bytes, and its time in nanoseconds or its hash."""


class Backup:
    """The copy of ``folder`` at ``uri``, kept up to date by a thread.

    ``failures``: attempts that failed.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        log: Callable[[str], None],
        checkpoints: Checkpoints | None = None,
        *,
        last: tuple[str, ...] = (RESULT,),
        leave: tuple[str, ...] = (),
        pause_s: float = 0.0,
        patience_s: float = 5.0,
    ) -> None:
        """log: takes one line, from any thread.

        checkpoints: those of the folder; None: it has none.
        last: files that are read first and copied last, as they say what the others hold.
        leave: patterns of names that are somebody else's to copy.
        pause_s: rest between two copies.
        patience_s: wait after a failure at the end.
        """
        self.folder, self.uri, self.log, self.checkpoints = folder, uri, log, checkpoints
        self.last, self.leave, self.pause_s, self.patience_s = last, leave, pause_s, patience_s
        self.failures = 0
        self._error = ""  # of the last attempt
        self._known: dict[str, Stamp | None] = {}  # what the copy holds; None: other content than the folder's
        self._looked = False
        self._moved = 0.0
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"backup {folder.name}", daemon=True)

    def push(self) -> None:
        """Tell the thread that there is more to copy, and return at once.

        One copy goes at a time, and takes in all that came meanwhile.
        """
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()

    def close(self) -> bool:
        """Copy what is left and wait for it; return whether the copy is complete. A second call does nothing."""
        if not self._ending.is_set():
            self._moved = time.monotonic()
            self._ending.set()
            self.push()
            self._wait()
            if self._error:
                self.log(
                    f"error: the backup {object_store.shown(self.uri)} is not up to date after {self.failures} failed"
                    f" attempts ({self._error}); {self.folder} is whole: resume it when the store answers"
                )
            if self.checkpoints is not None and not self._thread.is_alive():
                self.checkpoints.tidy()
        return not self._error

    def send(self) -> None:
        """Bring the copy up to date, in this thread.

        Raises InputError where the store cannot be used, or the folder is gone.
        """
        if not self.folder.is_dir():
            raise InputError(f"{self.folder} is gone; its copy {object_store.shown(self.uri)} stays as it is")
        texts = {name: data for name in self.last if (data := _content(self.folder / name)) is not None}
        with self.checkpoints.pinned() if self.checkpoints else nullcontext() as index:
            parts = checkpoint_files(index, self.folder / INDEX)
            if not self._looked:
                self._look(parts, index)
            for name in (RESULT, FINAL_SCORES):  # of an end that a callback asked for: the run went on
                if name in self._known.keys() - texts.keys() and not (self.folder / name).exists():
                    object_store.delete(object_store.join(self.uri, name))
                    del self._known[name]
            names = [*self._files(), *(f"{CHECKPOINT}/{file}" for file in parts)]
            if RECORD in names:  # first, as by it another run sees whose the copy is
                self._copy(RECORD)
                self._check_owner()
            for name in names:
                self._copy(name)
            if index:
                self._check_owner()
            texts = ({INDEX: index} if index else {}) | texts
            for name, data in texts.items():
                self._write(name, data, (len(data), hash(data)))
        for name in self._known.keys() - {*names, *texts}:
            if index and name.startswith(f"{CHECKPOINT}/"):
                object_store.delete(object_store.join(self.uri, name))
                del self._known[name]

    def _check_owner(self) -> None:
        """Raise InputError where another run, which began at the same time, has begun to write the copy since."""
        own, copied = (_id_of(_content(self.folder / RECORD)), object_store.join(self.uri, RECORD))
        if own and RECORD in self._known and _id_of(object_store.read_bytes(copied)) not in ("", own):
            raise InputError(
                f"{object_store.shown(self.uri)} is the copy of another run than {self.folder}: give another"
                " cluster.backup"
            )

    def _look(self, parts: dict[str, str], local_index: bytes | None) -> None:
        """Learn what the copy holds: parts of a checkpoint by their checksum; of other files only that they exist.

        Raises InputError where it is another run's, which began at the same time; and where its checkpoint is further:
        the store did not answer when the run began to go on.
        """
        sizes = object_store.sizes(self.uri)
        own, shown = _id_of(_content(self.folder / RECORD)), object_store.shown(self.uri)
        its = object_store.read_bytes(object_store.join(self.uri, RECORD)) if {RECORD, INDEX} <= sizes.keys() else b""
        if own and _id_of(its) not in ("", own):
            raise InputError(f"{shown} is the copy of another run than {self.folder}: give another cluster.backup")
        self._known = {name: None for name in sizes if not is_left(name, self.leave)}
        index = object_store.read_bytes(object_store.join(self.uri, INDEX)) if INDEX in sizes else None
        copied = checkpoint_files(index, f"{object_store.shown(self.uri)}/{INDEX}")
        local_round, copied_round = _round_of(local_index), _round_of(index)
        if copied_round > local_round:
            raise InputError(
                f"{object_store.shown(self.uri)} is further (at {copied_round}) than {self.folder} (at {local_round}),"
                " and stays as it is until that is as far: stop here and go on with the copy"
            )
        for file in parts.keys() & copied.keys():
            name, stamp = f"{CHECKPOINT}/{file}", _stamp(self.folder / CHECKPOINT / file)
            if parts[file] == copied[file] and sizes.get(name) == stamp[0]:
                self._known[name] = stamp
        self._looked = True

    def _files(self) -> list[str]:
        """Return the names of the files to copy, but for the checkpoint and those that come last.

        A link that leads out of the folder is left out, and a pipe: somebody else may have made them, and what the link
        names is not the run's.
        """
        names, base = list[str](), self.folder.resolve()
        for folder, folders, files in os.walk(self.folder):
            start = Path(folder).relative_to(self.folder)
            inner = [name for name in folders if not is_left(f"{(start / name).as_posix()}/", self.leave)]
            folders[:] = [name for name in inner if self.checkpoints is None or (start / name) != Path(CHECKPOINT)]
            own = [name for name in files if _is_own(Path(folder) / name, base)]
            names += [(start / name).as_posix() for name in own]
        return sorted(name for name in names if name not in self.last and not is_left(name, self.leave))

    def _copy(self, name: str) -> None:
        try:
            stamp = _stamp(self.folder / name)  # before the content, which may be newer but never older
            if self._known.get(name) != stamp:
                self._write(name, (self.folder / name).read_bytes(), stamp)
        except FileNotFoundError:
            if name.startswith(f"{CHECKPOINT}/"):
                raise  # its index must not follow
            # any other file may come and go: what is here now is copied next time

    def _write(self, name: str, data: bytes, stamp: Stamp) -> None:
        if self._known.get(name) != stamp:
            self._known[name] = None  # whatever becomes of the next line
            object_store.write_bytes(object_store.join(self.uri, name), data)
            self._known[name] = stamp
            self._moved = time.monotonic()

    def _work(self) -> None:
        ending = False
        while not ending:
            self._wake.wait()
            self._wake.clear()
            ending = self._ending.is_set()
            for attempt in range(END_ATTEMPTS if ending else 1):
                if attempt:
                    time.sleep(self.patience_s)
                if self._attempt():
                    break
            self._ending.wait(self.pause_s)

    def _attempt(self) -> bool:
        before = self._error
        try:
            self.send()
        except Exception as error:  # whatever goes wrong with the backup: said, counted, tried again; the run goes on
            self.failures += 1
            self._error = str(error) or type(error).__name__  # a MemoryError says nothing
            if not before:
                self.log(
                    f"backup: {self._error}; the run goes on, and the backup is tried again after every checkpoint"
                )
            return False
        self._error = ""
        if before:
            self.log(f"backup: {object_store.shown(self.uri)} is up to date again ({self.failures} attempts failed)")
        return True

    def _wait(self) -> None:
        began, logged = time.monotonic(), False
        while self._thread.is_alive():
            self._thread.join(0.2)
            now = time.monotonic()
            if not logged and now - began > LONG_S:
                logged = True
                self.log(f"waiting for the backup {object_store.shown(self.uri)}")
            if now - self._moved > STALL_S:
                self._error = f"no file was copied in {STALL_S:g} s"
                return


def checkpoint_files(index: bytes | None, where: object) -> dict[str, str]:
    """Return the files that the text of a checkpoint's index names, with their SHA-256; {} without an index.

    Raises InputError where it is damaged.
    """
    files = index_of(index, where, "restore it from a copy")["files"] if index else {}
    return {name: entry["sha256"] for name, entry in files.items()}


def _round_of(index: bytes | None) -> int:
    """Return the round of a checkpoint that a parse of its parts has found whole; -1 without one."""
    return int(json.loads(index)["round"]) if index else -1


def _id_of(record: bytes | None) -> str:
    """Return the identity of a run out of its ``run.json``; "" where it has none."""
    try:
        content = json.loads(record or b"{}")
    except ValueError:
        return ""
    return str(content.get("id", "")) if isinstance(content, dict) else ""


def is_left(name: str, leave: tuple[str, ...]) -> bool:
    """Return whether a file (or folder, with a slash at its end) stays out: hidden, a draft, or in ``leave``."""
    inner = name.rstrip("/").split("/")
    draft = inner[-1].endswith(object_store.DRAFT) or any(part.startswith(".") for part in inner)
    return draft or any(fnmatchcase(name, pattern) for pattern in leave)


def _is_own(path: Path, folder: Path) -> bool:
    """Return whether a path is a file of a folder, or leads to one. folder: resolved."""
    return path.is_file() and path.resolve().is_relative_to(folder)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
