"""Tables in memory: the file is named after its content, is its owner's, and trains as a file of the user does."""

from __future__ import annotations

import stat

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anchorfl
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.tabular.in_memory import table_file


@pytest.fixture
def frame():
    draw = np.random.default_rng(0)
    kind = draw.integers(0, 3, 120)
    table = pd.DataFrame(draw.normal(size=(120, 3)) + 3 * kind[:, None], columns=["a", "b", "c"])
    return table.assign(kind=pd.Categorical.from_codes(kind, ["ash", "birch", "cedar"]))


def test_equal_tables_are_one_file_that_only_its_user_reads(frame, tmp_path):
    first = table_file(frame, str(tmp_path))
    assert table_file(frame.set_index(frame.index + 7), str(tmp_path)) == first
    assert table_file(pa.Table.from_pandas(frame), str(tmp_path)) == first
    assert table_file(frame.head(100), str(tmp_path)) != first
    table = pq.read_table(first)
    assert table.column_names == ["a", "b", "c", "kind"]
    assert not pa.types.is_dictionary(table.schema.field("kind").type)
    assert table.schema.metadata is None
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    assert len(list(first.parent.iterdir())) == 2
    first.write_bytes(b"cut")  # a disk that was full
    assert pq.read_table(table_file(frame, str(tmp_path))).num_rows == 120


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (3, "data: a int; give a pandas DataFrame, an Arrow table, or the path"),
        ({"a": [1]}, "data: a dict"),
        (pd.DataFrame({1: [2]}), "data: the name of column 1 is no text"),
        (pd.DataFrame({"secret": [1, "x", None]}), "data: Arrow cannot hold it (Conversion failed for column secret"),
    ],
)
def test_what_is_no_table_is_one_line(data, line, tmp_path):
    with pytest.raises(InputError) as caught:
        table_file(data, str(tmp_path))
    assert line in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_it_trains_as_its_file_does_and_predicts_by_names(frame, tmp_path):
    options = {"task.label_columns": "kind", "task.cache": str(tmp_path / "cache"), "cluster.executor": "serial",
               "federation.rounds": 2, "federation.epochs": 1, "tracking.uri": "none"}  # fmt: skip
    got = anchorfl.run(data=frame, options=options, folder=tmp_path / "frame")
    file = tmp_path / "mine.csv"
    frame.to_csv(file, index=False)
    assert anchorfl.run(data=file, options=options, folder=tmp_path / "file").checksum == got.checksum
    scores = got.predict(frame[["kind", "c", "b", "a"]].tail(5))
    assert scores.index.tolist() == [115, 116, 117, 118, 119]
    assert np.array_equal(scores, got.predict(frame[["a", "b", "c"]].tail(5)))
    assert np.array_equal(scores, got.predict(frame[["a", "b", "c"]].tail(5).to_numpy()))
    assert list(scores) == ["ash", "birch", "cedar"]
