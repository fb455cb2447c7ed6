"""Arrow list columns as NumPy matrices and back, without a loop over rows.

Shape suffixes: N rows, C classes, L positions, D values of a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
MOST_VALUES = 1 << 31
"""Values that one array of lists can hold, and one group of rows in a Parquet file."""
# pyarrow has no complete stubs
Column = Any  # pa.Array or pa.ChunkedArray
Table = Any  # pa.Table


def list_parts(column: Column) -> tuple[npt.NDArray[Any], Ints]:
    """Return all values of a list column in row order, and the length of every row. Raises ValueError on a null."""
    if column.null_count:
        raise ValueError("a list column must not hold nulls")
    # chunk by chunk: one array of lists holds no more than 2^31 values
    chunks = (column.chunks or [pa.array([], column.type)]) if isinstance(column, pa.ChunkedArray) else [column]
    values = [pc.list_flatten(chunk).to_numpy(zero_copy_only=False) for chunk in chunks]
    length_N = [pc.list_value_length(chunk).to_numpy(zero_copy_only=False) for chunk in chunks]
    return values[0] if len(values) == 1 else np.concatenate(values), np.concatenate(length_N).astype(np.int64)


def in_one(column: Column) -> Column:
    """Return a list column in one chunk, where one can hold all its values."""
    values = sum(pc.sum(pc.list_value_length(chunk)).as_py() or 0 for chunk in column.chunks)
    return column.combine_chunks() if values < MOST_VALUES else column


def nulls(column: Column) -> Bools:
    """Return where there is no value, bool [N]."""
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def padded(column: Column, kind: type[Any] = np.int32) -> tuple[npt.NDArray[Any], Ints]:
    """Return the values of every row as a matrix [N, L] of type ``kind``, and the lengths, int64 [N].

    Rows are zero padded to the longest (L >= 1).
    """
    values, length_N = list_parts(column)
    longest = max(1, int(length_N.max(initial=0)))
    x_NL = np.zeros((len(length_N), longest), dtype=kind)
    x_NL[np.arange(longest) < length_N[:, None]] = values
    return x_NL, length_N


def fixed_lists(x_ND: npt.NDArray[np.float32]) -> Column:
    """Return a float matrix [N, D] as a fixed-size list<float32> column."""
    flat = pa.array(np.ascontiguousarray(x_ND, dtype=np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, x_ND.shape[1])


def chunked_lists(x_ND: npt.NDArray[Any], most: int) -> Column:
    """Return a matrix [N, D] as a fixed-size list column, in chunks of about ``most`` values: Arrow counts 31 bits."""
    width = x_ND.shape[1]
    rows = max(1, most // max(1, width))
    parts = [np.ascontiguousarray(x_ND[start : start + rows]) for start in range(0, max(1, len(x_ND)), rows)]
    return pa.chunked_array([pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), width) for part in parts])


def table_digest(table: Table) -> str:
    """Return the sha256 of a table's content: column names, types and values, whatever its chunks and file encoding."""
    columns = zip(table.column_names, table.columns, strict=True)
    return columns_digest({name: partial(iter, [column]) for name, column in columns})


def columns_digest(columns: Mapping[str, Callable[[], Iterable[Column]]]) -> str:
    """Return the ``table_digest`` of columns that come piece by piece, and twice: no more than a piece is held."""
    digest = hashlib.sha256()
    for name, pieces in columns.items():
        null, lengths, kind, count = list[Bools](), list[Ints](), None, 0
        for piece in pieces():
            kind, count = piece.type, count + len(piece)
            if pa.types.is_list(kind):
                null.append(nulls(piece))
                lengths.append(list_parts(piece.fill_null(pa.scalar([], kind)))[1])
        digest.update(repr((name, str(kind), count)).encode())
        if lengths:
            digest.update(np.packbits(np.concatenate(null)).tobytes())
            digest.update(np.concatenate(lengths).tobytes())
        for piece in pieces():
            values = list_parts(piece.fill_null(pa.scalar([], kind)))[0] if lengths else piece.to_numpy()
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
