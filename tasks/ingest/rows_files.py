"""Parquet files that hold the rows of many owners, each in groups of its own, so that one owner's rows are read
without those of the others: 100,000 clients are some hundred files.

Owners are numbered: the clients, then the server's test rows, then its validation rows, then every client's own test
rows. ``extents.parquet`` says for every owner in which file and where its rows lie, and the sha256 of these bytes.

Shape suffixes: O owners, F1 files + 1.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anchorfl.tasks.arrays.arrow import Ints, Table
from anchorfl.tasks.contract import InputSpec

OWNERS, FILE_BYTES = 256, 1 << 27
"""A file is full with so many owners, or with about so many bytes before compression. The owners bound its footer,
which whoever reads one of them reads as well."""
GROUP_BYTES = 1 << 24
"""About the most bytes of a group of rows before compression. A split may be a tenth of all rows, and whoever writes it
holds no more than a group, which takes fifteen times that of bytes in lists: Parquet has four of them for each, and as
many for where its list begins.
"""
EXTENTS = pa.schema(
    [
        ("file", pa.int32()), ("group", pa.int32()), ("groups", pa.int32()),
        ("offset", pa.int64()), ("size", pa.int64()), ("sha256", pa.binary(32)),
    ]
)  # fmt: skip
"""Columns of the extents: number of the file, first group in it, number of groups, first byte, number of bytes."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the rows of an owner lie. Fields as the columns of ``EXTENTS``."""

    file: int
    group: int
    groups: int
    offset: int
    size: int
    sha256: bytes

    @classmethod
    def of(cls, extents: Table, owner: int) -> Extent:
        """Return the extent of an owner."""
        return cls(**{name: extents[name][owner].as_py() for name in EXTENTS.names})


def rows_file(number: int) -> str:
    """Return the name of a file of rows."""
    return f"rows-{number:05d}.parquet"


def owner_name(owner: int, clients: int) -> str:
    """Return the name of an owner."""
    if owner < clients:
        return f"client-{owner:05d}"
    beyond = owner - clients
    return ("test", "validation")[beyond] if beyond < 2 else f"client-test-{beyond - 2:05d}"


def rows_of_bytes(size: int, spec: InputSpec) -> int:
    """Return how many rows have about so many bytes: the same for every way to prepare the data, so that the files are
    the same bytes.
    """
    # a token or a number has four bytes, a value of a sparse row with its number eight
    value = 1 if spec.levels else 8 if spec.kind == "sparse" else 4
    return max(1, size // max(1, value * int(np.prod(spec.shape))))


def first_owners(size_O: Ints, spec: InputSpec) -> Ints:
    """Return the first owner of every file, and the number of owners last, int64 [F1]. size_O: rows of every owner."""
    most, first, rows = rows_of_bytes(FILE_BYTES, spec), [0], 0
    for owner, size in enumerate(size_O.tolist()):
        if owner - first[-1] == OWNERS or (rows and rows + size > most):
            first.append(owner)
            rows = 0
        rows += size
    return np.array([*first, len(size_O)], dtype=np.int64)


def write_rows(stream: Any, owners: Iterable[Iterable[Table]], number: int) -> tuple[Table, str]:
    """Write a file of rows; return the extents of its owners, and the sha256 of its footer.

    stream: a binary file, empty. owners: the rows of each, a group at a time; at least one group, and all of one
    schema. number: of the file.
    """
    sink, extents, writer, group = _HashedSink(stream), list[Extent](), None, 0
    for groups in owners:
        first = group
        for table in groups:
            # without statistics: they would show the smallest and largest values of a group in each copy of the footer
            writer = writer or pq.ParquetWriter(sink, table.schema, compression="zstd", write_statistics=False)
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            group += 1
        extents.append(Extent(number, first, group - first, *sink.piece()))
    if writer is None:
        raise ValueError("a file of rows needs an owner with a group")
    writer.close()
    _, _, footer = sink.piece()
    columns = {name: [getattr(extent, name) for extent in extents] for name in EXTENTS.names}
    return pa.table(columns, EXTENTS), footer.hex()


class _HashedSink(io.RawIOBase):
    """Passes what is written on to a stream, and knows the sha256 of each piece of it."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream, self.position, self.start, self.hash = stream, 0, 0, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def write(self, data: Any) -> int:
        self.stream.write(data)
        self.hash.update(data)
        self.position += len(data)
        return len(data)

    def piece(self) -> tuple[int, int, bytes]:
        """Return first byte, size and sha256 of what was written since this was last asked for."""
        piece = self.start, self.position - self.start, self.hash.digest()
        self.start, self.hash = self.position, hashlib.sha256()
        return piece


def footer_start(extents: Table, number: int) -> int:
    """Return where the footer of a file begins: after the rows of its last owner."""
    here_O = extents["file"].to_numpy() == number
    return int((extents["offset"].to_numpy() + extents["size"].to_numpy())[here_O].max())


def read_footer(content: bytes) -> Any:
    """Return the metadata of a Parquet file from the bytes of its footer. Raises pa.ArrowException, OSError."""
    return pq.read_metadata(pa.BufferReader(content))


def read_rows_of(extent: Extent, data: bytes, footer: Any, columns: Iterable[str] | None = None) -> Table:
    """Return the rows of an owner, or some of their columns, from their bytes and the metadata of their file.

    Raises pa.ArrowException, OSError or ValueError where they do not fit each other.
    """
    groups = list(range(extent.group, extent.group + extent.groups))
    names = None if columns is None else list(columns)
    if not any(footer.row_group(group).num_rows for group in groups):  # its pages have no place
        table = footer.schema.to_arrow_schema().empty_table()
        return table if names is None else table.select(names)
    source = pa.PythonFile(_PartOfFile(data, extent.offset), mode="r")
    # without threads: the client that reads it has one CPU
    return pq.ParquetFile(source, metadata=footer).read_row_groups(groups, columns=names, use_threads=False)


class _PartOfFile(io.RawIOBase):
    """Some bytes of a file, at their place in it; nothing else can be read."""

    def __init__(self, data: bytes, offset: int) -> None:
        super().__init__()
        self.data, self.offset, self.position = data, offset, offset

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.offset + len(self.data)}[whence]
        self.position = base + offset
        return self.position

    def read(self, size: int = -1) -> bytes:
        start = self.position - self.offset
        end = len(self.data) if size < 0 else start + size
        if start < 0 or end > len(self.data):
            raise ValueError("the footer names bytes outside of the rows of this owner")
        self.position = self.offset + end
        return self.data[start:end]
