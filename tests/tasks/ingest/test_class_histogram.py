"""The number of rows per client and class: counted, stored, read again, and refused where the file is damaged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.ingest.class_histogram import ClassHistogram

Y_MNC = np.random.default_rng(0).random((4, 6, 5)) < 0.3
Y_MNC[2] = False  # a client without a label


def made() -> ClassHistogram:
    return ClassHistogram.of(Labels.of_matrix(y_NC) for y_NC in Y_MNC)


def test_it_counts_what_dense_labels_count():
    held = made()
    assert np.array_equal(held.matrix(4, 5), Y_MNC.sum(1))
    assert held.counts(5).tolist() == Y_MNC.sum((0, 1)).tolist()
    assert (held.rows_H > 0).all()
    again = ClassHistogram.from_table(held.table(), 4, 5)
    assert np.array_equal(again.matrix(4, 5), Y_MNC.sum(1))


def test_of_nobody():
    held = ClassHistogram.from_table(ClassHistogram.of([]).table(), 0, 5)
    assert held.counts(5).tolist() == [0] * 5
    assert held.matrix(0, 5).shape == (0, 5)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"class": pa.array([5])}, "class from 5 to 5, where 0 is the least and 4 the most"),
        ({"client": pa.array([-1])}, "client from -1 to -1"),
        ({"rows": pa.array([0])}, "rows from 0 to 0, where 1 is the least"),
        ({"rows": pa.array([None], pa.int64())}, "1 nulls in the column rows"),
        ({"rows": pa.array([1.0])}, "the column rows of double, which needs int64"),
    ],
)
def test_a_damaged_file_is_refused(change, why):
    one = {"client": pa.array([0]), "class": pa.array([0]), "rows": pa.array([1])}
    with pytest.raises(ValueError, match=why):
        ClassHistogram.from_table(pa.table(one | change), 4, 5)
