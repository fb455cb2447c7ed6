"""Arrow list columns as NumPy matrices and back, without a loop over rows.

Shape suffixes: N rows, C classes, L positions, D values of a row.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Column = Any  # pa.Array or pa.ChunkedArray: pyarrow has no complete stubs


def list_parts(column: Column) -> tuple[npt.NDArray[Any], Ints]:
    """All values of a list column in row order, and the length of every row. Raises ValueError on a null."""
    if column.null_count:
        msg = "a list column must not hold nulls"
        raise ValueError(msg)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = pc.list_flatten(array).to_numpy(zero_copy_only=False)
    length_N = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return values, length_N


def matrix_of(column: Column, classes: int) -> Bools:
    """Bool [N, C], true at the listed classes. Raises ValueError on a class outside 0..C-1."""
    values, length_N = list_parts(column)
    if len(values) and (values.min() < 0 or values.max() >= classes):
        msg = f"class indices must lie in 0..{classes - 1}, found {values.min()}..{values.max()}"
        raise ValueError(msg)
    y_NC = np.zeros((len(length_N), classes), dtype=np.bool_)
    y_NC[np.repeat(np.arange(len(length_N)), length_N), values.astype(np.int64)] = True
    return y_NC


def lists_of(y_NC: Bools) -> Column:
    """list<int32> column: the true columns of every row, ascending."""
    offset_N = np.zeros(len(y_NC) + 1, dtype=np.int32)
    np.cumsum(y_NC.sum(1), out=offset_N[1:])
    return pa.ListArray.from_arrays(pa.array(offset_N), pa.array(np.nonzero(y_NC)[1].astype(np.int32)))


def padded(column: Column) -> tuple[npt.NDArray[np.int32], Ints]:
    """Token ids int32 [N, L], zero padded to the longest row (L >= 1), and the lengths int64 [N]."""
    values, length_N = list_parts(column)
    longest = max(1, int(length_N.max(initial=0)))
    x_NL = np.zeros((len(length_N), longest), dtype=np.int32)
    x_NL[np.arange(longest) < length_N[:, None]] = values
    return x_NL, length_N


def fixed_lists(x_ND: npt.NDArray[np.float32]) -> Column:
    """Fixed-size list<float32> column of a float matrix [N, D]."""
    flat = pa.array(np.ascontiguousarray(x_ND, dtype=np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, x_ND.shape[1])


def table_digest(table: Any) -> str:
    """sha256 of a table's content: column names, types and values, whatever its chunks and file encoding."""
    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(repr((name, str(column.type), len(column))).encode())
        if pa.types.is_list(column.type):
            values, length_N = list_parts(column)
            digest.update(length_N.tobytes())
        else:
            values = column.to_numpy()
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
