"""The labels of a user's table: columns of 0 and 1 (or of -1 and 1), one column of classes, or one of lists of classes.
A cell without anything is a label that is not known.

Shape suffixes: N rows, C classes, P positives (entries of all rows, row after row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Bools, Column, Ints, Table
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.tabular.reading import Faults

EXACT = 2.0**53
"""Bound from which on not every whole number is a float64."""
MANY = 0.1
"""Share of the rows from which on a value that is no label is no slip of some rows, which could be left out."""
Style = Literal["columns", "value", "lists"]


@dataclass(frozen=True, slots=True)
class Targets:
    """The labels of every row."""

    labels: Any
    """list<int32> per row."""
    known: Any
    """list<int32> per row, null where all are given; None: all in every row."""
    given_N: Bools
    """True where a row has any label that is given."""


def targets(table: Table, style: Style, labels: Sequence[str], values: Sequence[str], faults: Faults) -> Targets:
    """Return the labels of every row. A row with a fault has some labels that mean nothing.

    labels: the columns that hold them; values: the word in the table for each class.
    """
    if style == "columns":
        return _of_columns(table, labels, faults)
    name = labels[0]
    if style == "value":
        return _of_value(words(table[name], name, faults), name, values, faults)
    column = table[name]
    if column.null_count == len(column):  # the labels of no row, in a column of any type
        column = pa.chunked_array([pa.nulls(len(column), pa.list_(pa.string()))])
    if not any(of(column.type) for of in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)):
        raise InputError(f"{faults.path}: column {name!r} holds {column.type}, where lists of classes are asked for")
    return _of_lists(column, name, values, faults)


def words(column: Column, name: str, faults: Faults) -> Column:
    """Return class names or whole numbers as strings, null where nothing stands. Raises InputError on others."""
    kind = column.type
    if pa.types.is_floating(kind):
        value_N = column.to_numpy(zero_copy_only=False)
        fraction = np.isfinite(value_N) & (value_N != np.floor(value_N))
        if fraction.any():
            raise InputError(
                f"{faults.path}: column {name!r} holds {value_N[fraction][0]}; a class is a name or a whole number"
            )
        large = np.isfinite(value_N) & (np.abs(value_N) >= EXACT)
        if large.any():
            msg = (
                f"{faults.path}: column {name!r} holds {value_N[large][0]:g}: numbers of classes from 2^53 on run into"
            )
            raise InputError(f"{msg} each other; store them as text")
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind)).cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind)):
        raise InputError(f"{faults.path}: column {name!r} holds {kind}; a class is a name or a whole number")
    column = column.cast(pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return pc.if_else(pc.equal(pc.utf8_trim_whitespace(column), ""), pa.scalar(None, pa.string()), column)


def signed(table: Table, names: Sequence[str]) -> bool:
    """Return whether label columns hold -1 and 1 in place of 0 and 1: -1 is there, and no other number."""
    values = set[Any]()
    for name in names:
        if not (pa.types.is_integer(table[name].type) or pa.types.is_floating(table[name].type)):
            return False
        number_N = table[name].to_numpy()
        values |= set(np.unique(number_N[~np.isnan(number_N)]).tolist())
        if not values <= {-1, 1}:
            return False
    return -1 in values


def binary(column: Column, name: str, faults: Faults, no: int = 0) -> Any:
    """Return a column of 0, 1 and nothing as floats, NaN for nothing; any other number is a fault of its row.

    no: the number that stands for 0. Raises InputError where many rows have another number.
    """
    if not (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(
            f"{faults.path}: column {name!r} holds {column.type}; several label columns hold 0, 1 or nothing each"
        )
    number = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    value_N = number.to_numpy(zero_copy_only=False).astype(np.float64)
    wrong_N = ~(np.isnan(value_N) | (value_N == no) | (value_N == 1))
    if wrong_N.sum() > max(1, MANY * len(value_N)):
        row, first, more = np.flatnonzero(wrong_N)[0], value_N[wrong_N][0], wrong_N.sum() - 1
        raise InputError(
            f"{faults.path}: row {faults.row_N[row] + 1}: column {name!r} holds {first:g}, and {more} other rows have"
            " such numbers; write 1 for yes, 0 for no, and leave empty what is not known"
        )
    faults.add(wrong_N, lambda i: f"column {name!r} holds {value_N[i]:g}; a label is 0, 1 or an empty cell (not known)")
    return np.where(value_N == no, 0.0, value_N)


def _of_columns(table: Table, names: Sequence[str], faults: Faults) -> Targets:
    total = table.num_rows
    positives, given = list[Ints](), list[Ints]()
    no = -1 if signed(table, names) else 0
    for name in names:
        value_N = binary(table[name], name, faults, no)
        positives.append(np.flatnonzero(value_N == 1))
        given.append(np.flatnonzero(~np.isnan(value_N)))
    labels = _by_row(positives, total)
    if all(len(rows) == total for rows in given):
        return Targets(labels.lists(), None, np.ones(total, dtype=np.bool_))
    known = _by_row(given, total)
    return Targets(labels.lists(), known.lists(known.length_N == len(names)), known.length_N > 0)


def _of_value(column: Column, name: str, values: Sequence[str], faults: Faults) -> Targets:
    index = pc.index_in(column, value_set=pa.array(values, pa.string()))
    given_N = column.is_valid().to_numpy(zero_copy_only=False)
    found_N = index.is_valid().to_numpy(zero_copy_only=False)
    faults.add(given_N & ~found_N, lambda i: _no_class(column[i].as_py(), name, values))
    labels = Labels(index.drop_null().to_numpy().astype(np.int32), offsets(found_N), len(values))
    nothing = Labels(np.zeros(0, np.int32), np.zeros(len(column) + 1, np.int64), len(values))
    return Targets(labels.lists(), None if given_N.all() else nothing.lists(given_N), given_N)


def _of_lists(column: Column, name: str, values: Sequence[str], faults: Faults) -> Targets:
    given_N = column.is_valid().to_numpy()
    length_N = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    word_P = words(pc.list_flatten(column), name, faults)
    index_P = pc.fill_null(pc.index_in(word_P, value_set=pa.array(values, pa.string())), -1).to_numpy()
    row_P = np.repeat(np.arange(len(length_N)), length_N)
    bad_P = index_P < 0
    first = dict(zip(row_P[bad_P][::-1].tolist(), np.flatnonzero(bad_P)[::-1].tolist(), strict=True))
    faults.add(
        np.isin(np.arange(len(length_N)), row_P[bad_P]), lambda i: _no_class(word_P[first[i]].as_py(), name, values)
    )
    key_P, count_P = np.unique(row_P[~bad_P] * len(values) + index_P[~bad_P], return_counts=True)
    twice = dict(zip((key_P[count_P > 1] // len(values)).tolist(), key_P[count_P > 1].tolist(), strict=True))
    faults.add(
        np.isin(np.arange(len(length_N)), list(twice)),
        lambda i: (
            f"column {name!r} names class {values[twice[i] % len(values)]!r} twice; give each class of a row once"
        ),
    )
    offset_N1 = offsets(np.bincount(key_P // len(values), minlength=len(length_N)))
    labels = Labels((key_P % len(values)).astype(np.int32), offset_N1, len(values))
    nothing = Labels(np.zeros(0, np.int32), np.zeros(len(length_N) + 1, np.int64), len(values))
    return Targets(labels.lists(), None if given_N.all() else nothing.lists(given_N), given_N)


def _no_class(word: str | None, name: str, values: Sequence[str]) -> str:
    if word is None:
        return f"column {name!r} holds a list with an empty entry; take it out"
    return (
        f"column {name!r} holds {word!r}, which is no class{nearest(word, values)}; correct it, or add it to the names"
    )


def _by_row(rows_C: Sequence[Ints], total: int) -> Labels:
    """Return the labels from the rows of every class."""
    class_P = np.repeat(np.arange(len(rows_C)), [len(rows) for rows in rows_C])
    row_P = np.concatenate(rows_C)
    order_P = np.lexsort((class_P, row_P))
    offset_N1 = offsets(np.bincount(row_P, minlength=total))
    return Labels(class_P[order_P].astype(np.int32), offset_N1, len(rows_C))
