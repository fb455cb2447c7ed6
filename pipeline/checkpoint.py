"""Checkpoints: a completed round on disk; a kill at any instant leaves the old one or the new one, whole.

Layout of ``<run>/checkpoint/``: ``<part>-<round>.safetensors`` per part (the server's state, the selected model, the
memory of each client that has one) and ``checkpoint.json``, which names the parts of the last saved round with their
SHA-256, and has one of its own. A part is written in the rounds in which it changed. ``checkpoint-<round>.json`` is the
same for rounds before, of which some are kept: where the last one is damaged, the one before is taken. Beside it,
``<run>/rounds/<round>.safetensors``: the server's state of the rounds that ``evaluation.keep`` names, which stay. No
pickle is read or written.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tasks.contract import InputError

FORMAT = 2
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

    def __init__(self, run: Path, kept: int = 2) -> None:
        """kept: so many saved rounds, the last one included."""
        self.folder, self._kept = run / "checkpoint", kept
        self.rounds = run / ROUNDS
        self.index = self.folder / "checkpoint.json"
        self._last: bytes | None = None  # text of the index that the next round follows, where this process knows it
        self._pinned: set[str] = set()  # files that another thread reads
        self._lock = threading.Lock()

    def save(self, round_: int, changed: Mapping[str, Tensors], notes: dict[str, Any]) -> None:
        """Write round ``round_``; ``changed``: the parts that changed in it, the others stay as they were saved. A part
        without a tensor is none.

        Order matters: new files first, then the index that names them, then the files that nothing names any more.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        before = self._last or (self.index.read_bytes() if self.index.exists() else None)
        old = _index_in(before, self.index) if before else None
        parts: dict[str, dict[str, str]] = dict(old["parts"]) if old else {}
        for name, tensors in changed.items():
            if tensors:
                parts[name] = self._write(f"{name}-{round_:06d}.safetensors", tensors)
            else:  # clients that keep nothing, thousands of them in a pooled round
                parts.pop(name, None)
        index = {"format": FORMAT, "round": round_, "parts": parts, "notes": notes}
        text = json.dumps(index | {"sha256": _seal(index)}, indent=1).encode()
        with self._lock:
            if before and old and self._kept > 1:
                draft = self.folder / ".before.tmp"
                draft.write_bytes(before)  # not synced: it is for the case that the new one is damaged
                draft.replace(self.folder / f"checkpoint-{old['round']:06d}.json")
            write_atomically(self.index, text)
            self._last = text
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
        for before in self._earlier()[: self._kept - 1]:
            try:
                parts = _index_in(before.read_bytes(), before)["parts"]
            except InputError:  # of no use to anybody
                continue
            named |= {before.name, *(entry["file"] for entry in parts.values())}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink()

    def load(self, say: Callable[[str], None] = print) -> Checkpoint | None:
        """The last saved round that is whole, or None where none was saved; ``say`` hears of damaged ones.
        InputError where all are damaged.
        """
        errors: list[Exception] = []
        earlier = self._earlier()
        if not earlier and not self.index.exists():
            return None
        for path in [self.index, *earlier]:
            try:
                text = path.read_bytes()
                index = _index_in(text, path)
                parts = {name: self._read(entry) for name, entry in index["parts"].items()}
            except (InputError, FileNotFoundError) as error:
                errors.append(error)
                continue
            for damage in errors:
                say(f"{damage}: taking the checkpoint of round {index['round']}")
            self._last = text
            return Checkpoint(index["round"], parts, index["notes"])
        raise InputError(f"{errors[0]}; start the run anew in another --output")

    def _earlier(self) -> list[Path]:
        """Indices of rounds before the last, the latest first."""
        return sorted(self.folder.glob("checkpoint-[0-9]*.json"), reverse=True)

    def _index(self) -> dict[str, Any] | None:
        return _index_in(self.index.read_bytes(), self.index) if self.index.exists() else None

    def _write(self, name: str, tensors: Tensors) -> dict[str, str]:
        data = _bytes(tensors)
        write_atomically(self.folder / name, data)
        return {"file": name, "sha256": hashlib.sha256(data).hexdigest()}

    def _read(self, entry: dict[str, str]) -> Tensors:
        path = self.folder / entry["file"]
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing, though a checkpoint names it") from error
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise InputError(f"{path} does not have the checksum that its checkpoint states")
        try:
            return load(data)
        except SafetensorError as error:
            raise InputError(f"{path} is no safetensors file ({error})") from error


def _index_in(text: bytes, path: Path) -> dict[str, Any]:
    """The index in the text of ``path``. InputError where it is none of this version, or not as it was written."""
    try:
        index = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error})") from error
    if not isinstance(index, dict) or "format" not in index:
        raise InputError(f"{path} is damaged (it is no index of a checkpoint)")
    if index["format"] != FORMAT:
        raise InputError(f"{path} has format {index['format']}, this version reads {FORMAT}")
    if index.pop("sha256", "") != _seal(index):
        raise InputError(f"{path} is damaged (its checksum does not fit)")
    return index


def _seal(index: Mapping[str, Any]) -> str:
    """SHA-256 of an index, without that of its own."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


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
