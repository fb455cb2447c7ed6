"""Tables in memory: the file is named after its content, is its owner's, and trains as a file of the user does."""

from __future__ import annotations

import stat

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anchorfl
from anchorfl.pipeline.cli.main import main
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
        (pd.DataFrame({"age": pd.cut(pd.Series([1.0, 5.0, 9.0]), 2)}), "data: column 'age' holds "),
        (pd.DataFrame({"a": [1, 2], "big": [2**70, 1]}), "data: column 'big' holds object, which no Parquet file can"),
        (pd.DataFrame({"a": [1, 2], "bag": [{}, {}]}), "data: column 'bag' holds struct<>, which no Parquet file can"),
        (
            pd.DataFrame({"bad": pd.Series(["x", "\udc80"], dtype=object)}),
            "data: column 'bad' holds object, which no Parquet file",
        ),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "data: two columns are called 'a'; rename one"),
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
    with pytest.raises(InputError, match=r"the input lacks column 'a'; give a DataFrame with the model's"):
        got.predict(frame[["b", "c"]].assign(d=1.0))  # three columns, too
    with pytest.raises(InputError, match=r"the input lacks column 'a'; give a DataFrame with the model's"):
        got.predict(frame[["c", "b", "a"]].rename(columns=str.upper))  # it took them by their places
    assert np.array_equal(scores, got.predict(pd.DataFrame(frame[["a", "b", "c"]].tail(5).to_numpy(), scores.index)))
    for nothing in (frame.head(0), np.zeros((0, 3))):
        none = got.predict(nothing)
        assert (list(none.columns), len(none)) == (list(scores.columns), 0)
    assert list(scores) == ["ash", "birch", "cedar"]


SMALL = {
    "task.clients": 3,
    "cluster.executor": "serial",
    "federation.rounds": 1,
    "federation.epochs": 1,
    "tracking.uri": "none",
}


@pytest.mark.parametrize(
    "cells",
    [
        [[float(i % 3), float(i)] for i in range(60)],
        [[[float(i % 3), 1.0], [2.0, float(i)]] for i in range(60)],
        [f"word{i % 3} and more of them" for i in range(60)],
        [float(i % 5) for i in range(60)],
    ],
    ids=["vectors", "series", "texts", "numbers"],
)
def test_a_table_of_one_input_column_predicts_by_its_name(tmp_path, cells):
    """As ``anchorfl predict`` does of the file, to six digits of the CSV."""
    table = pd.DataFrame({"id": range(60), "what": cells, "kind": ["ash", "birch", "cedar"] * 20})
    options = {"task.label_columns": "kind", "task.input_columns": "what", "task.cache": str(tmp_path / "cache")}
    run = anchorfl.run(data=table, options=options | SMALL, folder=tmp_path / "run")
    table.tail(5).to_parquet(tmp_path / "new.parquet")
    assert main(["predict", str(run.folder), str(tmp_path / "new.parquet"), "--out", str(tmp_path / "p.csv")]) == 0
    by_file = pd.read_csv(tmp_path / "p.csv")[["ash", "birch", "cedar"]]
    assert np.allclose(run.predict(table.tail(5)), by_file, atol=1e-5)


@pytest.mark.parametrize(
    ("made", "given", "line"),
    [
        ("series", [[[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]], "sample 1: give a list of 3 steps, each a list of 2 values"),
        ("series", [[[1.0, 2.0, 3.0], [4.0], [5.0, 6.0]]], "sample 1: give a list of 3 steps, each a list of 2 values"),
        ("series", [None], "sample 1: give a list of 3 steps, each a list of 2 values"),
        ("texts", None, "the input has two columns 'what'; rename one"),
        ("texts", {"what": ["w"]}, "the input is {'what': ['w']}; give a list of texts"),
        ("numbers", None, "the input has two columns 'what'; rename one"),
    ],
)
def test_samples_of_another_form_are_no_predictions(tmp_path, made, given, line):
    """Series were read in another order, and of two columns the names were taken for texts."""
    cells = {
        "series": [[[float(i % 3), 1.0], [2.0, float(i)], [0.0, 0.5]] for i in range(60)],
        "texts": [f"word{i % 3} and more of them" for i in range(60)],
        "numbers": [float(i % 5) for i in range(60)],
    }[made]
    table = pd.DataFrame({"what": cells, "kind": ["ash", "birch", "cedar"] * 20})
    options = {"task.label_columns": "kind", "task.input_columns": "what", "task.cache": str(tmp_path / "cache")}
    run = anchorfl.run(data=table, options=options | SMALL, folder=tmp_path / "run")
    if given is None:
        given = pd.concat([table[["what"]], table[["what"]]], axis=1)
    elif isinstance(given, list):
        given = pd.DataFrame({"what": given})
    with pytest.raises(InputError) as caught:
        run.predict(given)
    assert str(caught.value) == line
    if made == "series":
        flat = table.head(4).assign(what=[[x for step in steps for x in step] for steps in table["what"].head(4)])
        assert np.array_equal(run.predict(flat), run.predict(table.head(4)))
    arrow = pa.Table.from_pandas(table.head(4), preserve_index=False)
    assert np.array_equal(run.predict(arrow), run.predict(table.head(4)))


def test_paths_of_images_in_a_table_in_memory_are_one_line(tmp_path):
    table = pd.DataFrame({"img": [f"img/{i}.png" for i in range(20)], "kind": ["ash", "elm"] * 10})
    with pytest.raises(InputError, match="'img' holds paths of images, and a table in memory lies beside none: write"):
        anchorfl.run(data=table, options={"task.label_columns": "kind", "task.cache": str(tmp_path)} | SMALL)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ([None, None], ""),
        (["ash", "elm"], "column 'tags' holds string, where lists of classes are asked for"),
        ([1.5, 2.5], "column 'tags' holds double, where lists of classes are asked for"),
        ([["ash"], ["oak"]], "row 2: column 'tags' holds 'oak', which is no class; correct it, or add it to the names"),
    ],
)
def test_labels_of_another_form_are_one_line(tmp_path, capsys, cells, line):
    table = pd.DataFrame({"a": [float(i) for i in range(60)], "tags": [["ash"], ["elm"], ["ash", "elm"]] * 20})
    options = {"task.label_columns": "tags", "task.cache": str(tmp_path / "cache")}
    run = anchorfl.run(data=table, options=options | SMALL, folder=tmp_path / "run")
    pd.DataFrame({"a": [1.0, 2.0], "tags": cells}).to_parquet(tmp_path / "new.parquet")
    code = main(["predict", str(run.folder), str(tmp_path / "new.parquet"), "--out", str(tmp_path / "p.csv")])
    assert code == (2 if line else 0)
    assert capsys.readouterr().err.strip().endswith(line)
