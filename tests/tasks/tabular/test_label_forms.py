"""Labels, splits and numbers as other programs write them: read as they are meant, or asked about in one line."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.tabular.table import read_samples
from tests.tasks.own_tables import csv, parquet, table

X = [1.5, 2.5, 0.5, 4.5]


def tags(*cells, times=10):
    return "x,tags\n" + "".join(f'{X[i % 4]},"{cell}"\n' for i, cell in enumerate(cells * times))


def test_lists_as_python_writes_them_are_lists(tmp_path):
    path = csv(tmp_path, tags("['sad', 'quiet']", "['happy']", "[]", '["it\'s"]'.replace('"', '""')))
    task, raw, _ = table(path, label_columns="tags")
    assert (task.kind, task.class_names) == ("multi", ("happy", "it's", "quiet", "sad"))
    assert raw["labels"].to_pylist()[:4] == [[2, 3], [0], [], [1]]


@pytest.mark.parametrize(
    ("cells", "option"),
    [
        (("sad; quiet", "happy"), "--task.label_separator ';'"),
        (("sad|quiet", "happy"), "--task.label_separator '|'"),
        (("sad, quiet", "quiet"), "--task.label_separator ',',"),
        (("['sad' 'quiet']", "['happy']"), "--task.label_separator none"),
        (("['sad']", "happy"), "--task.label_separator none"),
    ],
)
def test_cells_that_look_like_lists_are_asked_about(tmp_path, cells, option):
    path = csv(tmp_path, tags(*cells))
    with pytest.raises(InputError, match=r"row 1: column 'tags' holds") as caught:
        table(path, label_columns="tags")
    assert cells[0] in str(caught.value)
    assert option in str(caught.value)
    assert table(path, label_columns="tags", label_separator="none")[0].kind == "single"


def test_a_comma_within_a_name_is_no_list(tmp_path):
    assert table(csv(tmp_path, tags("acid, weak", "base")), label_columns="tags")[0].kind == "single"


@pytest.mark.parametrize("write", [csv, parquet])
def test_a_separator_makes_lists_also_for_a_trained_model(tmp_path, write):
    cells = ("sad; quiet", "happy;", "", "quiet")
    columns = {"x": X * 10, "tags": [cell or None for cell in cells] * 10}
    path = write(tmp_path, tags(*cells) if write is csv else columns)
    task, raw, options = table(path, label_columns="tags", label_separator=";")
    assert (task.kind, task.class_names) == ("multi", ("happy", "quiet", "sad"))
    assert raw["labels"].to_pylist()[:4] == [[1, 2], [0], [], [1]]
    assert raw["known"].to_pylist()[:4] == [None, None, [], None], "an empty cell is not known"
    found = read_samples(tmp_path / path, task.fit(raw, options), "multi", task.class_names)
    assert found.table["labels"].to_pylist() == raw["labels"].to_pylist()


def test_cells_of_one_number_each_are_lists_for_a_model_that_was_trained_on_lists(tmp_path):
    task, raw, options = table(csv(tmp_path, tags("1;2", "2", "", "1")), label_columns="tags", label_separator=";")
    new = csv(tmp_path, tags("2", "1", "", "1"), "new.csv")
    found = read_samples(tmp_path / new, task.fit(raw, options), "multi", task.class_names)
    assert found.table["labels"].to_pylist()[:4] == [[1], [0], [], [0]]


def test_a_separator_for_what_is_no_text_is_refused(tmp_path):
    path = parquet(tmp_path, {"x": X * 5, "a": [0, 1] * 10, "b": [1, 0] * 10})
    with pytest.raises(InputError, match="label_separator = ';' is for one label column of texts"):
        table(path, label_columns="a,b", label_separator=";", input_columns="x")


@pytest.mark.parametrize("kind", [pa.int8(), pa.float64()])
def test_minus_one_is_no(tmp_path, kind):
    columns = {"x": X * 5, "a": pa.array([-1, 1] * 10, kind), "b": pa.array([1, None] * 10, kind)}
    _, raw, _ = table(parquet(tmp_path, columns), label_columns="a,b", input_columns="x")
    assert raw["labels"].to_pylist()[:2] == [[1], [0]]
    assert raw["known"].to_pylist()[:2] == [None, [0]]


@pytest.mark.parametrize("values", [[-1, 0, 1, 1], [1, 2, 1, 2]])
def test_other_numbers_for_labels_are_refused_as_a_whole(tmp_path, values):
    """Leaving out the rows that have them would leave a biased rest."""
    path = parquet(tmp_path, {"x": X * 5, "a": values * 5, "b": [1, 0] * 10})
    with pytest.raises(InputError, match=r"column 'a' holds (-1|2), and \d other rows .*write 1 for yes, 0") as caught:
        table(path, label_columns="a,b", input_columns="x", on_bad_row="skip")
    assert "skip" not in str(caught.value)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("write", "kind"), [(parquet, int), (parquet, float), (parquet, bool), (csv, int)])
def test_numbers_for_all_classes_in_a_cell_are_refused(tmp_path, classes, write, kind):
    """They were read as lists of class 0 and class 1."""
    rows = [[kind(i % classes == c) for c in range(classes)] for i in range(20)]
    if write is csv:
        path = csv(tmp_path, "x,kind\n" + "".join(f'{i},"{row}"\n' for i, row in enumerate(rows)))
    else:
        path = parquet(tmp_path, {"x": [i * 0.5 for i in range(20)], "kind": rows})
    with pytest.raises(InputError, match=rf"column 'kind' holds {classes} numbers of 0 and 1 in each row; give a col"):
        table(path)


def test_words_for_the_splits(tmp_path):
    words = ["Training", "TRAIN ", "val", "Validation", "Testing", "test"]
    path = parquet(tmp_path, {"x": [1.5] * 12, "kind": ["a", "b"] * 6, "part": words * 2})
    _, raw, _ = table(path, split_column="part")
    assert raw["split"].to_pylist()[:6] == ["train", "train", "validation", "validation", "test", "test"]


@pytest.mark.parametrize("words", [["one", "two"], ["train", "val"]])
def test_a_split_column_without_training_or_test_rows_is_named(tmp_path, words):
    path = parquet(tmp_path, {"x": [1.5] * 12, "kind": ["a", "b"] * 6, "part": words * 6})
    with pytest.raises(InputError, match=re.escape(f"{path}: column 'part' has no t")) as caught:
        table(path, split_column="part")
    assert repr(words[1]) in str(caught.value)


@pytest.mark.parametrize("number", ["0,5", "1.234,5", "1,234"])
def test_decimal_commas_are_refused_with_the_row(tmp_path, number):
    text = "x;y;kind\n" + "".join(f"{number if i else 7};{number};{'ab'[i % 2]}\n" for i in range(20))
    with pytest.raises(InputError, match=rf"row 2: column 'x' holds '{number}', a number with a comma; write decimal"):
        table(csv(tmp_path, text))


@pytest.mark.parametrize("pair", [("\u00e9t\u00e9", "e\u0301te\u0301"), ("cat", "c\u200bat"), ("dog", "dog\ufeff")])
def test_class_names_that_look_the_same_are_refused(tmp_path, pair):
    path = parquet(tmp_path, {"x": X * 5, "kind": [*pair] * 10})
    with pytest.raises(InputError, match="characters that look the same or are not seen; rename one") as caught:
        table(path)
    assert str(caught.value).isascii(), "the two are told apart"
