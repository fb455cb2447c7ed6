"""The positive classes of many rows, held sparsely: a million rows of ten thousand classes are a few megabytes.

Shape suffixes: N rows, C classes, P positives (entries of all rows, row after row).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Bools, Column, Ints, list_parts
from anchorfl.tasks.arrays.ragged import offsets, ragged_take


@dataclass(frozen=True)
class Labels:
    """The positive classes of N rows, row after row."""

    class_P: npt.NDArray[np.int32]
    """Classes of row 0, then of row 1, and so on; each once per row. int32."""
    offset_N1: Ints
    """First positive of every row; the number of positives last. int64."""
    classes: int
    """C."""

    @classmethod
    def of_lists(cls, column: Column, classes: int) -> Labels:
        """Return the labels of a list column. Raises ValueError on a class outside 0..C-1 or twice in a row."""
        values, length_N = list_parts(column)
        return cls._build(values, length_N, classes)

    @classmethod
    def of_matrix(cls, y_NC: Bools) -> Labels:
        """Return the labels of a bool matrix [N, C]."""
        rows, columns = np.nonzero(y_NC)
        return cls._build(columns, np.bincount(rows, minlength=len(y_NC)), y_NC.shape[1])

    @classmethod
    def _build(cls, values: npt.NDArray[Any], length_N: Ints, classes: int) -> Labels:
        if len(values) and (values.min() < 0 or values.max() >= classes):
            raise ValueError(f"class indices must lie in 0..{classes - 1}, found {values.min()}..{values.max()}")
        labels = cls(values.astype(np.int32), offsets(length_N), classes)
        if len(values) and labels.length_N.max() > 1:
            key_P = np.sort(labels.row_P * classes + labels.class_P)
            if (key_P[1:] == key_P[:-1]).any():
                raise ValueError("a class stands twice in the labels of a row")
        return labels

    def __len__(self) -> int:
        return len(self.offset_N1) - 1

    @cached_property
    def row_P(self) -> Ints:
        """Row of every positive, int64 [P]."""
        return np.repeat(np.arange(len(self)), self.length_N)

    @property
    def length_N(self) -> Ints:
        """Number of positives of every row."""
        return np.diff(self.offset_N1)

    def counts(self) -> Ints:
        """Return the number of rows of every class, int64 [C]."""
        return np.bincount(self.class_P, minlength=self.classes).astype(np.int64)

    def take(self, rows: Ints) -> Labels:
        """Return the labels of some rows, in that order."""
        index, offset = ragged_take(self.offset_N1, rows)
        return Labels(self.class_P[index], offset, self.classes)

    def where(self, keep_P: Bools) -> Labels:
        """Return the same rows with some of their positives."""
        length = np.bincount(self.row_P[keep_P], minlength=len(self))
        return Labels(self.class_P[keep_P], offsets(length), self.classes)

    def rarest(self) -> Ints:
        """Return the rarest positive class of every row (the first of equals), -1 for a row without any: int64 [N]."""
        rank_C = np.empty(self.classes, dtype=np.int64)
        order_C = np.argsort(self.counts(), kind="stable")
        rank_C[order_C] = np.arange(self.classes)
        best_N = np.full(len(self), self.classes, dtype=np.int64)
        filled = np.flatnonzero(self.length_N)
        if len(filled):
            best_N[filled] = np.minimum.reduceat(rank_C[self.class_P], self.offset_N1[filled])
        rarest_N: Ints = np.append(order_C, -1)[best_N]
        return rarest_N

    def matrix(self) -> Bools:
        """Return the labels as a bool matrix [N, C]."""
        y_NC = np.zeros((len(self), self.classes), dtype=np.bool_)
        y_NC[self.row_P, self.class_P] = True
        return y_NC

    def lists(self, null_N: Bools | None = None) -> Column:
        """Return the labels as a list<int32> column, the classes of every row ascending; null where ``null_N``."""
        import pyarrow as pa  # only here: it keeps the class usable without Arrow

        labels = self
        if null_N is not None and null_N.any():  # an entry under a null would still be read by who flattens the list
            labels = self.where(~null_N[self.row_P])
        order_P = np.lexsort((labels.class_P, labels.row_P))
        offset_N1, class_P = pa.array(labels.offset_N1.astype(np.int32)), pa.array(labels.class_P[order_P])
        return pa.ListArray.from_arrays(offset_N1, class_P, mask=None if null_N is None else pa.array(null_N))


def without_classes(column: Column, kept_C: Bools) -> Column:
    """Return a list column of classes with those that are kept, in the numbers that they then have; null as it was."""
    import pyarrow as pa
    import pyarrow.compute as pc

    every = column.is_null()
    part = Labels.of_lists(column.fill_null(pa.scalar([], column.type)), len(kept_C))
    part = part.where(kept_C[part.class_P])
    number_P = (np.cumsum(kept_C) - 1)[part.class_P].astype(np.int32)
    lists = Labels(number_P, part.offset_N1, int(kept_C.sum())).lists()
    return pc.if_else(every, pa.scalar(None, lists.type), lists)
