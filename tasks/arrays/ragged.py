"""Rows of different lengths in one flat array: where each begins, and some of them.

Shape suffixes: N rows, N1 their number + 1, B rows that are taken, P entries of all rows, row after row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Column, Ints, list_parts


def offsets(length_N: npt.NDArray[Any]) -> Ints:
    """Return where the entries of every row begin, and their total last: int64 [N1]."""
    return np.concatenate([[0], np.cumsum(length_N, dtype=np.int64)])


def ragged_take(offset_N1: Ints, row_B: Ints) -> tuple[Ints, Ints]:
    """Return the positions of the entries of some rows, in the order of ``row_B``, and the offsets of what is taken.

    >>> ragged_take(np.array([0, 2, 2, 5]), np.array([2, 1, 0]))  # rows of 2, 0 and 3 entries
    (array([2, 3, 4, 0, 1]), array([0, 3, 3, 5]))
    """
    start_B = offset_N1[row_B]
    length_B = offset_N1[row_B + 1] - start_B
    offset_B1 = offsets(length_B)
    return np.arange(offset_B1[-1]) + np.repeat(start_B - offset_B1[:-1], length_B), offset_B1


@dataclass(frozen=True, eq=False)
class IntLists(Sequence[tuple[int, ...]]):
    """Lists of whole numbers in two flat arrays. A list is made when it is asked for: those of 100,000 clients are
    a few megabytes, where tuples of numbers would be a hundred.
    """

    value_P: Ints
    """Numbers of list 0, then of list 1, and so on, int64."""
    offset_N1: Ints
    """First number of every list; the number of all of them last. int64."""

    @classmethod
    def of(cls, lists: Iterable[Sequence[int]]) -> IntLists:
        """Return the same lists."""
        parts = list(lists)
        values = np.fromiter(chain.from_iterable(parts), np.int64)
        return cls(values, offsets(np.array([len(part) for part in parts], np.int64)))

    @classmethod
    def of_column(cls, column: Column) -> IntLists:
        """Return the lists of a list column. Raises ValueError on a null."""
        values, length_N = list_parts(column)
        return cls(values.astype(np.int64), offsets(length_N))

    def column(self) -> Column:
        """Return the lists as a list<int32> column."""
        return pa.ListArray.from_arrays(pa.array(self.offset_N1.astype(np.int32)), pa.array(self.value_P, pa.int32()))

    def __len__(self) -> int:
        return len(self.offset_N1) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        """Return a list, or some."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return tuple(self.value_P[self.offset_N1[number] : self.offset_N1[number + 1]].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for start, end in zip(self.offset_N1[:-1].tolist(), self.offset_N1[1:].tolist(), strict=True):
            yield tuple(self.value_P[start:end].tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntLists):
            return NotImplemented
        same = np.array_equal(self.value_P, other.value_P)
        return same and np.array_equal(self.offset_N1, other.offset_N1)

    def __hash__(self) -> int:
        return hash((len(self.offset_N1), len(self.value_P)))
