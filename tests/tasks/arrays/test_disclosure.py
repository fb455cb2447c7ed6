"""The labels that a client is given."""

from __future__ import annotations

import hashlib
import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.tasks.arrays.arrow import columns_digest, list_parts, padded, table_digest
from anchorfl.tasks.arrays.disclosure import disclose, disclose_table, known_matrix
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.ingest.rows_files import Extent, read_rows_of, write_rows

Y = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=bool)
MULTI = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=bool)


def seen(y_NC, given, classes, kind):
    """Return what is disclosed, as lists."""
    given = None if given is None else pa.array(given, pa.list_(pa.int32()))
    labels, known = disclose(Labels.of_matrix(y_NC), given, classes, kind)
    return labels.lists().to_pylist(), known.to_pylist()


def test_single_label_knows_all_or_nothing():
    assert seen(Y, None, (0, 2), "single") == ([[0], [], [2]], [None, [], None])
    known = known_matrix(pa.array([None, [], None], pa.list_(pa.int32())), range(3), 3)
    assert known.tolist() == [[True] * 3, [False] * 3, [True] * 3]


def test_multi_label_knows_the_identified_classes_everywhere():
    assert seen(MULTI, None, (0, 2), "multi") == ([[0], [], [2]], [None] * 3)
    assert known_matrix(pa.nulls(2, pa.list_(pa.int32())), (0, 2), 3).tolist() == [[True, False, True]] * 2


def test_what_the_raw_data_do_not_label_stays_unknown():
    """A null means all that the client identifies; a list is cut to it."""
    assert seen(MULTI, [[0, 1], None, [1, 2]], (0, 2), "multi") == ([[0], [], [2]], [[0], None, [2]])
    unlabeled = np.zeros((2, 3), dtype=bool)
    assert seen(unlabeled, [[], []], (0, 1, 2), "single") == ([[], []], [[], []])


def test_a_disclosed_table_is_in_row_order_and_holds_no_other_label():
    raw = pa.table({"row": [5, 1, 3], "labels": Labels.of_matrix(Y).lists(), "x": [[1, 2], [3], []]})
    table = disclose_table(raw, (0, 2), 3, "single")
    assert table.to_pydict() == {
        "row": [1, 3, 5],
        "x": [[3], [], [1, 2]],
        "labels": [[], [2], [0]],
        "known": [[], None, None],
    }


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.integers(0, 4), unique=True).map(sorted), min_size=1), st.integers(0, 5))
def test_lists_and_matrices_are_each_others_inverse(rows, cut):
    column = pa.chunked_array([pa.array(rows[:cut], pa.list_(pa.int32())), pa.array(rows[cut:], pa.list_(pa.int32()))])
    y_NC = Labels.of_lists(column, 5).matrix()
    assert Labels.of_matrix(y_NC).lists().to_pylist() == rows
    x_NL, length_N = padded(column.slice(1)) if len(rows) > 1 else padded(column)
    expected = rows[1:] if len(rows) > 1 else rows
    assert [x[:n].tolist() for x, n in zip(x_NL, length_N, strict=True)] == expected
    assert x_NL.sum() == sum(map(sum, expected))
    whole = pa.table({"a": column.combine_chunks()})
    assert table_digest(pa.table({"a": column})) == table_digest(whole)


def test_bad_columns_are_refused():
    with pytest.raises(ValueError, match=r"0\.\.1"):
        Labels.of_lists(pa.array([[2]]), 2)
    with pytest.raises(ValueError, match="null"):
        list_parts(pa.array([[1], None]))


def test_more_values_than_an_array_can_hold(monkeypatch):
    """They stay in chunks; the content and its digest are the same."""
    x = [pa.array([[row, row + 1]], pa.list_(pa.uint8())) for row in (3, 0, 2, 1)]
    columns = {"row": [3, 0, 2, 1], "x": pa.chunked_array(x), "labels": pa.array([[0]] * 4, pa.list_(pa.int32()))}
    table = pa.table(columns)
    whole = disclose_table(table, (0, 1), 2, "single")
    assert whole["x"].num_chunks == 1
    digest = table_digest(whole)
    monkeypatch.setattr("anchorfl.tasks.arrays.arrow.MOST_VALUES", 8)
    monkeypatch.setattr("anchorfl.tasks.arrays.chunks.MAX_CHUNK_BYTES", 8)
    cut = disclose_table(table, (0, 1), 2, "single")
    assert cut["x"].num_chunks > 1
    assert cut.equals(whole)
    assert table_digest(cut) == digest


def test_a_digest_piece_by_piece():
    """Whatever the pieces, empty ones among them, it is that of the table; another value, null or order is another."""
    table = pa.table({"n": [3, 1, 2], "x": pa.array([[1, 2], None, []], pa.list_(pa.float32()))})

    def pieces(*cuts):
        bounds = [0, *cuts, 3]
        parts = [table.slice(start, end - start) for start, end in pairwise(bounds)]
        return columns_digest({name: lambda name=name: (part[name] for part in parts) for name in table.column_names})

    assert pieces(1) == pieces(1, 1, 2) == pieces() == table_digest(table)
    assert table_digest(table.take([0, 2, 1])) != table_digest(table)
    assert table_digest(table.set_column(1, "x", table["x"].fill_null([]))) != table_digest(table)


def test_groups_of_owners_in_one_file():
    """Each owner is read without the other, from groups of its own."""
    kinds = {"labels": pa.list_(pa.int32()), "x": pa.list_(pa.uint8())}
    table = pa.table({"row": [0, 1, 2], **{name: pa.array([[0], [1], [1]], kind) for name, kind in kinds.items()}})
    rows = disclose_table(table, (0, 1), 2, "single")
    extents, _ = write_rows(file := io.BytesIO(), [[rows.slice(0, 2)], [rows, rows.slice(1)]], 7)
    data, footer = file.getvalue(), pq.read_metadata(file)
    first, second = (Extent.of(extents, owner) for owner in (0, 1))
    assert (first.file, first.group, first.groups, second.group, second.groups) == (7, 0, 1, 1, 2)
    assert first.offset == 0
    assert second.offset == first.size
    for extent, expected in ((first, rows.slice(0, 2)), (second, pa.concat_tables([rows, rows.slice(1)]))):
        part = data[extent.offset :][: extent.size]
        assert read_rows_of(extent, part, footer).equals(expected)
        assert hashlib.sha256(part).digest() == extent.sha256
    with pytest.raises((OSError, ValueError)):  # which the reader says as damage
        read_rows_of(second, data[second.offset :][:10], footer)
