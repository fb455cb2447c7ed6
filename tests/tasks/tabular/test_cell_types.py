"""Cells of a CSV file that would change, unnoticed, what a whole column or the rest of the file is."""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.contract import Columns
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.tabular.csv_quotes import QuoteCheckedStream
from anchorfl.tasks.tabular.reading import open_file
from anchorfl.tasks.tabular.schema import schema_of_model
from tests.tasks.own_tables import csv, parquet, table

ROWS = range(20)
GOOD = [f"{i},{'ab'[i % 2]}" for i in ROWS]


def text(cells, head="x,kind"):
    return "\n".join([head, *(f"{cell},{'ab'[i % 2]}" for i, cell in enumerate(cells))]) + "\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,kind\n" + "\n".join([*GOOD, "-,a"]),
         "row 21: column 'x' holds '-', where most rows have a number; leave it empty where nothing is known"),
        ("y,x,kind\n" + "\n".join(f"1,{row}" for row in [*GOOD, "1 kg,a"]),
         "row 21: column 'x' holds '1 kg', where most rows have a number; leave it empty where nothing is known, or "
         "correct it (texts that look so: give Parquet), or name the inputs with --task.input_columns"),
        (text([*(f"{i}.414" for i in ROWS), "1 kg"]),
         "row 21: column 'x' holds '1 kg', where most rows have a number; leave it empty where nothing is known"),
        (text([f"{i}.414.000" for i in ROWS]),
         "row 1: column 'x' holds '0.414.000', a number with a comma; write decimal points, and nothing between"),
        ("x;kind\n" + "\n".join(f"{i},5;{'ab'[i % 2]}" for i in ROWS),
         "row 1: column 'x' holds '0,5', a number with a comma; write decimal points"),
        (text([f"[{i} 2. 3]" for i in ROWS]),
         "row 1: column 'x' holds '[0 2. 3]', no list as JSON writes it; separate its numbers by commas: [0.5, 3]"),
        (text([f"{i} 2.5 -3e1" for i in ROWS]),
         "row 1: column 'x' holds '0 2.5 -3e1', numbers with spaces; write a list as JSON does ([0.5, 3]), nothing "
         "between thousands, or, where texts are meant, a Parquet file"),
        (text([*(f"{i}.png" for i in ROWS), "oops"]),
         "row 21: column 'x' holds 'oops', where most rows have the path of an image; correct it or remove the row"),
    ],
)  # fmt: skip
def test_one_odd_cell_is_named(tmp_path, content, message):
    path = csv(tmp_path, content)
    with pytest.raises(InputError) as caught:
        table(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("column", ["kind", "site"])
@pytest.mark.parametrize(
    ("codes", "wrong"),
    [
        (("1", "01", "10"), "row 2: column '{}' has '1' and '01', which are one number in a CSV file"),
        (("100", "2", "1e2"), "row 3: column '{}' has '100' and '1e2'"),
        (("True", "false", "TRUE"), "row 3: column '{}' has 'True' and 'TRUE'"),
        (("1", "2", "10"), ""),
        (("00", "01", "02"), ""),
        (("1.0", "2", "1"), ""),
        (("1", "2", ""), ""),
    ],
)
def test_codes_that_are_one_number_are_named(tmp_path, column, codes, wrong):
    """A CSV file has no types: 1, 01 and 1e0 would be one class, or one client."""
    rows = [f"{i / 4},{codes[i % 3]},{'ab'[i // 3 % 2]}" for i in range(60)]
    path = csv(tmp_path, "\n".join([f"x,{column},{'kind' if column == 'site' else 'note'}", *rows]) + "\n")
    options = {"client_column": "site"} if column == "site" else {"input_columns": "x"}
    if column == "site" and "" in codes:
        wrong = "row 3: column '{}' is empty; say whose row it is"
    with pytest.raises(InputError) if wrong else nullcontext() as caught:
        task, raw, _ = table(path, **options)
    if wrong:
        assert wrong.format(column) in str(caught.value)
    else:
        names = task.class_names if column == "kind" else raw["subject"].unique()
        assert len(names) == len({float(code) for code in codes if code})


@pytest.mark.parametrize("odd", [2, 3])
@pytest.mark.parametrize("cells", [[str(i) for i in ROWS], [f"{i}.png" for i in ROWS], [f'"{i},5"' for i in ROWS]])
def test_nine_in_ten_cells_make_the_others_odd(tmp_path, cells, odd):
    """18 of 20, but not 17, are taken for what the whole column was meant to be."""
    path = csv(tmp_path, text([*cells[odd:], *["about so"] * odd]))
    if odd == 3:
        assert table(path)[0].payload == "text"
        return
    with pytest.raises(InputError, match="column 'x' holds"):
        table(path)


def test_an_odd_cell_among_inputs_that_are_named(tmp_path):
    path = csv(tmp_path, "y,x,kind\n" + "\n".join(f"1,{row}" for row in [*GOOD, "1 kg,a"]))
    with pytest.raises(InputError, match="row 21: column 'x' holds '1 kg', where most rows have a number"):
        table(path, input_columns="y,x")
    assert table(path, input_columns="y")[1].num_rows == 21, "a column that nobody asked for may hold anything"


def test_texts_stay_texts(tmp_path):
    """Half of the cells numbers, quotes within cells, brackets: nothing odd. In Parquet the type says it."""
    for cells in ([f"{i}" if i % 2 else f"no {i}" for i in ROWS], [f'a 5" pipe {i}' for i in ROWS], ["[sic]"] * 20):
        assert table(csv(tmp_path, text(cells)))[0].payload == "text"
    columns = {"x": [*map(str, ROWS), "-"], "kind": ["a", "b"] * 10 + ["a"]}
    assert table(parquet(tmp_path, columns))[0].payload == "text"


def test_lists_with_nan_as_python_writes_it(tmp_path):
    _, raw, _ = table(csv(tmp_path, text([f'"[{i}, nan, -1.5]"' for i in ROWS])))
    values = raw["values"].to_pylist()[3]
    assert (values[0], values[2]) == (3, -1.5)
    assert values[1] != values[1]


@pytest.mark.parametrize("head", ["x,kind", '"x",kind'])
def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path, head):
    names = tmp_path / "names.txt"
    names.write_text("\ufeffa\nb\n")
    path = csv(tmp_path, "\ufeff" + text(ROWS, head))
    task, _, _ = table(path, input_columns="x", class_names=str(names))
    assert task.class_names == ("a", "b")


def test_a_quote_that_is_never_closed(tmp_path):
    path = csv(tmp_path, "x,kind\n" + "\n".join(GOOD) + '\n7,"a\n8,b\n')
    with pytest.raises(InputError, match=r"t\.csv: the quote that opens a cell in line 22 is never closed"):
        table(path)


def _open_line(data):
    """Return the line of the quote that is open at the end, letter by letter; 0 where none is."""
    inside, begins, line, opened, i = False, True, 1, 0, 0
    while i < len(data):
        mark = data[i]
        if inside and mark == '"' and data[i + 1 : i + 2] == '"':
            i += 1
        elif inside:
            inside = mark != '"'
            begins = False
        elif begins and mark == '"':
            inside, opened = True, line
        else:
            begins = mark in ",\r\n"
        line += mark == "\n"
        i += 1
    return opened if inside else 0


@given(st.text(alphabet='a",\r\n', max_size=30), st.integers(1, 7))
def test_quotes_are_followed_whatever_is_read_at_a_time(tmp_path_factory, data, size):
    path = tmp_path_factory.getbasetemp() / "quotes.csv"
    path.touch()
    stream = QuoteCheckedStream(path, io.BytesIO(data.encode()), ",")
    line = _open_line(data)
    expected = pytest.raises(InputError, match=f"in line {line} is never closed") if line else nullcontext()
    with expected:
        while stream.read(size):
            pass


def test_clients_written_with_other_zeros_are_one_and_prices_are_no_classes(tmp_path):
    rows = [f"{i / 4},{('2.50', '1', '2.5')[i % 3]},{'ab'[i // 3 % 2]}" for i in range(60)]
    path = csv(tmp_path, "\n".join(["x,site,kind", *rows]) + "\n")
    assert len(table(path, client_column="site")[1]["subject"].unique()) == 2
    with pytest.raises(InputError, match=r"'site' holds 2.5; a class is a name or a whole number"):
        table(path, label_columns="site", input_columns="x")


def test_numbers_with_spaces_may_be_categories_or_left_out_and_a_models_texts(tmp_path):
    """They are refused as the texts to train on alone."""
    shifts = [f"{i / 4},{('1', '2', '1 2')[i % 3]},{'ab'[i % 2]}" for i in range(60)]
    task, _, _ = table(csv(tmp_path, "\n".join(["x,shift,kind", *shifts]) + "\n"))
    assert task.payload == "values"
    phones = [f"{i / 4},030 {1000000 + i},{'ab'[i % 2]}" for i in range(60)]
    assert table(csv(tmp_path, "\n".join(["x,phone,kind", *phones]) + "\n"))[0].payload == "values"
    new = open_file(Path(csv(tmp_path, "note\n911 2001\n")), BadRows(skip=False))
    assert schema_of_model(new, Columns(("note",), values=("a", "b")), "single", ("a", "b")).form == "text"
