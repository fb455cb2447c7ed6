"""Checkpoints: a completed round on disk; a kill at any instant leaves the old one or the new one, whole.

Layout of ``<run>/checkpoint/``: ``<part>-<round>.safetensors`` per part (the server's state, the selected model, the
memory of each client that has one) and ``checkpoint.json``, which names the parts of the last completed round with
their SHA-256. A part is written in the rounds in which it changed. Beside it, ``<run>/rounds/<round>.safetensors``: the
server's state of the rounds that ``evaluation.keep`` names, which stay. No pickle is read or written.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tasks.contract import InputError

FORMAT = 1
ROUNDS = "rounds"
"""Folder of the kept states."""
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A completed round: its parts by name, and what the loop itself has to remember."""

    round: int
    parts: dict[str, Tensors]
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoint of one run folder."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoint"
        self.rounds = run / ROUNDS
        self.index = self.folder / "checkpoint.json"
        self._pinned: set[str] = set()  # files that another thread reads
        self._lock = threading.Lock()

    def save(self, round_: int, changed: Mapping[str, Tensors], notes: dict[str, Any]) -> None:
        """Write round ``round_``; ``changed``: the parts that changed in it, the others stay as they were saved. A part
        without a tensor is none.

        Order matters: new files first, then the index that names them, then the files that nothing names any more.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        old = self._index()
        parts: dict[str, dict[str, str]] = dict(old["parts"]) if old else {}
        for name, tensors in changed.items():
            if tensors:
                parts[name] = self._write(f"{name}-{round_:06d}.safetensors", tensors)
            else:  # clients that keep nothing, thousands of them in a pooled round
                parts.pop(name, None)
        index = {"format": FORMAT, "round": round_, "parts": parts, "notes": notes}
        text = json.dumps(index, indent=1).encode()
        with self._lock:
            write_atomically(self.index, text)
            self._tidy(index)

    def keep(self, round_: int, state: Tensors) -> None:
        """Write the state after round ``round_`` where it stays; the same state gives the same bytes."""
        self.rounds.mkdir(parents=True, exist_ok=True)
        write_atomically(self.rounds / f"{round_:05d}.safetensors", _bytes(state))

    def kept(self) -> list[int]:
        """The rounds whose state was kept, ascending."""
        return sorted(int(path.stem) for path in self.rounds.glob("[0-9]*.safetensors"))

    def read_kept(self, round_: int) -> Tensors:
        """A kept state. InputError where the file is missing or damaged."""
        path = self.rounds / f"{round_:05d}.safetensors"
        try:
            return load(path.read_bytes())
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing: evaluation.keep did not name this round") from error
        except SafetensorError as error:
            raise InputError(f"{path} is damaged ({error}); delete it, the other rounds can do without it") from error

    @contextmanager
    def pinned(self) -> Iterator[bytes | None]:
        """For another thread than the one that saves: the text of the index, None where there is none; the files that
        it names stay as they are within the block, whatever is saved meanwhile.
        """
        with self._lock:
            index = self._index()
            text = self.index.read_bytes() if index else None
            self._pinned = {entry["file"] for entry in index["parts"].values()} if index else set()
        try:
            yield text
        finally:
            with self._lock:
                self._pinned = set()

    def tidy(self) -> None:
        """Delete what was pinned when it went out of use; not while a round is being saved."""
        index = self._index()
        if index is not None:
            self._tidy(index)

    def _tidy(self, index: dict[str, Any]) -> None:
        named = {self.index.name, *(entry["file"] for entry in index["parts"].values())} | self._pinned
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink()

    def load(self) -> Checkpoint | None:
        """The last completed round, or None where no round was completed. InputError where a file is damaged."""
        index = self._index()
        if index is None:
            return None
        parts = {name: self._read(entry) for name, entry in index["parts"].items()}
        return Checkpoint(index["round"], parts, index["notes"])

    def _index(self) -> dict[str, Any] | None:
        try:
            index: dict[str, Any] = json.loads(self.index.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(f"{self.index} is damaged ({error}); start the run anew in another --output") from error
        if index.get("format") != FORMAT:
            raise InputError(
                f"{self.index} has format {index.get('format')}, this version reads {FORMAT}; start the run anew"
            )
        return index

    def _write(self, name: str, tensors: Tensors) -> dict[str, str]:
        data = _bytes(tensors)
        write_atomically(self.folder / name, data)
        return {"file": name, "sha256": hashlib.sha256(data).hexdigest()}

    def _read(self, entry: dict[str, str]) -> Tensors:
        path = self.folder / entry["file"]
        mend = "start the run anew in another --output"
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing, though {self.index.name} names it; {mend}") from error
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise InputError(f"{path} does not have the checksum that {self.index.name} states; {mend}")
        try:
            return load(data)
        except SafetensorError as error:
            raise InputError(f"{path} is no safetensors file ({error}); {mend}") from error


def _bytes(tensors: Tensors) -> bytes:
    return save({k: v.contiguous() for k, v in tensors.items()})


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name, sync, rename over ``path``, sync the folder."""
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
