"""Rows on both sides of a split are found, whatever the kind of the payload."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.tasks.files import split_leaks


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b", "a", "c", "b", "d", "e"],
        [[1.0, 2.0], [3.0], [1.0, 2.0], [4.0], [3.0], [], [5.0]],
        [["x"], ["y"], ["x"], ["z"], ["y"], [], ["q"]],
    ],
)
@pytest.mark.parametrize("block", [2, 8192])
def test_twins_are_named_with_their_first_training_row(values, block, monkeypatch):
    monkeypatch.setattr(split_leaks, "BLOCK", block)
    split = ["train", "train", "train", "train", "test", "test", "validation"]
    table = pa.table({"row": pa.array([10, 11, 12, 13, 14, 15, 16]), "split": split, "p": pa.array(values)})
    assert split_leaks.leaked_rows(table, "p") == [(14, 11)]
    both = pa.concat_tables([table.slice(0, 4), table.slice(4).set_column(2, "p", pa.array(values)[2:5])])
    assert split_leaks.leaked_rows(both, "p") == [(14, 10), (15, 13)]


def test_fixed_lists_and_no_training_row():
    x = np.array([[1, 2], [1, 2], [3, 4]], dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2)
    table = pa.table({"row": [0, 1, 2], "split": ["train", "test", "test"], "p": column})
    assert split_leaks.leaked_rows(table, "p") == [(1, 0)]
    assert split_leaks.leaked_rows(table.slice(1), "p") == []


def test_paths_are_compared_by_their_files(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        split_leaks, "_whole", lambda path, whole=split_leaks._whole: read.append(path.name) or whole(path)
    )
    one, start, end = b"a" * 9000, b"b" + b"a" * 8999, b"a" * 8999 + b"b"
    contents = {"a": one, "b": b"alone", "c": start, "d": b"short", "e": one, "f": end, "g": b"shirt", "h": one}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    split = ["train", "train", "train", "train", "test", "test", "test", "validation"]
    for payload in ("image", "path"):
        paths = [str(tmp_path / name) for name in contents]
        table = pa.table({"row": range(20, 28), "split": split, payload: paths})
        assert split_leaks.leaked_rows(table, payload) == [(24, 20)]
    assert sorted(set(read)) == ["a", "c", "e", "f"]  # not those of which size or middle tell


def test_a_text_of_that_name_is_no_path():
    table = pa.table({"row": [0, 1], "split": ["train", "test"], "text": ["no/such", "no/such"]})
    assert split_leaks.leaked_rows(table, "text") == [(1, 0)]
