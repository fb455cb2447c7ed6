"""Rows that stand on both sides of a split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Column, Ints, Table, list_parts

BLOCK = 8192
"""Rows that are hashed at a time, so that no second copy of the table is held."""
PATHS = ("image", "path")
"""Payloads that are paths of files where they are strings: rows are alike if their files are, byte for byte."""
MIDDLE_BYTES = 4096
"""Bytes of a file that are looked at before all of it is."""


def is_path(table: Table, payload: str) -> bool:
    """Return whether a payload column has the paths of files."""
    return payload in PATHS and bool(pa.types.is_string(table[payload].type))


def leaked_rows(table: Table, payload: str) -> list[tuple[int, int]]:
    """Return the ids of every test row whose payload is that of a training row, with the first such training row."""
    train, test = (np.flatnonzero(pc.equal(table["split"], name)) for name in ("train", "test"))
    row_N = table["row"].to_numpy()
    if is_path(table, payload):
        key_N = _of_files(table[payload].to_pylist(), train, test)
    elif pa.types.is_integer(table[payload].type):
        key_N = table[payload].to_numpy().astype(np.int64)
    else:
        key_N = np.fromiter(_hashes(table[payload]), np.int64, table.num_rows)
    first_K, at_K = np.unique(key_N[train], return_index=True)  # at_K: the first of equals
    index_T = np.minimum(np.searchsorted(first_K, key_N[test]), max(0, len(first_K) - 1))
    same = np.flatnonzero(first_K[index_T] == key_N[test]) if len(first_K) else np.zeros(0, np.int64)
    return list(zip(row_N[test[same]].tolist(), row_N[train[at_K[index_T[same]]]].tolist(), strict=True))


def _hashes(column: Column) -> Iterator[int]:
    """Yield the hash of every row's value: equal rows have equal hashes, others but for a collision of 64 bits."""
    lists = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    for start in range(0, len(column), BLOCK):
        block = column.slice(start, BLOCK)
        if not lists or not pa.types.is_primitive(column.type.value_type):
            yield from (hash(repr(value)) for value in block.to_pylist())
            continue
        values, length_B = list_parts(block)
        yield from _of_bytes(np.ascontiguousarray(values), length_B)


def _of_files(paths: list[str], train: Ints, test: Ints) -> Ints:
    """Return a number per file, the same on both sides of the split exactly for equal files.

    train, test: their rows; other rows have none that counts. Files are compared by size, then by some bytes from the
    middle, then by all of them; a file is only read on while one of the other side is like it so far, since few are and
    all of them may be a hundred gigabytes.
    """
    key_N = np.zeros(len(paths), dtype=np.int64)
    open_N = np.concatenate([train, test])
    for content in (_size, _middle_bytes, _whole):
        first = dict[tuple[int, bytes], int]()
        for row in open_N.tolist():
            key_N[row] = first.setdefault((int(key_N[row]), content(Path(paths[row]))), row)
        shared = np.intersect1d(key_N[train], key_N[test])
        open_N = open_N[np.isin(key_N[open_N], shared)]
    return key_N


def _size(path: Path) -> bytes:
    return str(path.stat().st_size).encode()


def _middle_bytes(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - MIDDLE_BYTES) // 2)
        return stream.read(MIDDLE_BYTES)


def _whole(path: Path) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _of_bytes(values: npt.NDArray[Any], length_B: Ints) -> Iterator[int]:
    data, end_B = values.tobytes(), np.cumsum(length_B) * values.itemsize
    start_B = end_B - length_B * values.itemsize
    return (hash(data[start:end]) for start, end in zip(start_B.tolist(), end_B.tolist(), strict=True))
