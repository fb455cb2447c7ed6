"""Prepared data on disk: files of rows, the partition, and a manifest.

Layout: ``<folder>/rows-00000.parquet ... extents.parquet clients.parquet class_counts.parquet partition.parquet
manifest.json``. Columns of the files of rows: ``row`` int64 (tasks/ingest/row_numbers.py), of each owner ascending,
``x`` list<int32> (tokens), list<uint8> (images with levels) or list<float32> (flattened; sparse: number of a feature,
value, ...), ``labels`` list<int32> (the positives that are disclosed), ``known`` list<int32> (the classes whose label
is given; null: all that the client identifies, or single-label all). Those of ``class_counts.parquet``
(tasks/ingest/class_histogram.py): ``client``, ``class``, ``rows``, int64; of ``partition.parquet``:
tasks/partition/plan.py.

The folder may lie on object storage (tasks/files/object_store.py): what an owner has then comes to this machine when it
is first asked for.

The manifest holds the digest of every file and of itself, the extents those of every owner's rows. What is read is held
against its digest in memory, and parsed from there, so that what is used is what was checked.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anchorfl.tasks.arrays.arrow import Ints, Table
from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.sparse_rows import SparseRows
from anchorfl.tasks.arrays.tensors import client_data
from anchorfl.tasks.contract import ClientData, Objective
from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.folders import cache_root
from anchorfl.tasks.ingest.cards import Cards
from anchorfl.tasks.ingest.class_histogram import ClassHistogram, class_counts
from anchorfl.tasks.ingest.manifest import CLIENTS, EXTENTS_FILE, HINT, MANIFEST, Manifest, Summary, read_summary
from anchorfl.tasks.ingest.row_numbers import renumber_plan, row_places
from anchorfl.tasks.ingest.rows_files import Extent, footer_start, owner_name, read_footer, read_rows_of, rows_file
from anchorfl.tasks.partition.plan import PartitionPlan, plan_of_table

CLASS_COUNTS, PARTITION = "class_counts.parquet", "partition.parquet"
"""Files of the class histogram and the plan."""
FOOTERS = 64
"""Footers of files of rows that a process keeps."""
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
        summary = read_summary(where)
        count = len(summary.files) if summary.options.sites else 0  # rows of others are at other sites
        for name in summary.files.keys() - {rows_file(number) for number in range(count)}:
            if not os.path.isfile(f"{where}/{name}"):
                raise PreparedDataError(f"{where}: {name} is missing; {HINT}")
        return cls(where, _manifest_of(where, "", summary))

    @classmethod
    def of_process(cls, folder: str | os.PathLike[str]) -> Prepared:
        """Return ``load``, read once in a process as long as the manifest stays the same file: server, clients, scoring
        and records all ask for it.
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
        return cls(str(copy), _manifest_of(str(copy), origin, read_summary(str(copy))), origin)

    @property
    def location(self) -> str:
        """The argument of ``load`` on any machine."""
        return self.origin or self.folder

    def rows(self, owner: int, columns: Sequence[str] | None = None) -> Table:
        """Return the rows of an owner (tasks/ingest/rows_files.py) as they are stored, or some of their columns.

        This and all that follows raise PreparedDataError where bytes are missing or not those that were prepared,
        InputError where the store cannot be used.
        """
        return self._parse(owner, lambda table: table, columns)

    def client(self, client: int, objective: Objective) -> ClientData:
        """Return all rows of a client, with the labels that it may see, in ascending order of their raw ids."""
        owner = self._owner_of(client)
        known = self.manifest.classes[client] if self.manifest.kind == "multi" else None
        return self._parse(owner, self._dense(objective, known))

    def sparse_client(self, client: int) -> SparseRows:
        """Return the same without a matrix of labels, whatever the number of rows and classes."""
        return self._read(self._owner_of(client), self._sparse)

    def client_columns(self, client: int, columns: Sequence[str]) -> Table:
        """Return some columns of the same, ``row`` among them: places in ascending order of the raw ids."""
        return self._read(self._owner_of(client), lambda table: table, columns)

    def split(self, name: Split, objective: Objective) -> ClientData:
        """Return a split of the server, with the labels that its rows show."""
        return self._parse(self._owner_of_split(name), self._dense(objective))

    def client_test(self, client: int, objective: Objective) -> ClientData:
        """Return a client's own test rows, labeled as far as the raw data are."""
        return self._parse(self._owner_of_test(client), self._dense(objective))

    def sparse_client_test(self, client: int) -> SparseRows:
        """Return the same without a matrix of labels, whatever the number of classes."""
        return self._read(self._owner_of_test(client), self._sparse)

    def split_counts(self, name: Split) -> Ints:
        """Return the rows of a split that have each class, int64 [C], without its inputs."""
        classes = len(self.manifest.class_names)
        owner = self._owner_of_split(name)
        return self._parse(owner, lambda t: Labels.of_lists(t["labels"], classes).counts(), ["labels"])

    def sparse_split(self, name: Split) -> SparseRows:
        """Return the same without a matrix of labels, whatever the number of classes."""
        return self._read(self._owner_of_split(name), self._sparse)

    def class_histogram(self) -> ClassHistogram:
        """Return the number of rows per client and class."""
        clients, classes = len(self.manifest.examples), len(self.manifest.class_names)
        return self._file(CLASS_COUNTS, lambda table: ClassHistogram.from_table(table, clients, classes))

    def size(self, name: Split) -> int:
        """Return the number of rows of a split of the server."""
        return self.manifest.test if name == "test" else self.manifest.validation

    def cards(self) -> Cards:
        """Return the cards of the clients, in their order."""
        m = self.manifest
        return Cards(len(m.class_names), m.examples, m.counts, m.classes)

    def plan(self) -> PartitionPlan:
        """Return the partition; its ids of rows are places in ascending order of the raw ids."""
        return renumber_plan(self.stored_plan(), lambda row_B: self._place_N[row_B])

    def stored_plan(self) -> PartitionPlan:
        """Return the partition with the numbers of rows as ids."""
        m = self.manifest
        return self._file(PARTITION, lambda table: plan_of_table(table, m.classes, m.seed, bool(m.client_test)))

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

    def _owner_of(self, client: int) -> int:
        if not 0 <= client < len(self.manifest.examples):
            raise IndexError(f"there is no client {client}: the clients are 0..{len(self.manifest.examples) - 1}")
        return client

    def _owner_of_split(self, name: Split) -> int:
        return len(self.manifest.examples) + (name == "validation")

    def _owner_of_test(self, client: int) -> int:
        return len(self.manifest.examples) + 2 + client

    def _sparse(self, table: Table) -> SparseRows:
        return SparseRows.of(table, self.manifest.spec, len(self.manifest.class_names))

    def _read(self, owner: int, convert: Callable[[Any], ReadT], columns: Sequence[str] | None = None) -> ReadT:
        """Return what ``convert`` makes of the rows of an owner, or of some of their columns, in raw order."""
        return self._parse(owner, lambda table: convert(self._in_raw_order(table)), columns)

    def _parse(self, owner: int, convert: Callable[[Any], ReadT], columns: Sequence[str] | None = None) -> ReadT:
        """Return what ``convert`` makes of the rows of an owner as they are stored, or of some of their columns."""
        extent = Extent.of(self.manifest.extents, owner)
        name = rows_file(extent.file)
        start = footer_start(self.manifest.extents, extent.file)
        footer = _footer(self.folder, self.origin, name, self.manifest.files.get(name, ""), start)
        whose = owner_name(owner, len(self.manifest.examples))
        part = extent.offset, extent.size
        data = _content(self.folder, self.origin, name, extent.sha256.hex(), part, f"the rows of {whose} do")
        return _parsed(self.folder, name, lambda: convert(read_rows_of(extent, data, footer, columns)))

    def _file(self, name: str, convert: Callable[[Any], ReadT]) -> ReadT:
        """Return what ``convert`` makes of one of the other Parquet files."""
        return _file(self.folder, self.origin, name, self.manifest, convert)


@lru_cache(maxsize=4)
def _loaded(folder: str, identity: tuple[int, int, int]) -> Prepared:
    """Return the prepared data of a folder. identity: inode, size and time of the manifest as it is now."""
    return Prepared.load(folder)


def _content(
    folder: str, origin: str, name: str, digest: str, part: tuple[int, int] | None = None, what: str = "it does"
) -> bytes:
    """Return a prepared file, or a part of it, that has this sha256. Errors as ``Prepared.rows``.

    part: first byte and number of bytes, -1: up to the end.
    """
    path, place = Path(folder) / name, part
    try:
        if origin and not path.exists():  # else this machine has prepared it
            path = path if part is None else path.with_name(f"{name}.{part[0]}")
            object_store.download(object_store.join(origin, name), path, digest, part)
            place = None
        start, size = place or (0, -1)
        with path.open("rb") as stream:
            stream.seek(start)
            data = stream.read(size)
    except FileNotFoundError as error:
        where = object_store.shown(origin or folder)
        raise PreparedDataError(f"{where}: {name} is missing; {HINT}") from error
    except OSError as error:
        raise PreparedDataError(f"{path} cannot be read ({error.strerror}); {HINT}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise PreparedDataError(f"{path} is damaged: {what} not have the digest that is stated; {HINT}")
    return data


@lru_cache(maxsize=FOOTERS)
def _footer(folder: str, origin: str, name: str, digest: str, start: int) -> Any:
    """Return the metadata of a file of rows. start: of its footer, which has this digest."""
    data = _content(folder, origin, name, digest, (start, -1), "its end does")
    return _parsed(folder, name, lambda: read_footer(data))


def _file(folder: str, origin: str, name: str, summary: Summary, convert: Callable[[Any], ReadT]) -> ReadT:
    """Return what ``convert`` makes of a Parquet file that is read as a whole."""
    data = _content(folder, origin, name, summary.files.get(name, ""))
    return _parsed(folder, name, lambda: convert(pq.read_table(pa.BufferReader(data), use_threads=False)))


def _parsed(folder: str, name: str, parse: Callable[[], ReadT]) -> ReadT:
    """Return what is parsed from a file's bytes. Raises PreparedDataError where it does not hold what it should."""
    try:
        return parse()
    except MemoryError:  # Arrow's is an ArrowException, too
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise PreparedDataError(f"{folder}/{name} is damaged ({error}); {HINT}") from error


def _manifest_of(folder: str, origin: str, summary: Summary) -> Manifest:
    """Return the manifest of a folder from its summary and the two tables beside it."""
    clients, extents = (_file(folder, origin, name, summary, lambda table: table) for name in (CLIENTS, EXTENTS_FILE))
    return _parsed(folder, CLIENTS, partial(Manifest.of, summary, clients, extents))


def table_bytes(table: Table) -> bytes:
    """Return a table as a Parquet file."""
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def training_counts(data: Prepared) -> tuple[int, Ints]:
    """Return the number of different training rows of all clients, and how many of them have each class, int64 [C].

    For scoring, never for a method.
    """
    rows = len(np.unique(np.concatenate([client.rows for client in data.plan().clients])))
    return rows, class_counts(data.manifest, data.class_histogram())
