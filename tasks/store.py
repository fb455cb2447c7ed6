"""Prepared data on disk: one Parquet file per client, one per split of the server, the plan, and a manifest.

Layout: ``<folder>/client-00000.parquet ... test.parquet validation.parquet plan.json manifest.json``. Columns of a
Parquet file: ``row`` int64, ``x`` list<int32> (tokens), list<uint8> (images with levels) or list<float32> (flattened;
sparse: number of a feature, value, ...), ``labels`` list<int32> (the positives that are disclosed), ``known``
list<int32> (the classes whose label is given; null: all that the client identifies, or single-label all). The folder
may lie on object storage (tasks/places.py): each file then comes to this machine when it is first asked for.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks import places
from tasks.cards import Cards
from tasks.columns import Ints, table_digest
from tasks.contract import ClientData, InputError, InputSpec, Kind, Objective, TaskOptions
from tasks.plans import Plan, digest, plan_from_json, plan_to_json
from tasks.sparse_split import SparseSplit
from tasks.tensors import client_data
from tasks.typed import misfit, parsed

FORMAT = 2
"""Version of the layout; part of the name of every cache folder."""
MANIFEST = "manifest.json"
MEND = "delete the folder and prepare the data again"
"""How errors about a prepared folder end."""

Split = Literal["test", "validation"]
SPLITS: tuple[Split, ...] = ("validation", "test")
Read = TypeVar("Read", ClientData, SparseSplit)
Counts = tuple[tuple[int, int], ...]
"""(class, rows) of the classes that occur, ascending: thousands of clients of thousands of classes stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a prepared folder holds, readable without opening a Parquet file."""

    task: str
    class_names: tuple[str, ...]
    kind: Kind
    spec: InputSpec
    options: TaskOptions
    """As prepared, without ``root`` and ``cache``, which are matters of the machine."""
    seed: int
    raw_digest: str
    """sha256 over the raw files."""
    partition_digest: str
    data_digest: str
    """sha256 over the content of every Parquet file."""
    examples: tuple[int, ...]
    """Rows of every client."""
    counts: tuple[Counts, ...]
    """Known positives per client; what its card discloses."""
    held: tuple[Counts, ...]
    """All positives per client, known to it or not: for pictures and checks, never for a method."""
    classes: tuple[tuple[int, ...], ...]
    """Identified classes of every client."""
    test: int
    """Rows of the test split."""
    validation: int
    """Rows of the validation split."""
    files: Mapping[str, str] = field(default_factory=dict)
    """sha256 over the bytes of every other file, by its name; empty in folders of earlier versions."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared folder. origin: where its files come from when they are first asked for, on object storage; empty:
    all of them are in ``folder``.
    """

    folder: str
    manifest: Manifest
    origin: str = ""

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Prepared:
        """The prepared data in a folder, or at a place on object storage, of which only the manifest is brought here.

        Raises InputError where it is incomplete or of another format, or the store cannot be used.
        """
        where = os.fspath(folder)
        if places.is_remote(where):
            return cls._at(where)
        manifest = _read_manifest(where)
        for name in file_list(len(manifest.examples)):
            if not os.path.isfile(f"{where}/{name}"):
                raise InputError(f"{where}: {name} is missing; {MEND}")
        return cls(where, manifest)

    @classmethod
    def _at(cls, origin: str) -> Prepared:
        """A place on object storage; nothing is brought here where this machine has prepared the same data itself."""
        name, root = places.last_name(origin), cache_root("")
        if (root / name / MANIFEST).is_file():
            return replace(cls.load(root / name), origin=origin)
        copy = root / f"{name}-fetched-{hashlib.sha256(origin.encode()).hexdigest()[:8]}"
        try:
            places.fetch(places.join(origin, MANIFEST), copy / MANIFEST)
        except FileNotFoundError as error:
            msg = f"{places.shown(origin)} holds no complete prepared data; start the run again, which prepares them"
            raise InputError(msg) from error
        return cls(str(copy), _read_manifest(str(copy)), origin)

    @property
    def place(self) -> str:
        """What to give to ``load`` on any machine."""
        return self.origin or self.folder

    def file(self, name: str) -> str:
        """Path of one of the files on this machine. Raises InputError where it cannot be brought here."""
        path = Path(self.folder) / name
        if self.origin:
            try:
                places.fetch(places.join(self.origin, name), path, self.manifest.files.get(name, ""))
            except FileNotFoundError as error:
                raise InputError(f"{places.shown(self.origin)}: {name} is missing; {MEND}") from error
        return str(path)

    def client(self, client: int, objective: Objective) -> ClientData:
        """All rows of one client, with the labels that it may see. Raises InputError where the file is damaged."""
        if not 0 <= client < len(self.manifest.examples):
            raise IndexError(f"there is no client {client}: the clients are 0..{len(self.manifest.examples) - 1}")
        known = self.manifest.classes[client] if self.manifest.kind == "multi" else None
        return self._read(client_file(client), self.manifest.examples[client], self._dense(objective, known))

    def split(self, name: Split, objective: Objective) -> ClientData:
        """A split of the server, labelled as far as the raw data are."""
        return self._read(f"{name}.parquet", self.size(name), self._dense(objective))

    def sparse_split(self, name: Split) -> SparseSplit:
        """The same without a matrix of labels, whatever the number of classes."""
        spec, classes = self.manifest.spec, len(self.manifest.class_names)
        return self._read(f"{name}.parquet", self.size(name), lambda table: SparseSplit.of(table, spec, classes))

    def size(self, name: Split) -> int:
        """Rows of a split of the server."""
        return self.manifest.test if name == "test" else self.manifest.validation

    def cards(self) -> Cards:
        """What the clients disclose before training, in client order."""
        m = self.manifest
        return Cards(len(m.class_names), m.examples, m.counts, m.classes)

    def plan(self) -> Plan:
        """The partition. Raises InputError where it is not the manifest's."""
        try:
            with open(self.file("plan.json"), encoding="utf-8") as stream:
                plan = plan_from_json(stream.read())
        except ValueError as error:  # an InputError, which does not say where; no UTF-8
            raise InputError(f"{self.folder}/plan.json is damaged ({error}); {MEND}") from error
        if digest(plan) != self.manifest.partition_digest:
            raise InputError(f"{self.folder}/plan.json is not the manifest's plan; {MEND}")
        return plan

    def _dense(self, objective: Objective, known: Sequence[int] | None = None) -> Callable[[Any], ClientData]:
        """known: the classes that are known in a row unless it says otherwise; None: every class."""
        spec, classes = self.manifest.spec, len(self.manifest.class_names)
        return lambda table: client_data(table, spec, classes, objective, range(classes) if known is None else known)

    def _read(self, name: str, rows: int, made: Callable[[Any], Read]) -> Read:
        path = self.file(name)
        try:
            # one thread, as its client has one CPU; no partitioning: a '=' in the path is not a column
            data = made(pq.read_table(path, use_threads=False, partitioning=None))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is damaged ({error}); {MEND}") from error
        if len(data) != rows:
            raise InputError(f"{path} has {len(data)} rows, not {rows}; {MEND}")
        return data


def cache_root(cache: str) -> Path:
    """The cache folder of this machine; ``cache``: the user's choice, which object storage is not.

    Raises InputError where ``ANCHORFL_CACHE`` is an address.
    """
    root = ("" if places.is_remote(cache) else cache) or os.environ.get("ANCHORFL_CACHE", "") or "~/.cache/anchorfl"
    if places.is_remote(root):
        msg = f"ANCHORFL_CACHE = {places.shown(root)!r} must be a folder of this machine"
        raise InputError(f"{msg}; give the address as task.cache")
    return Path(root).expanduser().absolute()


def cache_folder(name: str, options: TaskOptions, seed: int, raw: str) -> Path:
    """Where the prepared data of a task belong: their name holds a digest of format, raw files, options and seed.

    Where the files lie does not matter to the content, so no folder is in it.
    """
    parquet, names = (Path(path).name for path in (options.parquet, options.class_names))
    here = replace(options, root="", cache="", parquet=parquet, class_names=names)
    # only what differs from its default, so that a new option leaves prepared data as they are
    changed = {f.name: getattr(here, f.name) for f in fields(here) if getattr(here, f.name) != f.default}
    content = json.dumps([FORMAT, raw, changed, seed], sort_keys=True)
    return cache_root(options.cache) / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def client_file(client: int) -> str:
    """Name of a client's Parquet file."""
    return f"client-{client:05d}.parquet"


def pairs(count_C: Ints, among: AbstractSet[int] | None = None) -> Counts:
    """(class, rows) of the classes that occur; ``among``: only of these."""
    return tuple((c, int(count_C[c])) for c in np.flatnonzero(count_C).tolist() if among is None or c in among)


def file_list(clients: int) -> list[str]:
    """Names of all files that a complete folder holds, the manifest apart."""
    return [*(client_file(client) for client in range(clients)), "test.parquet", "validation.parquet", "plan.json"]


def table_bytes(table: Any) -> tuple[bytes, str]:
    """A table as a Parquet file, and the digest of its content."""
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue(), table_digest(table)


def write_file(folder: str, name: str, data: bytes) -> str:
    """Write one file, synced to disk; the sha256 of its bytes."""
    with open(f"{folder}/{name}", "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return hashlib.sha256(data).hexdigest()


def write_manifest(folder: str, manifest: Manifest, plan: Plan) -> None:
    """Write plan and manifest, synced to disk; the manifest last, as it makes the folder complete."""
    files = {**manifest.files, "plan.json": write_file(folder, "plan.json", plan_to_json(plan).encode())}
    content = {"format": FORMAT, **asdict(replace(manifest, files=files))}
    write_file(folder, MANIFEST, json.dumps(content, indent=1).encode())
    sync_folder(folder)


def data_digest(digests: Mapping[str, str]) -> str:
    """sha256 over file names and the digests of their content."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def sync_folder(folder: str) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_manifest(folder: str) -> Manifest:
    path = f"{folder}/{MANIFEST}"
    try:
        content: dict[str, Any] = parsed(Path(path).read_bytes(), dict[str, Any], path, MEND)
        version = content.pop("format", None)
        manifest = _manifest_of(content) if version == FORMAT else None
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing, so this is no complete prepared data; {MEND}") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error!r}); {MEND}") from error
    if manifest is None:
        raise InputError(f"{path} has format {version}, this version reads {FORMAT}; {MEND}")
    return manifest


def _manifest_of(content: dict[str, Any]) -> Manifest:
    each = {key: content.pop(key) for key in ("examples", "counts", "held", "classes")}  # long, so looked at as a whole
    if fault := misfit(content | {"examples": [], "counts": [], "held": [], "classes": []}, Manifest):
        raise ValueError(fault)
    pairs_ = (chain.from_iterable(each[key]) for key in ("counts", "held"))
    whole = chain(each["examples"], chain.from_iterable(each["classes"]), *map(chain.from_iterable, pairs_))
    if not set(map(type, whole)) <= {int}:
        raise ValueError("examples, counts, held and classes must be whole numbers")
    if len({len(value) for value in each.values()}) > 1:
        raise ValueError("examples, counts, held and classes must have as many clients")
    content["spec"] = InputSpec.of(content.pop("spec"))
    content["options"] = TaskOptions(**content.pop("options"))
    content["class_names"] = tuple(content["class_names"])
    content["examples"] = tuple(each["examples"])
    content["classes"] = tuple(tuple(row) for row in each["classes"])
    for key in ("counts", "held"):
        content[key] = tuple(tuple((class_, rows) for class_, rows in client) for client in each[key])
    return Manifest(**content)
