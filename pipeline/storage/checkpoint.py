"""Checkpoints: a completed round on disk; a kill at any instant leaves the old one or the new one, whole.

A checkpoint has parts: the server's state, the selected model, the memory of each client that has one. A part is
written in the rounds in which it changed. Layout of ``<run>/checkpoint/``: ``state-<round>.safetensors`` and
``selected-<round>.safetensors``; ``memory-<round>.safetensors``, with the memories that changed in a round, and
``memory-<round>-<n>.safetensors``, n = 1, 2, ..., from ``FILE_BYTES`` on, so that nobody holds them all at a time; and
``checkpoint.json``, which says which file holds which parts of the last saved round, with the files' SHA-256, and has
one of its own. Where clients' later memories leave less than half of a file in use, what is in use moves to the file
that is written next. ``checkpoint-<round>.json`` is the same for rounds before, of which some are kept: where the last
one is damaged, the one before is taken. Beside it,
``<run>/server_states/<round>.safetensors``: the server's state of the rounds that ``evaluation.save_state_every``
names, which stay. No pickle is read or written.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from safetensors.torch import save
from torch import Tensor

from anchorfl.models.weight_files import WeightsError, tensors
from anchorfl.pipeline.storage.atomic_files import write_atomically, write_synced
from anchorfl.pipeline.storage.named_files import named_file
from anchorfl.pipeline.storage.run_folder import SERVER_STATES
from anchorfl.pipeline.terminal import say
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.folders import sync_folder
from anchorfl.tasks.files.json_schema import parsed, type_error
from anchorfl.tasks.files.regular_files import read_text_bytes, regular

FORMAT = 4
FILE_BYTES = 1 << 26
"""Size from which on a file gets no further part."""
Tensors = dict[str, Tensor]
Part = Tensors | Callable[[], Tensors]
"""A part to save, or what gives it when its turn comes."""


class FileEntry(TypedDict):
    """A file of a checkpoint, as the index has it."""

    sha256: str
    parts: list[str]
    """Parts that it holds for this checkpoint; their tensors are named ``<part>/<tensor>``."""
    written: int
    """Number of parts that were written to it."""


class Index(TypedDict):
    """The content of an index, its own checksum aside."""

    format: int
    round: int
    files: dict[str, FileEntry]
    """By name."""
    notes: dict[str, Any]
    digest: NotRequired[str]
    """Digest of the run's options; earlier versions wrote none."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A completed round."""

    round: int
    parts: Mapping[str, Tensors]
    """Name of the part -> name of the tensor -> tensor; read when it is asked for, where they are many."""
    notes: dict[str, Any]
    """The round loop's own state."""


class Checkpoints:
    """The checkpoint of one run folder."""

    def __init__(self, run: Path, kept: int = 2, digest: str = "") -> None:
        """kept: so many saved rounds, the last one included. digest: of the run's options, which checkpoints must have
        been saved with; "" for any.
        """
        self.folder, self._kept, self._digest = run / "checkpoint", kept, digest
        self.rounds = run / SERVER_STATES
        self.index = self.folder / "checkpoint.json"
        # the index that the next round follows, and the names in it and in those before that are kept, where this
        # process has saved it: then nothing is read to save the next
        self._last: tuple[bytes, Index] | None = None
        self._generations: list[set[str]] = []
        self._pinned: set[str] = set()  # files that another thread reads
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # that saves
        self._failed: Exception | None = None  # what went wrong in it

    def save(self, round_: int, changed: Mapping[str, Part], notes: dict[str, Any]) -> None:
        """Write round ``round_``.

        changed: the parts that changed in it, each asked for once, in this order; the others stay as they were saved. A
        part without a tensor is none.

        Order matters: new files first, then the index that names them, then the files that nothing names any more.
        """
        self.wait()
        self._save(round_, changed, notes)

    def save_behind(
        self, round_: int, changed: Mapping[str, Part], notes: dict[str, Any], then: Callable[[], None]
    ) -> None:
        """Write round ``round_`` in a thread, after the one that is being written. Nobody may change the tensors.

        then: is called when it is written. What goes wrong is raised by the next ``save``, ``save_behind``, ``load`` or
        ``wait``.
        """
        self.wait()
        notes = copy.deepcopy(notes)  # the loop goes on with its own

        def work() -> None:
            try:
                self._save(round_, changed, notes)
                then()
            except Exception as error:
                self._failed = error

        self._thread = threading.Thread(target=work, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written; raise what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _save(self, round_: int, changed: Mapping[str, Part], notes: dict[str, Any]) -> None:
        known, self._generations = self._generations, []  # until all is done: a save that fails leaves files behind
        self.folder.mkdir(parents=True, exist_ok=True)
        before, old = self._last or self._read_index()
        files = _without(old["files"] if old else {}, changed.keys())
        groups: dict[str, dict[str, Part]] = {}
        for name, part in changed.items():
            groups.setdefault(_kind(name), {})[name] = part
        for kind, parts in groups.items():
            files = self._write_all(kind, round_, parts, files)
        sync_folder(self.folder)
        index: Index = {"format": FORMAT, "round": round_, "files": files, "notes": notes, "digest": self._digest}
        # as ``seal`` has it, and in one line: with line breaks it takes ten times as long
        sealed = json.dumps(index, sort_keys=True)
        text = f'{sealed[:-1]}, "sha256": "{hashlib.sha256(sealed.encode()).hexdigest()}"}}'.encode()
        with self._lock:
            if before and old and self._kept > 1:
                draft = self.folder / ".before.tmp"
                draft.unlink(missing_ok=True)  # somebody else may have put a link there
                draft.write_bytes(before)  # not synced: it is for the case that the new one is damaged
                draft.replace(self.folder / f"checkpoint-{old['round']:06d}.json")
            write_atomically(self.index, text)
            self._last = text, {**index, "notes": {}}
            name = f"checkpoint-{old['round']:06d}.json" if old and self._kept > 1 else ""
            self._generations = self._forget(index, name, known) if known else self._sweep(index)

    def keep(self, round_: int, state: Tensors) -> None:
        """Write the state after round ``round_`` where it stays; the same state gives the same bytes."""
        self.rounds.mkdir(parents=True, exist_ok=True)
        write_atomically(self.rounds / f"{round_:05d}.safetensors", _bytes(state))

    def kept(self) -> list[int]:
        """Return the rounds whose state was kept, ascending."""
        return sorted(int(path.stem) for path in self.rounds.glob("[0-9]*.safetensors"))

    def read_kept(self, round_: int) -> Tensors:
        """Return a kept state. Raise InputError where the file is missing or damaged."""
        path = self.rounds / f"{round_:05d}.safetensors"
        try:
            return tensors(regular(path).read_bytes())
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing: evaluation.save_state_every did not name this round") from error
        except WeightsError as error:
            raise InputError(f"{path} is damaged ({error}); delete it, the other rounds can do without it") from error

    @contextmanager
    def pinned(self) -> Iterator[bytes | None]:
        """Keep the files of the checkpoint as they are within the block, whatever is saved meanwhile.

        For another thread than the one that saves. Yields the text of the index, None where there is none.
        """
        with self._lock:
            text, index = self._read_index()
            self._pinned = set(index["files"]) if index else set()
        try:
            yield text
        finally:
            with self._lock:
                self._pinned = set()

    def tidy(self) -> None:
        """Delete what was pinned when it went out of use; not while a round is being saved."""
        _, index = self._read_index()
        if index is not None:
            self._sweep(index)

    def _forget(self, index: Index, before: str, known: list[set[str]]) -> list[set[str]]:
        """Delete what the save of this index put out of use; return the names that each kept index has, the last one
        first. before: the name that the index of the round before has now, empty where it is gone; known: their names
        before the save.
        """
        files = {self.index.name, *index["files"]}
        last, *earlier = known
        moved = last - {self.index.name}
        generations = [files, *([moved | {before}] if before else []), *earlier][: self._kept]
        named = set[str]().union(*generations, self._pinned)
        for name in moved.union(*earlier) - named:
            (self.folder / name).unlink(missing_ok=True)
        return generations

    def _sweep(self, index: Index) -> list[set[str]]:
        """Delete every file of a checkpoint that no kept index names; return the names that each does, the last one
        first.
        """
        generations = [{self.index.name, *index["files"]}]
        for before in self._earlier()[: self._kept - 1]:
            try:
                files = index_of(read_text_bytes(before), before)["files"]
            except InputError:  # of no use to anybody
                continue
            generations.append({before.name, *files})
        named = set[str]().union(*generations, self._pinned)
        for path in self.folder.iterdir():
            if path.name not in named and _OWN.fullmatch(path.name) and not path.is_dir():
                path.unlink()
        return generations

    def load(self, log: Callable[[str], None] = say) -> Checkpoint | None:
        """Return the last saved round that is whole, or None where none was saved; ``log`` hears of damaged ones.

        Raises InputError where all are damaged.
        """
        self.wait()
        errors: list[Exception] = []
        earlier = self._earlier()
        if not earlier and not self.index.exists():
            return None
        for path in [self.index, *earlier]:
            try:
                text = read_text_bytes(path)
                index = index_of(text, path)
                self._check_digest(index, path)
                parts = self._parts(index["files"])
            except (InputError, FileNotFoundError) as error:
                errors.append(error)
                continue
            for damage in errors:
                log(f"{damage}: taking the checkpoint of round {index['round']}")
            self._last, self._generations = (text, index), []
            return Checkpoint(index["round"], parts, index["notes"])
        raise InputError(f"{errors[0]}; start the run anew in another --output")

    def _parts(self, files: Mapping[str, FileEntry]) -> Mapping[str, Tensors]:
        """Return the parts of some files, each of which is read here and found whole. InputError where one is not."""
        held, size = dict[str, Tensors](), 0
        for name, entry in files.items():
            parts = self._read(name, entry)
            size += sum(value.nbytes for part in parts.values() for value in part.values())
            if size < FILE_BYTES:
                held |= parts
            else:
                held.clear()
        return held if size < FILE_BYTES else _PartsOnDisk(self._read, files)

    def _check_digest(self, index: Index, path: Path) -> None:
        saved = index.get("digest", "")
        if self._digest and saved and saved != self._digest:
            raise InputError(f"{path} is of another run (digest {saved[:8]}, and this one has {self._digest[:8]})")

    def _earlier(self) -> list[Path]:
        """Return the indices of rounds before the last, the latest first."""
        return sorted(self.folder.glob("checkpoint-[0-9]*.json"), reverse=True)

    def _read_index(self) -> tuple[bytes | None, Index | None]:
        if not self.index.exists():
            return None, None
        text = self.index.read_bytes()
        return text, index_of(text, self.index)

    def _write_all(
        self, kind: str, round_: int, changed: Mapping[str, Part], files: dict[str, FileEntry]
    ) -> dict[str, FileEntry]:
        """Write parts of a kind, and what they leave in use of files that are mostly out of use, into as few files as
        hold them; return the files.
        """
        held, size, written = dict[str, Tensors](), 0, 0
        for name, part in self._with_sparse(files, kind, changed):
            held[name], size = part, size + sum(value.nbytes for value in part.values())
            if size >= FILE_BYTES:
                files = self._write(_file(kind, round_, written), held, files)
                held, size, written = {}, 0, written + 1
        return self._write(_file(kind, round_, written), held, files) if held else files

    def _with_sparse(
        self, files: Mapping[str, FileEntry], kind: str, changed: Mapping[str, Part]
    ) -> Iterator[tuple[str, Tensors]]:
        count = 0
        for name, part in changed.items():
            if values := part() if callable(part) else part:  # not of clients that keep nothing, often thousands
                count += 1
                yield name, values
        yield from self._sparse(files, kind, count)

    def _write(self, name: str, parts: Mapping[str, Tensors], files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        """Write parts into a file; return the files, which have them no longer. Who names it syncs the folder first."""
        data = _bytes({f"{part}/{tensor}": value for part, values in parts.items() for tensor, value in values.items()})
        write_synced(self.folder / name, data)
        entry: FileEntry = {"sha256": hashlib.sha256(data).hexdigest(), "parts": list(parts), "written": len(parts)}
        return _without(files, parts.keys()) | {name: entry}

    def _sparse(self, files: Mapping[str, FileEntry], kind: str, most: int) -> Iterator[tuple[str, Tensors]]:
        """Yield what is in use of files that are less than half in use, those with the fewest parts first, at most so
        many parts: a round writes no more than twice what it changed, and the folder holds at most twice what is in
        use, but for the rounds that it is behind.
        """
        half = [n for n, entry in files.items() if _kind(n) == kind and 2 * len(entry["parts"]) < entry["written"]]
        moved = 0
        for name in sorted(half, key=lambda n: len(files[n]["parts"])):
            if moved + len(files[name]["parts"]) > most:
                break
            try:
                parts = self._read(name, files[name])
            except InputError:  # whoever loads it will say so
                continue
            moved += len(parts)
            yield from parts.items()

    def _read(self, name: str, entry: FileEntry) -> dict[str, Tensors]:
        """Return the parts of a file."""
        path = named_file(self.folder, name, self.index)
        try:
            data = regular(path).read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing, though a checkpoint names it") from error
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise InputError(f"{path} does not have the checksum that its checkpoint states")
        try:
            values = tensors(data)
        except WeightsError as error:
            raise InputError(f"{path} is no safetensors file ({error})") from error
        parts: dict[str, Tensors] = {name: {} for name in entry["parts"]}
        for name, value in values.items():
            part, _, tensor = name.partition("/")
            if part in parts:
                parts[part][tensor] = value
        if missing := [part for part, values in parts.items() if not values]:
            raise InputError(f"{path} does not hold {missing[0]!r}, though a checkpoint says so")
        return parts


class _PartsOnDisk(Mapping[str, Tensors]):
    """The parts of some files, of which one at a time is held."""

    def __init__(self, read: Callable[[str, FileEntry], dict[str, Tensors]], files: Mapping[str, FileEntry]) -> None:
        self._read, self._files = read, files
        self._file_of = {part: name for name, entry in files.items() for part in entry["parts"]}
        self._held: tuple[str, dict[str, Tensors]] = "", {}

    def __getitem__(self, part: str) -> Tensors:
        name = self._file_of[part]
        if self._held[0] != name:
            self._held = "", {}  # before the next one is read
            self._held = name, self._read(name, self._files[name])
        return self._held[1][part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


def index_of(data: bytes, where: object, hint: str = "") -> Index:
    """Return the index that these bytes are.

    hint: what can be done about damage. Raises InputError where they are damaged, of another format, or name a file
    that does not lie beside them.
    """
    content = parsed(data, dict[str, Any], where, hint)
    if content.get("format", FORMAT) != FORMAT:
        raise InputError(f"{where} has format {content['format']}, this version reads {FORMAT}; start the run anew")
    stated = content.pop("sha256", "")
    fault = type_error(content, Index) or ("" if stated == seal(content) else "its checksum does not fit")
    names = [] if fault else list(content["files"])
    fault = fault or next((f"{name!r} is no part beside it" for name in names if not _beside(name)), "")
    if fault:
        raise InputError(f"{where} is damaged ({fault})" + (f"; {hint}" if hint else ""))
    index: Index = content
    return index


def _kind(name: str) -> str:
    """Return the kind of a part or a file: what stands before its numbers. Parts of a kind share files."""
    stem = name.removesuffix(".safetensors")
    while (cut := stem.rpartition("-"))[2].isdecimal():
        stem = cut[0]
    return stem


def _file(kind: str, round_: int, number: int) -> str:
    """Return the name of a file. number: among those of its kind and round, from 0."""
    return f"{kind}-{round_:06d}{f'-{number}' if number else ''}.safetensors"


def _without(files: Mapping[str, FileEntry], parts: Collection[str]) -> dict[str, FileEntry]:
    """Return the files without these parts; one that holds nothing else is left out."""
    left = {name: [part for part in entry["parts"] if part not in parts] for name, entry in files.items()}
    return {name: {**files[name], "parts": still} for name, still in left.items() if still}


_OWN = re.compile(r"checkpoint-\d+\.json|\..*\.tmp|.*\.safetensors")
"""Names of the files that a save leaves behind; what else somebody has put there stays."""


def _beside(name: str) -> bool:
    return Path(name).name == name and name.endswith(".safetensors") and name.isprintable()


def seal(index: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an index, without that of its own."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _bytes(part: Tensors) -> bytes:
    """Return tensors as a safetensors file, which takes none that lies where another does."""
    out, places = Tensors(), set[int]()
    for name, value in part.items():
        shared = value.numel() and value.data_ptr() in places
        places.add(value.data_ptr())
        out[name] = value.clone() if shared else value.contiguous()
    return save(out)
