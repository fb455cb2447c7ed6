"""Entries of rows of different lengths, against a loop over the rows."""

from __future__ import annotations

import numpy as np
import pytest

from anchorfl.tasks.arrays.ragged import offsets, ragged_take


def test_the_example_of_the_docstring():
    index_P, offset_B1 = ragged_take(np.array([0, 2, 2, 5]), np.array([2, 1, 0]))
    assert index_P.tolist() == [2, 3, 4, 0, 1]
    assert offset_B1.tolist() == [0, 3, 3, 5]


@pytest.mark.parametrize("seed", range(20))
def test_any_rows_in_any_order(seed):
    rng = np.random.default_rng(seed)
    offset_N1 = offsets(rng.integers(0, 4, size=rng.integers(1, 9)))
    row_B = rng.integers(0, len(offset_N1) - 1, size=rng.integers(0, 9))
    index_P, offset_B1 = ragged_take(offset_N1, row_B)
    parts = [list(range(offset_N1[row], offset_N1[row + 1])) for row in row_B]
    assert index_P.tolist() == [entry for part in parts for entry in part]
    assert offset_B1.tolist() == [0, *np.cumsum([len(part) for part in parts]).tolist()]
    assert index_P.dtype == offset_B1.dtype == np.int64
