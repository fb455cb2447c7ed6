"""Prepared data on disk: one Parquet file per client, one per split of the server, the plan, and a manifest.

Layout: ``<folder>/client-00000.parquet ... test.parquet validation.parquet class_counts.parquet partition.json
manifest.json``; ``client-test-00000.parquet ...`` where clients have test rows of their own. Columns of
``class_counts.parquet``: ``client``, ``class``, ``rows``, int64 (tasks/ingest/class_histogram.py); of the other Parquet
files: ``row`` int64 (tasks/ingest/row_numbers.py), ascending, ``x`` list<int32> (tokens), list<uint8> (images with
levels) or list<float32> (flattened; sparse: number of a feature, value, ...), ``labels`` list<int32> (the positives
that are disclosed), ``known`` list<int32> (the classes whose label is given; null: all that the client identifies, or
single-label all).

The folder may lie on object storage (tasks/files/object_store.py): each file then comes to this machine when it is
first asked for.

The manifest holds the digest of every file and of itself. Files are read into memory, held against their digests, and
parsed from there, so that what is used is what was checked.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anchorfl.tasks.arrays.arrow import Ints, Table, table_digest
from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.sparse_rows import SparseRows
from anchorfl.tasks.arrays.tensors import client_data
from anchorfl.tasks.contract import ClientData, Objective
from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.folders import cache_root, sync_folder
from anchorfl.tasks.ingest.cards import Cards
from anchorfl.tasks.ingest.class_histogram import ClassHistogram, class_counts
from anchorfl.tasks.ingest.manifest import HINT, MANIFEST, Manifest, manifest_bytes, read_manifest
from anchorfl.tasks.ingest.row_numbers import renumber_plan, row_places
from anchorfl.tasks.partition.plan import PartitionPlan, plan_from_json, plan_to_json

CLASS_COUNTS, PARTITION = "class_counts.parquet", "partition.json"
"""Files of the class histogram and the plan."""
GROUP_ROWS, GROUP_BYTES = 1 << 20, 1 << 30
"""Most rows, and about so many bytes, of a group of rows in a file: a group with 2^31 values cannot be read."""
Split = Literal["test", "validation"]
SERVER_SPLITS: tuple[Split, ...] = ("validation", "test")
ReadT = TypeVar("ReadT")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared folder."""

    folder: str
    """Folder on this machine."""
    manifest: Manifest
    origin: str = ""
    """Location on object storage from which files come when they are first asked for; empty: all are in ``folder``."""

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Prepared:
        """Return the prepared data in a folder, or at a location on object storage, of which only the manifest is
        brought here.

        Raises PreparedDataError where it is incomplete, damaged or of another format, InputError where the store cannot
        be used.
        """
        where = os.fspath(folder)
        if object_store.is_remote(where):
            return cls._load_remote(where)
        manifest = read_manifest(where)
        for name in file_list(manifest):
            if not os.path.isfile(f"{where}/{name}"):
                raise PreparedDataError(f"{where}: {name} is missing; {HINT}")
        return cls(where, manifest)

    @classmethod
    def of_process(cls, folder: str | os.PathLike[str]) -> Prepared:
        """Return ``load``, read once in a process as long as the manifest stays the same file: server, clients, scoring
        and records all ask for it, and with 100,000 clients it takes seconds to read.
        """
        where = os.fspath(folder)
        if object_store.is_remote(where):
            return cls.load(where)
        try:
            stat = os.stat(f"{where}/{MANIFEST}")
        except OSError:
            return cls.load(where)  # which says what is wrong
        return _loaded(where, (stat.st_ino, stat.st_size, stat.st_mtime_ns))

    @classmethod
    def _load_remote(cls, origin: str) -> Prepared:
        """Return the prepared data at a location, or those of this machine where it has prepared the same itself."""
        name, root = object_store.last_name(origin), cache_root("")
        if (root / name / MANIFEST).is_file():
            return replace(cls.load(root / name), origin=origin)
        copy = root / f"{name}-fetched-{hashlib.sha256(origin.encode()).hexdigest()[:8]}"
        try:
            object_store.download(object_store.join(origin, MANIFEST), copy / MANIFEST)
        except FileNotFoundError as error:
            shown = object_store.shown(origin)
            raise PreparedDataError(
                f"{shown} holds no complete prepared data; start the run again, which prepares them"
            ) from error
        return cls(str(copy), read_manifest(str(copy)), origin)

    @property
    def location(self) -> str:
        """The argument of ``load`` on any machine."""
        return self.origin or self.folder

    def content(self, name: str) -> bytes:
        """Return the bytes of one of the files, held against the manifest.

        Raises PreparedDataError where they are missing or not those that were prepared, InputError where the store
        cannot be used.
        """
        path, digest = Path(self.folder) / name, self.manifest.files.get(name, "")
        try:
            if self.origin:
                object_store.download(object_store.join(self.origin, name), path, digest)
            data = path.read_bytes()
        except FileNotFoundError as error:
            where = object_store.shown(self.origin or self.folder)
            raise PreparedDataError(f"{where}: {name} is missing; {HINT}") from error
        except OSError as error:
            raise PreparedDataError(f"{path} cannot be read ({error.strerror}); {HINT}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise PreparedDataError(f"{path} is damaged (its digest is not the one in {MANIFEST}); {HINT}")
        return data

    def client(self, client: int, objective: Objective) -> ClientData:
        """Return all rows of a client, with the labels that it may see, in ascending order of their raw ids.

        This and all that follows raise as ``content`` does.
        """
        name = self._file_of(client)
        known = self.manifest.classes[client] if self.manifest.kind == "multi" else None
        return self._parse(name, self._dense(objective, known))

    def sparse_client(self, client: int) -> SparseRows:
        """Return the same without a matrix of labels, whatever the number of rows and classes."""
        return self._read(self._file_of(client), self._sparse)

    def client_columns(self, client: int, columns: Sequence[str]) -> Table:
        """Return some columns of the same, ``row`` among them: places in ascending order of the raw ids."""
        return self._read(self._file_of(client), lambda table: table, columns)

    def split(self, name: Split, objective: Objective) -> ClientData:
        """Return a split of the server, labeled as far as the raw data are."""
        return self._parse(f"{name}.parquet", self._dense(objective))

    def client_test(self, client: int, objective: Objective) -> ClientData:
        """Return a client's own test rows, labeled as far as the raw data are."""
        return self._parse(client_test_file(client), self._dense(objective))

    def sparse_client_test(self, client: int) -> SparseRows:
        """Return the same without a matrix of labels, whatever the number of classes."""
        return self._read(client_test_file(client), self._sparse)

    def split_counts(self, name: Split) -> Ints:
        """Return the rows of a split that have each class, int64 [C], without its inputs."""
        classes = len(self.manifest.class_names)
        return self._parse(f"{name}.parquet", lambda t: Labels.of_lists(t["labels"], classes).counts(), ["labels"])

    def sparse_split(self, name: Split) -> SparseRows:
        """Return the same without a matrix of labels, whatever the number of classes."""
        return self._read(f"{name}.parquet", self._sparse)

    def class_histogram(self) -> ClassHistogram:
        """Return the number of rows per client and class."""
        clients, classes = len(self.manifest.examples), len(self.manifest.class_names)
        return self._parse(CLASS_COUNTS, lambda table: ClassHistogram.from_table(table, clients, classes))

    def size(self, name: Split) -> int:
        """Return the number of rows of a split of the server."""
        return self.manifest.test if name == "test" else self.manifest.validation

    def cards(self) -> Cards:
        """Return the cards of the clients, in their order."""
        m = self.manifest
        return Cards(len(m.class_names), m.examples, m.counts, m.classes)

    def plan(self) -> PartitionPlan:
        """Return the partition; its ids of rows are places in ascending order of the raw ids."""
        return renumber_plan(plan_from_json(self.content(PARTITION).decode()), lambda row_B: self._place_N[row_B])

    @property
    def _place_N(self) -> Ints:
        return row_places(self.manifest.raw_digest, self.manifest.raw_rows)

    def _in_raw_order(self, table: Table) -> Table:
        """Return the rows of a file in ascending order of their raw ids, with their places in it as ids."""
        order_B = self._order(table)
        table = Chunks.of(table).take(order_B)
        place_B = self._place_N[table["row"].to_numpy()]
        return table.set_column(table.column_names.index("row"), "row", pa.array(place_B))

    def _order(self, table: Table) -> Ints:
        """Return the positions of the rows of a file in ascending order of their raw ids."""
        return np.argsort(self._place_N[table["row"].to_numpy()])

    def _dense(self, objective: Objective, known: Sequence[int] | None = None) -> Callable[[Any], ClientData]:
        """Return the conversion of a table to tensors.

        known: the classes that are known in a row unless it says otherwise; None: every class.
        """
        spec, classes = self.manifest.spec, len(self.manifest.class_names)
        default = range(classes) if known is None else known
        # the tensors are put in order as they are made: to bring the table in order first takes longer
        return lambda table: client_data(table, spec, classes, objective, default, self._order(table))

    def _file_of(self, client: int) -> str:
        if not 0 <= client < len(self.manifest.examples):
            raise IndexError(f"there is no client {client}: the clients are 0..{len(self.manifest.examples) - 1}")
        return client_file(client)

    def _sparse(self, table: Table) -> SparseRows:
        return SparseRows.of(table, self.manifest.spec, len(self.manifest.class_names))

    def _read(self, name: str, convert: Callable[[Any], ReadT], columns: Sequence[str] | None = None) -> ReadT:
        """Return what ``convert`` makes of the rows of a file, or of some of their columns."""
        return self._parse(name, lambda table: convert(self._in_raw_order(table)), columns)

    def _parse(self, name: str, convert: Callable[[Any], ReadT], columns: Sequence[str] | None = None) -> ReadT:
        """Return what ``convert`` makes of a Parquet file."""
        source = pa.BufferReader(self.content(name))
        try:
            return convert(pq.read_table(source, columns=columns, use_threads=False))  # as its client has one CPU
        except MemoryError:  # Arrow's is an ArrowException, too
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            raise PreparedDataError(f"{self.folder}/{name} is damaged ({error}); {HINT}") from error


@lru_cache(maxsize=4)
def _loaded(folder: str, identity: tuple[int, int, int]) -> Prepared:
    """Return the prepared data of a folder. identity: inode, size and time of the manifest as it is now."""
    return Prepared.load(folder)


def client_file(client: int) -> str:
    """Return the name of a client's Parquet file."""
    return f"client-{client:05d}.parquet"


def client_test_file(client: int) -> str:
    """Return the name of the Parquet file of a client's own test rows."""
    return f"client-test-{client:05d}.parquet"


def file_list(manifest: Manifest) -> list[str]:
    """Return the names of all files that a complete folder holds, the manifest apart."""
    return [
        *(client_file(client) for client in range(len(manifest.examples))),
        *(client_test_file(client) for client in range(len(manifest.client_test))),
        "test.parquet",
        "validation.parquet",
        CLASS_COUNTS,
        PARTITION,
    ]


def table_bytes(table: Table) -> tuple[bytes, str]:
    """Return a table as a Parquet file, and the digest of its content."""
    stream = io.BytesIO()
    rows = max(1, int(GROUP_BYTES * table.num_rows / max(1, table.nbytes)))
    pq.write_table(table, stream, row_group_size=min(rows, GROUP_ROWS), compression="zstd")
    return stream.getvalue(), table_digest(table)


def write_file(folder: str, name: str, data: bytes) -> str:
    """Write one file, synced to disk, and return the sha256 of its bytes."""
    with open(f"{folder}/{name}", "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return hashlib.sha256(data).hexdigest()


def write_manifest(folder: str, manifest: Manifest, plan: PartitionPlan, histogram: ClassHistogram) -> None:
    """Write plan, class histogram and manifest, synced to disk; the manifest last, as it makes the folder complete."""
    others = {CLASS_COUNTS: table_bytes(histogram.table())[0], PARTITION: plan_to_json(plan).encode()}
    files = {**manifest.files, **{name: write_file(folder, name, data) for name, data in others.items()}}
    write_file(folder, MANIFEST, manifest_bytes(replace(manifest, files=files)))
    sync_folder(folder)


def training_counts(data: Prepared) -> tuple[int, Ints]:
    """Return the number of different training rows of all clients, and how many of them have each class, int64 [C].

    For scoring, never for a method.
    """
    rows = len(np.unique(np.concatenate([client.rows for client in data.plan().clients])))
    return rows, class_counts(data.manifest, data.class_histogram())
