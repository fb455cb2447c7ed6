"""Sparse rows as pairs: one list<float32> per row, number of a feature from 1, value, number, value, ...; zeros are
left out. Numbers stay exact as float32 below 2^24.

Shape suffixes: N rows, P pairs (of all rows, row after row), F features.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Column, Ints, Table, list_parts
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.contract import CLASS_NAMES, InputSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions

PAYLOAD = "features"
"""Name of the payload column."""
COUNT = b"anchorfl.features"
"""Key of the table's metadata under which ``read`` leaves the number of features for ``fit``."""
MOST = 2**24 - 1
"""Largest number that float32 holds exactly, and all below it."""
Floats = npt.NDArray[np.floating[Any]]


def pair_lists(number_P: npt.NDArray[Any], value_P: Floats, length_N: Ints) -> Column:
    """Return the list<float32> column of pairs. number_P: features' numbers from 1; length_N: pairs of every row."""
    flat = np.empty(2 * len(number_P), dtype=np.float32)
    flat[0::2], flat[1::2] = number_P, value_P
    return pa.ListArray.from_arrays(pa.array(_offsets(2 * length_N)), pa.array(flat))


def label_lists(class_P: npt.NDArray[Any], length_N: Ints) -> Column:
    """Return a list<int32> column of classes. length_N: classes of every row."""
    return pa.ListArray.from_arrays(pa.array(_offsets(length_N)), pa.array(class_P.astype(np.int32)))


def sparse_table(
    row_N: Ints, test_N: npt.NDArray[np.bool_], labels: Column, pairs: Column, names: Sequence[str], features: int
) -> Table:
    """Return the table that ``read`` of a sparse data set gives. names: of the classes; features: F, for ``fit``."""
    split = pa.DictionaryArray.from_arrays(pa.array(test_N.astype(np.int8)), pa.array(["train", "test"]))
    table = pa.table({"row": row_N, "split": split.cast(pa.string()), "labels": labels, PAYLOAD: pairs})
    return table.replace_schema_metadata({CLASS_NAMES: json.dumps(distinct(names)), COUNT: str(features)})


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names; one that equals an earlier one, but for case, spaces and signs, gets the number of its label:
    product titles and tags do come twice.
    """
    seen, out = set[str](), list[str]()
    for number, name in enumerate(names):
        key = re.sub(r"[\W_]+", " ", name).strip().casefold() or name
        out.append(f"{name} (label {number})" if key in seen else name)
        seen.add(key)
    return out


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: the number of features; values stay as they are."""
    return InputSpec("sparse", (_count(train),))


def fit_scaled(train: Table, options: TaskOptions) -> InputSpec:
    """Return the number of features, and mean and deviation of each over all training rows, zeros included."""
    features, rows = _count(train), train.num_rows
    flat, _ = list_parts(train[PAYLOAD])
    feature_P, value_P = flat[0::2].astype(np.int64) - 1, flat[1::2].astype(np.float64)
    total_F = np.bincount(feature_P, weights=value_P, minlength=features)
    mean_F = total_F / max(1, rows)
    square_F = np.bincount(feature_P, weights=(value_P - mean_F[feature_P]) ** 2, minlength=features)
    zeros_F = rows - np.bincount(feature_P, minlength=features)
    std_F = np.sqrt((square_F + zeros_F * mean_F**2) / max(1, rows))
    std_F[std_F == 0] = 1.0
    return InputSpec("sparse", (features,), mean=tuple(mean_F.tolist()), std=tuple(std_F.tolist()))


def encode(table: Table, spec: InputSpec) -> Table:
    """Return the table with ``x`` in place of the pairs. Where the spec has means, every feature of a row is listed,
    zeros too, less its mean and divided by its deviation.

    Raises InputError on pairs that are none.
    """
    column = table[PAYLOAD]
    if not pa.types.is_list(column.type):
        raise InputError(
            f"the column {PAYLOAD} holds {column.type}; it must hold lists: number of a feature from 1, value, ..."
        )
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    made = [_encoded(chunk.cast(pa.list_(pa.float32())), spec) for chunk in chunks]
    x = pa.chunked_array(made, pa.list_(pa.float32()))
    return table.set_column(table.column_names.index(PAYLOAD), "x", x)


def _encoded(chunk: Column, spec: InputSpec) -> Column:
    flat, length_N = list_parts(chunk)
    features = spec.shape[0]
    odd = np.flatnonzero(length_N % 2)
    if len(odd):
        raise InputError(f"row {odd[0]} of the block has {length_N[odd[0]]} values in {PAYLOAD}; they must be pairs")
    number_P, value_P = flat[0::2], flat[1::2]
    wrong_P = (number_P < 1) | (number_P > features) | (number_P != np.floor(number_P)) | ~np.isfinite(value_P)
    if wrong_P.any():
        at = int(wrong_P.argmax())
        row = int(np.searchsorted(np.cumsum(length_N), 2 * at, side="right"))
        raise InputError(
            f"row {row} of the block has the pair ({number_P[at]:g}, {value_P[at]:g}) in {PAYLOAD}; the number of a "
            f"feature must be 1..{features} and its value finite"
        )
    if not spec.mean:
        return chunk
    x_NF = np.zeros((len(length_N), features))
    row_P = np.repeat(np.arange(len(length_N)), length_N // 2)
    np.add.at(x_NF, (row_P, number_P.astype(np.int64) - 1), value_P)
    x_NF = (x_NF - np.array(spec.mean)) / np.array(spec.std)
    number = np.tile(np.arange(1, features + 1), len(x_NF))
    return pair_lists(number, x_NF.ravel(), np.full(len(x_NF), features))


def _count(train: Table) -> int:
    """Return the number of features that ``read`` left."""
    metadata = train.schema.metadata or {}
    if COUNT not in metadata:
        raise ValueError(f"read must leave the number of features in the table's metadata, under {COUNT.decode()!r}")
    return int(metadata[COUNT])


def _offsets(length_N: Ints) -> npt.NDArray[np.int32]:
    """Return where every list begins. Raises ValueError where the lists hold too much for one Arrow array."""
    total = int(length_N.sum())
    if total > np.iinfo(np.int32).max:
        raise ValueError(f"{total} values do not fit into one list array; cut the rows into blocks")
    return offsets(length_N).astype(np.int32)
