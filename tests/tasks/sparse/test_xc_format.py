"""The extreme-classification text format: numbers as in the file, and every fault with its file, line and field."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.sparse import xc_format
from anchorfl.tasks.sparse.pairs import (
    PAYLOAD,
    distinct,
    encode,
    fit,
    fit_scaled,
    label_lists,
    pair_lists,
    sparse_table,
)
from anchorfl.tasks.sparse.xc_format import Header, read_rows, read_splits
from anchorfl.tasks.synthetic.xc import Size, write_rows

GOOD = "6 10 4\n0,3 1:0.5 9:2\n 0:1.000000\n2\n3,1 7:1e-3 2:-4.25\n\n1  5:3 \r\n"
"""Labels out of order, no label, no feature, neither, spaces too many, another line end."""
LABELS = [[0, 3], [], [2], [1, 3], [], [1]]
PAIRS = [[2, 0.5, 10, 2], [1, 1], [], [8, 0.001, 3, -4.25], [], [6, 3]]


@pytest.fixture
def made(tmp_path):
    def write(text, name="x_train.txt"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def read(path, skip=False):
    return read_rows(path, BadRows(skip))


def parsed(path):
    """Parse the plain way: line by line, field by field."""
    first, *lines = path.read_text().splitlines()
    rows = [line.split(" ") for line in lines]
    labels = [[int(label) for label in row[0].split(",") if label] for row in rows]
    fields = [[field.split(":") for field in row[1:]] for row in rows]
    pairs = [[float(np.float32(v)) for f, value in row for v in (int(f) + 1, float(value))] for row in fields]
    return tuple(int(number) for number in first.split()), labels, pairs


def test_every_form_of_a_row_is_read(made):
    rows = read(made(GOOD))
    assert rows.header == Header(6, 10, 4)
    assert rows.labels.to_pylist() == LABELS
    assert rows.pairs.to_pylist() == [[float(np.float32(v)) for v in row] for row in PAIRS]
    assert rows.index_N.tolist() == list(range(6))
    assert (rows.labels.type, rows.pairs.type) == (pa.list_(pa.int32()), pa.list_(pa.float32()))


@pytest.mark.parametrize("block", [1, 40, 1000, 1 << 20])
@pytest.mark.parametrize("zipped", [False, True])
def test_what_was_written_comes_back_whatever_the_block(tmp_path, monkeypatch, block, zipped):
    path = tmp_path / "made_train.txt"
    write_rows(path, 120, Size(500, 30, 20, extra=2.0), np.random.default_rng(3))
    header, labels, pairs = parsed(path)
    if zipped:
        path = path.with_name("made_train.txt.gz")
        path.write_bytes(gzip.compress((tmp_path / "made_train.txt").read_bytes()))
    monkeypatch.setattr(xc_format, "BLOCK", block)
    rows = read(path)
    assert (rows.header.rows, rows.header.features, rows.header.labels) == header
    assert rows.labels.to_pylist() == labels
    assert rows.pairs.to_pylist() == pairs
    assert any(not row for row in labels)


def test_the_last_line_needs_no_line_end_and_empty_lines_may_follow(made):
    assert read(made("1 3 2\n1 0:1")).labels.to_pylist() == [[1]]
    assert read(made("1 3 2\n1 0:1\n\n \n")).pairs.to_pylist() == [[1, 1]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0 1:1 7", "field 2 ('7') has no colon; write feature:value"),
        ("0 10:1", "field 1 ('10:1'): features must be 0..9 by the first line; correct the row or that line"),
        ("0 -1:1", "field 1 ('-1:1'): features must be 0..9"),
        ("0 99999999999:1", "field 1 ('99999999999:1'): features must be 0..9"),
        ("4 1:1", "label 1 ('4'): labels must be 0..3 by the first line"),
        ("0,0 1:1", "label 2 ('0'): label 0 stands twice in the row; leave one out"),
        ("0 1:1 3:1 1:2", "field 3 ('1:2'): feature 1 stands twice in the row; leave one out"),
        ("0 1:nan", "field 1 ('1:nan') has a value that is not finite"),
        ("0 2:1 1:-inf", "field 2 ('1:-inf') has a value that is not finite"),
        ("0 1:1e39", "field 1 ('1:1e39') has a value that is not finite"),
        ("0 1:", "field 1 ('1:') has no number behind the colon; write feature:value"),
        ("0 1:one", "field 1 ('1:one') has no number behind the colon"),
        ("0 1:2:3", "field 1 ('1:2:3') has no number behind the colon"),
        ("0 a:1", "field 1 ('a:1') has no whole number for the feature"),
        ("0 0x1:1", "field 1 ('0x1:1') has no whole number for the feature"),
        ("x 1:1", "label 1 ('x') has no whole number for the label; a row without labels begins with a space"),
        ("1:1 2:1", "label 1 ('1:1') has no whole number for the label; a row without labels begins with a space"),
        ("0,,1 1:1", "label 2 ('') has no whole number for the label"),
    ],
)
def test_a_bad_row_is_named_or_left_out(made, row, message):
    good = [f"{n % 4} {n % 10}:{n}" for n in range(50)]
    path = made("\n".join(["51 10 4", *good[:30], row, *good[30:]]) + "\n")
    with pytest.raises(InputError, match=re.escape(f"{path}:32: {message}")) as caught:
        read(path)
    assert str(caught.value).endswith(", or leave such rows out with --task.on_bad_row skip")
    bad = BadRows(True)
    rows = read_rows(path, bad)
    assert rows.index_N.tolist() == [*range(30), *range(31, 51)]
    assert rows.labels.to_pylist() == [[n % 4] for n in range(50)]
    assert (bad.count, len(bad.listed)) == (1, 1)
    assert bad.listed[0].startswith(f"{path}:32: {message}")


def test_bad_rows_are_met_in_the_order_of_the_file(made):
    bad = BadRows(True)
    path = made("5 10 4\n9 1:1\n0 1:1\n0 1\n0 1:1\n\xff 1:1\n")
    assert read_rows(path, bad).index_N.tolist() == [1, 3]
    assert [line.split(":")[1] for line in bad.listed] == ["2", "4", "6"]
    assert read(made("2 10 4\nx\ny\n"), skip=True).labels.to_pylist() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the file is empty; get it again"),
        ("\n0 1:1\n", ":1: the first line is empty; write 'rows features labels'"),
        ("0,1 1:1\n", ":1: the first line is '0,1 1:1'; write 'rows features labels', three whole numbers above 0"),
        ("1 0 4\n0\n", ":1: the first line is '1 0 4'; write"),
        ("3 10 4\n0 1:1\n0 1:1\n", ":1: the header promises 3 rows, the file has 2; get the file again"),
        ("1 10 4\n0 1:1\n\n0 1:1\n", ":4: the header promises 1 rows, and here is one more; correct the first line"),
        ("1 16777216 4\n0 1:1\n", ":1: 16777216 features are more than the 16777215 that can be told apart; hash them"),
    ],
)
def test_a_header_that_lies_is_refused(made, text, message):
    path = made(text)
    for skip in (False, True):
        with pytest.raises(InputError, match=re.escape(f"{path}{message}")):
            read(path, skip)


def test_a_damaged_gzip_file_is_named(made):
    path = made(gzip.compress(GOOD.encode() * 9)[:-12], "x_train.txt.gz")
    with pytest.raises(InputError, match=r"x_train\.txt\.gz: the gzip file is damaged or cut short after line 0"):
        read(path)


def test_splits_are_read_by_column(made):
    train, test = made("1 3\n2 4\n", "tr"), made("3 1\n4 2\n", "tst")
    assert read_splits(train, test, 4, 0).tolist() == [False, False, True, True]
    assert read_splits(train, test, 4, 1).tolist() == [True, True, False, False]
    with pytest.raises(InputError, match=re.escape(f"{train}:1: column 3 holds no row number; write a whole number")):
        read_splits(train, test, 4, 2)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("2\n5\n", "tst:2: row number 5 is outside 1..4, the rows of the data"),
        ("2\n0\n", "tst:2: row number 0 is outside 1..4"),
        ("2\n3\n", r"tst:2: row number 3 already stands in .*tr:2; a row has one side of the split"),
        ("2\n2\n", r"tst:2: row number 2 already stands in .*tst:1; a row has one side"),
        ("2\nx\n", "tst:2: column 1 holds no row number"),
        ("2\n", r"tr: row number 4 \(1 in all\) is neither here nor in .*tst; get them again"),
    ],
)
def test_bad_splits_are_refused(made, test, message):
    with pytest.raises(InputError, match=message):
        read_splits(made("1\n3\n", "tr"), made(test, "tst"), 4, 0)


def sparse(pairs, features=4):
    lengths = np.array([len(row) for row in pairs])
    numbers, values = np.array([pair for row in pairs for pair in row], dtype=np.float64).reshape(-1, 2).T
    labels = pa.array([[0]] * len(pairs), pa.list_(pa.int32()))
    row_N = np.arange(len(pairs))
    return sparse_table(row_N, row_N == 1, labels, pair_lists(numbers, values, lengths), ["one"], features)


def test_encoding_keeps_pairs_or_scales_every_feature():
    table = sparse([[(1, 2.0), (3, 5.0)], [], [(3, 1.0)]])
    assert table["split"].to_pylist() == ["train", "test", "train"]
    plain = encode(table, fit(table, None))
    assert plain["x"].to_pylist() == [[1, 2, 3, 5], [], [3, 1]]
    dense = np.array([[2.0, 0, 5, 0], [0, 0, 0, 0], [0, 0, 1, 0]])
    spec = fit_scaled(table, None)
    assert np.array(spec.mean) == pytest.approx(dense.mean(0))
    assert np.array(spec.std) == pytest.approx(np.where(dense.std(0) > 0, dense.std(0), 1))
    for part in (table, pa.concat_tables([table.slice(0, 1), table.slice(1)])):
        x = np.array(encode(part, spec)["x"].to_pylist()).reshape(3, 4, 2)
        assert (x[..., 0] == [1, 2, 3, 4]).all()
        assert x[..., 1] == pytest.approx((dense - dense.mean(0)) / spec.std, rel=1e-6)
    for each in (spec, fit(table, None)):
        assert encode(table.slice(0, 0), each).num_rows == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1.0, 2.0, 3.0], "row 1 of the block has 3 values in features; they must be pairs"),
        ([1.0, 2.0, 5.0, 1.0], r"row 1 of the block has the pair \(5, 1\) in features; the number .* must be 1\.\.4"),
        ([1.5, 2.0], r"row 1 of the block has the pair \(1\.5, 2\)"),
        ([1.0, float("nan")], r"row 1 of the block has the pair \(1, nan\)"),
    ],
)
def test_encoding_refuses_pairs_that_are_none(row, message):
    table = pa.table({PAYLOAD: pa.array([[2.0, 1.0], row], pa.list_(pa.float64()))})
    with pytest.raises(InputError, match=message):
        encode(table, InputSpec("sparse", (4,)))
    with pytest.raises(InputError, match="the column features holds string; it must hold lists"):
        encode(pa.table({PAYLOAD: ["1:2"]}), InputSpec("sparse", (4,)))


def test_names_that_come_twice_get_their_number():
    assert distinct(["C", "Music", "c++", "music "]) == ["C", "Music", "c++ (label 2)", "music  (label 3)"]


def test_fit_needs_what_read_leaves():
    with pytest.raises(ValueError, match=r"read must leave the number of features .*'anchorfl\.features'"):
        fit(pa.table({PAYLOAD: [[1.0, 1.0]]}), None)


def test_a_row_without_a_feature_counts_as_zero_in_its_spread():
    pairs = pair_lists(np.array([1, 1]), np.array([2.0, 4.0]), np.array([1, 1, 0]))
    table = sparse_table(np.arange(3), np.zeros(3, bool), label_lists(np.zeros(3), np.ones(3, int)), pairs, ["a"], 1)
    assert fit_scaled(table, TaskOptions(name="x")).std == pytest.approx([np.std([2, 4, 0])])
