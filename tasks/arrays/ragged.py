"""Rows of different lengths in one flat array: where each begins, and some of them.

Shape suffixes: N rows, N1 their number + 1, B rows that are taken, P entries of all rows, row after row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Ints


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
