"""Sparse labels against the same in dense NumPy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.arrays.labels import Labels
from tests.tasks.federations import QUICK


@st.composite
def matrices(draw):
    """Bool [N, C], also of no rows or without a positive."""
    shape = draw(st.integers(0, 30)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    return rng.random(shape) < draw(st.sampled_from([0.0, 0.2, 0.8, 1.0]))


def rarest_of(y_NC):
    """Row by row, in plain Python."""
    count_C = y_NC.sum(0).tolist()
    return [min(np.flatnonzero(y).tolist(), key=lambda c: (count_C[c], c), default=-1) for y in y_NC]


def same(labels, y_NC):
    """Assert that all that labels say about themselves is what the dense matrix says."""
    assert len(labels) == len(y_NC)
    assert labels.classes == y_NC.shape[1]
    assert np.array_equal(labels.matrix(), y_NC)
    assert labels.length_N.tolist() == y_NC.sum(1).tolist()
    assert labels.counts().tolist() == y_NC.sum(0).tolist()
    assert labels.rarest().tolist() == rarest_of(y_NC)
    assert np.array_equal(labels.row_P, np.repeat(np.arange(len(y_NC)), y_NC.sum(1)))
    assert labels.lists().to_pylist() == [np.flatnonzero(y).tolist() for y in y_NC]
    assert labels.lists().type == pa.list_(pa.int32())


@QUICK
@given(matrices())
def test_they_say_what_the_matrix_says(y_NC):
    same(Labels.of_matrix(y_NC), y_NC)


@QUICK
@given(matrices(), st.integers(0, 99), st.booleans())
def test_lists_in_any_order_chunk_or_slice_give_the_same(y_NC, seed, chunked):
    rng = np.random.default_rng(seed)
    lists = [rng.permutation(np.flatnonzero(y)).tolist() for y in y_NC]
    column = pa.array([[0], *lists, []], pa.list_(pa.int32())).slice(1, len(lists))
    if chunked:
        cut = len(lists) // 2
        column = pa.chunked_array([column.slice(0, cut), column.slice(cut)], pa.list_(pa.int32()))
    labels = Labels.of_lists(column, y_NC.shape[1])
    same(labels, y_NC)
    same(Labels.of_lists(labels.lists(), labels.classes), y_NC)


@QUICK
@given(matrices(), st.data())
def test_some_rows_in_any_order_also_twice(y_NC, data):
    chosen = data.draw(st.lists(st.integers(0, len(y_NC) - 1), max_size=40)) if len(y_NC) else []
    chosen = np.array(chosen, dtype=np.int64)
    same(Labels.of_matrix(y_NC).take(chosen), y_NC[chosen])


@QUICK
@given(matrices(), st.integers(0, 99))
def test_some_positives_of_all_rows(y_NC, seed):
    keep_NC = np.random.default_rng(seed).random(y_NC.shape) < 0.5
    labels = Labels.of_matrix(y_NC)
    same(labels.where(keep_NC[labels.row_P, labels.class_P]), y_NC & keep_NC)


def test_rarest_by_hand():
    y_NC = np.array([[1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 0, 0]], dtype=bool)
    assert Labels.of_matrix(y_NC).rarest().tolist() == [1, 2, 2, -1]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0], [3]], r"must lie in 0\.\.2, found 0\.\.3"),
        ([[-1], [2]], r"must lie in 0\.\.2, found -1\.\.2"),
        ([[0], [1, 2, 1]], "stands twice"),
        ([[0], None], "must not hold nulls"),
    ],
)
def test_impossible_lists_are_refused(lists, message):
    with pytest.raises(ValueError, match=message):
        Labels.of_lists(pa.array(lists, pa.list_(pa.int32())), 3)


def test_a_class_may_stand_at_the_end_of_a_row_and_the_start_of_the_next():
    labels = Labels.of_lists(pa.array([[0, 1], [1, 0], [0]], pa.list_(pa.int32())), 2)
    assert labels.counts().tolist() == [3, 2]


def test_ten_thousand_classes_are_never_a_matrix():
    """A dense matrix of these would have 2 * 10^9 entries."""
    size, classes = 200_000, 10_000
    column = pa.ListArray.from_arrays(
        pa.array(np.arange(size + 1, dtype=np.int32)), pa.array((np.arange(size) % classes).astype(np.int32))
    )
    labels = Labels.of_lists(column, classes)
    assert labels.class_P.nbytes + labels.offset_N1.nbytes < 3_000_000
    assert np.array_equal(labels.rarest(), np.arange(size) % classes)
    assert labels.take(np.arange(0, size, 2)).counts().max() == size // classes
