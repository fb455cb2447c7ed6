"""Disclosure: which labels of its own data a client is given.

Shape suffixes: N rows of the client, C classes, P positives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Bools, Column, Table, in_one, nulls
from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import LabelKind


def disclose(labels: Labels, labeled: Column | None, classes: Sequence[int], kind: LabelKind) -> tuple[Labels, Column]:
    """Return the labels that a client identifying ``classes`` may see of its rows (docs/partitions.md).

    labeled: the classes that the raw data label, list<int32> per row, null for all; None: all in every row.

    The result is its positives, and ``known`` list<int32>: null where the label of every class that it identifies is
    given (single-label: of every class at all), else the classes whose label is. Single-label: a row whose true class
    is identified is known in every class, any other row in none. Multi-label: the identified classes are known in every
    row, as far as the raw data label them.
    """
    identified_C = np.zeros(labels.classes, dtype=np.bool_)
    identified_C[list(classes)] = True
    seen = labels.where(identified_C[labels.class_P])
    if kind == "single":
        nothing = Labels(np.zeros(0, np.int32), np.zeros(len(labels) + 1, np.int64), labels.classes)
        return seen, nothing.lists(seen.length_N > 0)
    if labeled is None:
        return seen, pa.nulls(len(labels), pa.list_(pa.int32()))
    every_N = nulls(labeled)
    labeled = Labels.of_lists(labeled.fill_null(pa.scalar([], labeled.type)), labels.classes)
    return seen, labeled.where(identified_C[labeled.class_P]).lists(every_N)


def known_matrix(known: Column, default: Sequence[int], classes: int) -> Bools:
    """Return ``known`` as a bool matrix [N, C]; ``default``: the classes that are known where it is null.

    Raises ValueError on a class outside 0..C-1.
    """
    known_NC = Labels.of_lists(known.fill_null(pa.scalar([], known.type)), classes).matrix()
    every_N = nulls(known)
    default_C = np.zeros(classes, dtype=np.bool_)
    default_C[list(default)] = True
    known_NC[every_N] = default_C
    return known_NC


def disclose_table(table: Table, classes: Sequence[int], total: int, kind: LabelKind) -> Table:
    """Return Arrow table (row, x, labels, known) in row order that holds no label outside what the client may see.

    table: row, x, all positive ``labels`` and where the raw data have it ``known``; total: C. Lists become
    list<int32>; x of other inputs than tokens becomes list<float32>, or list<uint8> where it is.
    """
    row_N = table["row"].to_numpy()
    if (np.diff(row_N) < 0).any():
        table = Chunks.of(table).take(np.argsort(row_N, kind="stable"))
    labels = Labels.of_lists(table["labels"], total)
    labeled = table["known"].combine_chunks() if "known" in table.column_names else None
    seen, known = disclose(labels, labeled, classes, kind)
    columns = {
        "row": table["row"].cast(pa.int64()).combine_chunks(),
        "x": in_one(table["x"].cast(pa.list_(stored_type(table["x"].type.value_type)))),
        "labels": seen.lists(),
        "known": known,
    }
    return pa.table(columns)


def stored_type(value: Any) -> Any:
    """Return the Arrow type in which values of ``x`` are stored: uint8 as it is, other integers int32, else float32."""
    if value == pa.uint8():
        return value
    return pa.int32() if pa.types.is_integer(value) else pa.float32()
