"""What a client sees and tells."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.columns import list_parts, lists_of, matrix_of, padded, table_digest
from tasks.disclose import card, disclosed_table, known_classes

Y = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=bool)
MULTI = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=bool)


def test_single_label_knows_all_or_nothing():
    assert known_classes(Y, (0, 2), "single").tolist() == [[True] * 3, [False] * 3, [True] * 3]


def test_multi_label_knows_the_identified_classes_everywhere():
    assert known_classes(MULTI, (0, 2), "multi").tolist() == [[True, False, True]] * 3


def test_a_card_counts_known_positives_only():
    told = card(7, MULTI, known_classes(MULTI, (1, 2), "multi"), (1, 2))
    assert (told.client, told.num_examples) == (7, 3)
    assert told.count_C.tolist() == [0, 1, 1]
    assert told.aware_C.tolist() == [False, True, True]
    assert card(0, Y, known_classes(Y, (0,), "single"), (0,)).count_C.tolist() == [1, 0, 0]


def test_a_disclosed_table_is_in_row_order_and_holds_no_other_label():
    raw = pa.table({"row": [5, 1, 3], "labels": lists_of(Y), "x": [[1, 2], [3], []]})
    table = disclosed_table(raw, (0, 2), 3, "single")
    assert table.to_pydict() == {
        "row": [1, 3, 5],
        "x": [[3], [], [1, 2]],
        "labels": [[], [2], [0]],
        "known": [[], [0, 1, 2], [0, 1, 2]],
    }


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.integers(0, 4), unique=True).map(sorted), min_size=1), st.integers(0, 5))
def test_lists_and_matrices_are_each_others_inverse(rows, cut):
    column = pa.chunked_array([pa.array(rows[:cut], pa.list_(pa.int32())), pa.array(rows[cut:], pa.list_(pa.int32()))])
    y_NC = matrix_of(column, 5)
    assert lists_of(y_NC).to_pylist() == rows
    x_NL, length_N = padded(column.slice(1)) if len(rows) > 1 else padded(column)
    expected = rows[1:] if len(rows) > 1 else rows
    assert [x[:n].tolist() for x, n in zip(x_NL, length_N, strict=True)] == expected
    assert x_NL.sum() == sum(map(sum, expected))
    whole = pa.table({"a": column.combine_chunks()})
    assert table_digest(pa.table({"a": column})) == table_digest(whole)


def test_bad_columns_are_refused():
    with pytest.raises(ValueError, match=r"0\.\.1"):
        matrix_of(pa.array([[2]]), 2)
    with pytest.raises(ValueError, match="null"):
        list_parts(pa.array([[1], None]))
