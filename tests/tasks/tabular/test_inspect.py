"""The report on a user's table before anything trains."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.tabular.inspect import inspect_table, next_command
from tests.tasks.own_tables import parquet, trees

NO_TRAINING_ROW = (
    "no positive training row (give them some, or leave them out; --task.min_positives leaves rare classes out)"
)


def test_look_names_what_will_hurt(tmp_path):
    columns = trees() | {
        "part": ["train"] * 40 + ["test"] * 20,
        "flat": [3.0] * 60,
        "none": pa.nulls(60, pa.float64()),
        "label_a": [i % 2 for i in range(60)],
        "label_b": [0] * 60,
        "label_c": [None if i < 40 else 1 for i in range(60)],
    }
    columns["site"] = ["h0" if i % 2 else "h1" if i < 40 else "h2" for i in range(60)]
    columns["height"] = [float(i % 40) for i in range(60)]
    columns["girth"] = [1] * 60
    del columns["kind"]
    path = parquet(tmp_path, columns)
    found = inspect_table(TaskOptions(file=path, label_columns="label_*", client_column="site", split_column="part"))
    text = found.text()
    for part in (
        "labels   3 columns of 0 and 1, multi-label: label_a, label_b, label_c",
        "inputs   numbers, standardized, 4 columns (guessed; --task.input_columns names others): height, girth,"
        " flat, none",
        "not used id (a number of the row), spectrum (holds list<",
        "rows     train 40, test 20",
        "  c                                         0         20         40",
        f"{NO_TRAINING_ROW}: class 'b', 'c'",
        "no positive test row: class 'b'",
        "no training row, so no client: 'h2'",
        "1 of 3 values of 'site' have rows on both sides of the split (h0)",
        "20 test rows have the inputs of a training row (row = row: 41 = 1, 42 = 2",
        "nothing but missing values in training: 1 of 4 features: none",
        "a constant in training: 2 of 4 features: girth, flat",
    ):
        assert part in text
    assert found.stops == [
        f"{NO_TRAINING_ROW}: class 'b', 'c'",
        "no training row with a class: client 'h1'",
    ]
    assert found.bad_rows == 0


def test_look_lists_bad_rows_and_unlabeled_clients(tmp_path):
    columns = trees() | {"height": [np.inf if i in (4, 6) else float(i) for i in range(60)]}
    columns["kind"] = [None if s == "h3" else k for s, k in zip(columns["site"], columns["kind"], strict=True)]
    path = parquet(tmp_path, columns)
    found = inspect_table(TaskOptions(file=path, label_columns="kind", client_column="site"))
    assert found.stops[0] == (
        f"2 bad rows; the first: {path}: row 5: column 'height' is not finite, or beyond 3.4e+38; leave "
        "the cell empty or correct it"
    )
    assert found.stops[-1] == "no training row with a class: client 'h3'"
    assert found.bad_rows == len(found.stops) - 1
    assert "rows without any label: they stay, unlabeled" in found.text()
    numbers = {"x": [1.0, 2.0] * 10, "kind": [1, 2] * 10}
    assert (
        "the class names are numbers"
        in inspect_table(TaskOptions(file=parquet(tmp_path, numbers), label_columns="kind")).text()
    )


def test_a_bad_row_is_named_where_too_little_is_left_without_it(tmp_path):
    """What was left is no table; why, only the row says."""
    x, kind = [float(i) for i in range(60)], ["a", "b"] * 30
    holdout = {"x": x, "kind": kind, "part": ["train"] * 30 + ["holdout"] * 30}
    with pytest.raises(InputError, match=r"row 31: column 'part' holds 'holdout'.*write train, validation or test"):
        inspect_table(TaskOptions(file=parquet(tmp_path, holdout), label_columns="kind", split_column="part"))
    names = tmp_path / "names.txt"
    names.write_text("1,ash\n2,elm\n")
    numbers = parquet(tmp_path, {"x": x, "kind": [45, 46] * 30})
    with pytest.raises(InputError, match=r"row 1: column 'kind' holds '45', which is no class"):
        inspect_table(TaskOptions(file=numbers, label_columns="kind", class_names=str(names)))
    short = parquet(tmp_path, {"x": [[1.0], *[[1.0, 2.0]] * 59], "kind": kind})
    found = inspect_table(TaskOptions(file=short, label_columns="kind"))
    assert f"1 bad rows; the first: {short}: row 1: column 'x' holds 1 entries, most rows 2" in found.stops[0]


def test_numbers_that_are_no_classes_are_named(tmp_path):
    """Also where a bad row is met first: it is not why."""
    many = {"x": [1.5] * 60, "kind": [*range(50), *range(10)]}
    wanted = r"50 classes in 60 labeled rows are too many to draw a test split from"
    with pytest.raises(InputError, match=wanted):
        inspect_table(TaskOptions(file=parquet(tmp_path, many), label_columns="kind"))
    path = parquet(tmp_path, many | {"x": [*[1.5] * 59, np.inf]})
    wanted = wanted.replace("60", "59")
    with pytest.raises(
        InputError, match=rf"row 60: column 'x' is not finite.*what is left without bad rows: .*{wanted}"
    ):
        inspect_table(TaskOptions(file=path, label_columns="kind"))
    with pytest.raises(InputError, match=wanted) as caught:
        inspect_table(TaskOptions(file=path, label_columns="kind", on_bad_row="skip"))
    assert "row 60" not in str(caught.value)
    tags = parquet(tmp_path, {"x": [1.5] * 60, "kind": [["common", f"t{i}"] for i in range(60)]})
    with pytest.raises(InputError, match=r"60 labeled rows are too few to draw a test split from; give a column with"):
        inspect_table(TaskOptions(file=tags, label_columns="kind"))


def test_good_classes_are_not_given_up_for_one_of_the_test_split(tmp_path):
    kinds, parts = ["a", "b", "c"] * 20 + ["d"] * 30, (["train"] * 3 + ["test"] * 3) * 10 + ["test"] * 30
    path = parquet(tmp_path, {"x": [float(i) for i in range(90)], "kind": kinds, "part": parts})
    options = TaskOptions(file=path, label_columns="kind", split_column="part", classes_per_client=2)
    found = inspect_table(options)
    assert found.run is None, "min_positives 31 would leave nothing but d"
    assert any("leave them out; " in line and line.endswith("class 'd'") for line in found.stops)


def test_the_next_command_goes_on_leaving_out_bad_rows(tmp_path):
    columns = {"x": [np.inf] + [float(i) for i in range(599)], "kind": ["a", "b"] * 300}
    options = TaskOptions(file=parquet(tmp_path, columns), label_columns="kind", on_bad_row="skip")
    found = inspect_table(options)
    assert "--task.on_bad_row skip" in next_command(options, found)
    assert not any("cannot be dealt" in line for line in found.problems), "a run's own default is both classes"


def test_look_without_labels_shows_the_columns(tmp_path):
    found = inspect_table(TaskOptions(file=parquet(tmp_path, trees())))
    assert (
        "  kind                         text              7  labels, an input (categories), a client or a split"
        in found.lines
    )
    assert any("spectrum" in line and "vector" in line for line in found.lines)


@pytest.mark.data
def test_scene_as_a_table_has_the_counts_of_its_files(data_folder, tmp_path):
    """1211 training and 1196 test rows, 294 features, 6 classes; six test rows are training rows."""
    columns = dict[str, list[float]]()
    for split in ("train", "test"):
        path = data_folder / "mulan_multilabel" / "scene" / f"scene-{split}.arff.gz"
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        names = [line.split()[1] for line in lines if line.lower().startswith("@attribute")]
        rows = [line.split(",") for line in lines[lines.index("@data") + 1 :] if line.strip()]
        for name, values in zip([*names, "split"], [*zip(*rows, strict=True), [split] * len(rows)], strict=True):
            columns.setdefault(name, []).extend(values if name == "split" else map(float, values))
    labels = ",".join(names[-6:])
    found = inspect_table(TaskOptions(file=parquet(tmp_path, columns), label_columns=labels, split_column="split"))
    assert "rows     train 1211, test 1196" in found.lines
    assert any("294 columns" in line for line in found.lines)
    assert [line.split() for line in found.lines if line.startswith("  Beach")] == [["Beach", "227", "200", "0"]]
    assert any(line.startswith("6 test rows have the inputs of a training row") for line in found.problems)
