"""Every fault of a user's table, with file, row and column."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows, skipped
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.tabular.reading import open_file
from anchorfl.tasks.tabular.table import resolve_options
from tests.tasks.own_tables import KINDS, csv, parquet, table, trees

LISTS = {"kind": list(KINDS) * 4, "v": [[1.0, 2.0]] * 12}
TEXT = "x,kind\n" + "1,a\n2,b\n" * 10


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"x": [1.0] * 3, "a": [0, 1, 2], "b": [0, 1, 1]}, {"label_columns": "a,b"},
        "row 3: column 'a' holds 2; a label"),
        ({"x": [1.0] * 2, "a": ["0", "1"], "b": [0, 1]}, {"label_columns": "a,b"},
        "column 'a' holds string; several label"),
        ({"x": [1.0] * 2, "kind": [0.5, 1]}, {}, "column 'kind' holds 0.5; a class is a name or a whole number"),
        ({"x": [1.0] * 2, "kind": ["Ash ", "ash"]}, {}, "class names: 'Ash ' and 'ash' differ only in case or spaces"),
        ({"x": [1.0] * 2, "kind": ["a", "a"]}, {}, "column 'kind' holds 1 class; a task needs at least 2"),
        ({"x": [1.0] * 2, "kind": [["a", "a"], ["b"]]}, {}, "row 1: column 'kind' names class 'a' twice"),
        ({"x": [1.0] * 2, "kind": [["a", None], ["b"]]}, {}, "row 1: column 'kind' holds a list with an empty entry"),
        ({"x": [1.0] * 2, "kind": [[["a"]], [["b"]]]}, {}, "labels are names, whole numbers or lists of them"),
        ({"x": [1.0, np.inf], "kind": ["a", "b"]}, {}, "row 2: column 'x' is not finite"),
        ({"x": [1.0] * 2, "kind": ["a", "b"]}, {"label_columns": "knd"}, "label_columns: 'knd' is no column of"),
        ({"x": [1.0] * 2, "kind": ["a", "b"]}, {"label_columns": ""}, "say which columns hold the labels"),
        ({"x": [1.0] * 2, "kind": ["a", "b"]}, {"client_column": "site"}, "client_column = 'site' is no column of"),
        ({"x": [1.0] * 2, "kind": ["a", "b"]}, {"input_columns": "x,kind"}, "input_columns names column 'kind'"),
        ({"x": [1.0] * 2, "t": ["u", "v"], "kind": ["a", "b"]}, {"input_columns": "x,t"}, "'t' holds no two texts"),
        ({"kind": ["a", "b"]}, {}, "no column of numbers is left to be the input"),
        ({"d": pa.array([1, 2], pa.date32()), "kind": ["a", "b"]}, {"input_columns": "d"}, "column 'd' holds date32"),
        (LISTS | {"v": [[1.0, 2.0]] * 10 + [[1.0], None]}, {}, "row 11: column 'v' holds 1 entries, most rows 2"),
        (LISTS | {"v": [[1.0], *[[1.0, 2.0]] * 11]}, {}, "row 1: column 'v' holds 1 entries, most rows 2"),
        (LISTS | {"v": [[1.0] * n for n in range(1, 13)]}, {},
         "column 'v' holds lists of 1 to 12 entries, no length in half of the rows; give each row as many"),
        (LISTS | {"v": [[1.0, np.inf]] * 12}, {}, "row 1: column 'v' holds a value that is not finite"),
        (LISTS | {"v": [[[1.0]], [[1.0, 2.0]]] * 6}, {}, "row 2: column 'v' has a step that does not hold 1 values"),
        (LISTS | {"v": ["a", " "] * 6}, {}, "row 2: column 'v' is empty; fill in the text or remove the row"),
        (LISTS | {"s": ["train", "tset"] * 6}, {"split_column": "s"},
        "row 2: column 's' holds 'tset' (did you mean 'test'?)"),
        (LISTS | {"s": ["train", "test"] * 6, "kind": ["a", "b", "a", None] * 3}, {"split_column": "s"},
         "row 4: a test row without a label"),
        (LISTS | {"c": ["u", None] * 6}, {"client_column": "c"}, "row 2: column 'c' is empty; say whose row it is"),
        ({"x": [1.0] * 3, "kind": KINDS}, {}, "3 labeled rows are too few to draw a test split from"),
        (LISTS | {"v": [1.0] * 11 + [1e39]}, {}, "row 12: column 'v' is not finite, or beyond 3.4e+38"),
        (LISTS | {"v": [[1.0]] * 11 + [[-1e39]]}, {}, "row 12: column 'v' holds a value that is not finite, or beyond"),
        (LISTS | {"v": [[]] * 12}, {}, "column 'v' holds only empty lists; name another input"),
        (LISTS | {"c": [1.0, np.nan] * 6}, {"client_column": "c"}, "row 2: column 'c' is empty; say whose row it is"),
        (LISTS | {"c": ["u", "so\tuth"] * 6}, {"client_column": "c"}, r"row 2: column 'c' holds 'so\tuth', with"),
        (LISTS | {"c": ["north\u200e"] * 12}, {"client_column": "c"}, r"row 1: column 'c' holds 'north\u200e', with"),
        (LISTS | {"c": [[1]] * 12}, {"client_column": "c"}, "column 'c' ([task] client_column) holds list<"),
        (LISTS | {"c": [[1]] * 12}, {"split_column": "c"}, "column 'c' ([task] split_column) holds list<"),
        ({"x": [1.0] * 2, "kind": [2.0**53, 1.0]}, {}, "column 'kind' holds 9.0072e+15: numbers of classes from"),
    ],
)  # fmt: skip
def test_bad_tables_are_named(tmp_path, columns, options, message):
    path = parquet(tmp_path, columns)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        table(path, **options)
    assert "\n" not in str(caught.value)
    assert path in str(caught.value) or "[task]" in str(caught.value)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_rows_that_scores_are_made_of_need_a_label(tmp_path, part):
    columns = {"x": [1.0, 2.0] * 6, "kind": ["a", "b"] * 6, "part": ["train"] * 6 + ["validation"] * 3 + ["test"] * 3}
    columns["kind"][columns["part"].index(part)] = columns["kind"][0] = None
    with pytest.raises(InputError, match=rf"row {columns['part'].index(part) + 1}: a {part} row without a label; fill"):
        table(parquet(tmp_path, columns), split_column="part")
    columns["part"][columns["part"].index(part)] = "train"
    assert table(parquet(tmp_path, columns), split_column="part")[1].num_rows == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat\nx\tdog\n", ":2: give a class name on every line, or 'id<TAB>name' on every line"),
        ("", ":1: give a class name on every line"),
        ("cat\n", "1 names for 2 label columns; give one a line for each"),
        ("a\tcat\nc\tdog\n", "no line for column 'b'"),
        ("a\tcat\nb\tCat\n", "'cat' and 'Cat' differ only in case or spaces"),
        ("a\tcat\nb\tcat\n", "class names: two are 'cat'; rename one"),
    ],
)
def test_bad_class_names_are_named(tmp_path, text, message):
    names = tmp_path / "names.txt"
    names.write_text(text)
    path = parquet(tmp_path, {"x": [1.0] * 4, "a": [0, 1] * 2, "b": [1, 0] * 2})
    with pytest.raises(InputError, match=re.escape(message)):
        table(path, label_columns="a,b", class_names=str(names))
    with pytest.raises(InputError, match=r"class_names = .*: no such file"):
        table(path, label_columns="a,b", class_names=str(tmp_path / "none.txt"))


def test_a_value_outside_the_class_names_is_a_bad_row(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("ash\nbeech\nelms\n")
    with pytest.raises(InputError, match=r"row 3: column 'kind' holds 'elm', which is no class \(did you mean 'elms'"):
        table(parquet(tmp_path, trees()), class_names=str(names), ignore_columns="site")
    names.write_text("ash\nbeech\n")
    _, raw, _ = table(parquet(tmp_path, trees()), class_names=str(names), ignore_columns="site", on_bad_row="skip")
    count, messages = skipped(raw)
    assert (raw.num_rows, count) == (40, 20)
    assert messages[0].startswith(f"{tmp_path}/t.parquet: row 3: ")
    assert raw["row"].to_pylist()[:3] == [0, 1, 3], "ids are those of the file"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", TEXT + "1,a,3\n", "t.csv: row 21: 3 cells, the header has 2; quote cells that hold a delimiter"),
        ("t.csv", "x,kind,x\n1,a,2\n", "t.csv: two columns are called 'x'; rename one"),
        ("t.csv", "", "t.csv is no CSV table: Empty CSV file"),
        ("t.csv", "x,kind\n", "t.csv: the table has no row"),
        ("t.csv", b"x,kind\n1,a\n2,\xff\n", "t.csv:3: bytes that are no UTF-8; convert the file"),
        ("t.csv.gz", gzip.compress(TEXT.encode() * 90, mtime=0)[:-30], "t.csv.gz"),
        ("t.parquet", "PAR1 no", "t.parquet is no Parquet file, or a damaged one"),
        ("t.xlsx", "x", "t.xlsx: the name must end in .parquet, .csv or .csv.gz"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=re.escape(message)):
        table(tmp_path / name)
    with pytest.raises(InputError, match="no such file; give the path of a"):
        table(tmp_path / f"no-{name}")


def test_rows_that_cannot_be_taken_apart_keep_the_numbers_of_the_others(tmp_path):
    path = csv(tmp_path, "x,kind\n1,a\n1,2,3\n2,b\n" + TEXT.split("\n", 1)[1])
    _, raw, _ = table(path, on_bad_row="skip")
    assert raw["row"].to_pylist()[:3] == [0, 2, 3]
    assert skipped(raw)[0] == 1


def test_a_value_that_standardising_takes_out_of_range(tmp_path):
    task, raw, options = table(parquet(tmp_path, {"x": [1.0, 1.0 + 1e-7] * 10, "kind": ["a", "b"] * 10}))
    spec = task.fit(raw, options)
    far = parquet(tmp_path, {"x": [1.0, 1e38] * 10, "kind": ["a", "b"] * 10})
    with pytest.raises(
        InputError, match=r"row 2: 1e\+38 is too far from the training rows' mean to be stored; correct"
    ):
        task.encode(table(far)[1], spec)


@pytest.mark.parametrize("name", ["t{1}.csv", "t*.csv"])
def test_a_name_that_would_mean_several_files(tmp_path, name):
    with pytest.raises(InputError, match=r"the name must not hold .* which mean several files; rename it"):
        table(csv(tmp_path, TEXT, name))
    with pytest.raises(InputError, match="which mean several files"):
        resolve_options(TaskOptions(file=str(tmp_path / name), label_columns="kind"), print)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = csv(tmp_path, TEXT)

    def refuse(self, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(InputError, match=r"t\.csv: Permission denied; make the file readable"):
        table(path)


def test_lists_of_a_fixed_size_with_an_empty_cell_are_named(tmp_path):
    """Writing the file again would not mend it."""
    column = pa.array([[1.0, 2.0]] * 9 + [None], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"x": column, "kind": ["a", "b"] * 5}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"of lists of a fixed size, among x, has an empty cell, which pyarrow cannot"):
        open_file(tmp_path / "t.parquet", BadRows(skip=False)).read(["x"])


def test_a_name_in_quotes_may_hold_what_parts_the_cells(tmp_path):
    (tmp_path / "t.csv").write_text('"c";"weight, kg";"height, m"\n' + "1;2;3\n" * 5)
    assert list(open_file(tmp_path / "t.csv", BadRows(skip=False)).types) == ["c", "weight, kg", "height, m"]
