"""The table of co-occurrences that class-name vectors are made from: what is read, and what is refused."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.models.errors import NamesError
from anchorfl.models.label_names import NameGraph, read_table


def write(folder: Path, text: str) -> Path:
    """Write a table file."""
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_only_positive_values_off_the_diagonal_are_edges(tmp_path: Path) -> None:
    path = write(tmp_path, "label,a,b,c\na,9,0.5,nan\nb,0.5,9,-2\n\nc,, -2 ,NaN\n")
    table = read_table(path)
    assert table.names == ("a", "b", "c")
    assert table.weight_KK.dtype == np.float64
    np.testing.assert_array_equal(table.weight_KK, [[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]])


def test_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xef\xbb\xbflabel,a,b\r\na,0,1\r\nb,1,0\r\n")
    assert read_table(path).names == ("a", "b")


def test_asymmetry_below_the_limit_is_accepted(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "label,a,b\na,0,1\nb,1.0000009,0\n"))
    assert table.weight_KK[0, 1] == 1.0
    with pytest.raises(NamesError, match=r"table\.csv:2: 'a', 'b' is 1 here but 1\.0000011 in row 3; make"):
        read_table(write(tmp_path, "label,a,b\na,0,1\nb,1.0000011,0\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "table.csv:1: bad or no header; write label,<name>,"),
        ("label\n", "table.csv:1: bad or no header; write label,<name>,"),
        ("label;a;b\na;0;1\nb;1;0\n", "table.csv:1: bad or no header; write label,<name>,<name>,... separated"),
        ("name,a\na,0\n", "table.csv:1: bad or no header"),
        ("label,a,b\nb,0,1\na,1,0\n", "table.csv:2: row 'b', the header has 'a'; give both the same order"),
        ("label,a,b\na,0,1\nb,1\n", "table.csv:3: 2 fields, the header has 3; write nan for no edge"),
        ("label,a,b\na,0,1,2\nb,1,0\n", "table.csv:2: 4 fields, the header has 3"),
        ("label,a,b\na,0,1\n", "table.csv:2: 1 rows, 2 columns; give one row and one column per name"),
        ("label,a,b\n", "table.csv:1: 0 rows, 2 columns"),
        ("label,a\na,0\nb,1\n", "table.csv:2: 2 rows, 1 columns"),
        ("label,a,b\na,0,x1\nb,1,0\n", "table.csv:2: 'x1' in column 'b' is not a number; write a number, nan"),
        ("label,a,b\na,0,1\nb,1_0,0\n", "table.csv:3: '1_0' in column 'a' is not a number"),
        ("label,a,b\na,0,inf\nb,inf,0\n", "table.csv:2: 'inf' in column 'b' is infinite; write a finite number"),
        ("label,a,b\na,0,1e999\nb,1,0\n", "table.csv:2: '1e999' in column 'b' is infinite"),
        ("label,a,a\na,0,1\na,1,0\n", "table.csv:1: names 'a' and 'a' are the same; keep one of them"),
        ("label,Ab c,aB C\n", "table.csv:1: names 'Ab c' and 'aB C' differ only by case or spaces"),
        ("label,a b,ab\n", "table.csv:1: names 'a b' and 'ab' differ only by case or spaces; keep one"),
        ("label,a, \n", "table.csv:1: an empty name in the header; name every column"),
        ("label,a,b\na,0,1\nb,2,0\n", "table.csv:2: 'a', 'b' is 1 here but 2 in row 3; make the table symmetric"),
        ("label,a,b\na,0,1\nb,nan,0\n", "table.csv:2: 'a', 'b' is 1 here but nan in row 3"),
        ("label,a,b\na,0,1e308\nb,-1e308,0\n", "table.csv:2: 'a', 'b' is 1e+308 here but -1e+308 in row 3"),
        ('label,"a,b\na,0,1\n', "table.csv: not CSV in UTF-8 after line"),
    ],
)
def test_bad_table_is_named_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NamesError) as caught:
        read_table(write(tmp_path, text))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)  # what to do about it


def test_missing_unreadable_and_binary_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(NamesError, match=r"none\.csv: No such file or directory; give the path of a CSV table"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(NamesError, match=r"Is a directory; give the path"):
        read_table(tmp_path)
    path = tmp_path / "table.csv"
    path.write_bytes(b"label,\xe9\n")
    with pytest.raises(NamesError, match=r"table\.csv: not CSV in UTF-8 after line 0 .*; save it as UTF-8"):
        read_table(path)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Draw names that a table may hold (commas, quotes, line breaks, ...) and symmetric values, nan among them."""
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)
    names = draw(
        st.lists(text, min_size=1, max_size=5, unique_by=lambda n: "".join(n.split()).casefold()).filter(
            lambda some: all(name.split() for name in some)
        )
    )
    value_KK = np.zeros((len(names), len(names)))
    for i, j in zip(*np.triu_indices(len(names)), strict=True):
        value_KK[i, j] = value_KK[j, i] = draw(st.just(math.nan) | st.floats(allow_nan=False, allow_infinity=False))
    return names, value_KK


@given(tables())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, case: tuple[list[str], np.ndarray]) -> None:
    names, value_KK = case
    path = tmp_path_factory.mktemp("round") / "table.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", *names])
        writer.writerows([name, *map(repr, row)] for name, row in zip(names, value_KK.tolist(), strict=True))
    table = read_table(path)
    expected = np.where(np.nan_to_num(value_KK, nan=0.0) > 0, value_KK, 0.0) * (1 - np.eye(len(names)))
    assert table.names == tuple(names)
    np.testing.assert_array_equal(table.weight_KK, expected)


@pytest.mark.parametrize(
    ("names", "weights", "message"),
    [
        (("a", "a"), np.zeros((2, 2)), "2 names, weights (2, 2); give distinct names"),
        (("a", "b"), np.zeros((2, 3)), "2 names, weights (2, 3)"),
        (("a", "b"), np.array([[0, 1], [0, 0.0]]), "bad weights; give finite, symmetric values >= 0"),
        (("a", "b"), np.array([[0, -1], [-1, 0.0]]), "bad weights"),
        (("a", "b"), np.array([[1, 1], [1, 0.0]]), "zero diagonal"),
        (("a", "b"), np.array([[0, np.nan], [np.nan, 0]]), "finite"),
    ],
)
def test_a_table_made_in_memory_is_checked(names: tuple[str, ...], weights: np.ndarray, message: str) -> None:
    with pytest.raises(NamesError) as caught:
        NameGraph(names, weights)
    assert message in str(caught.value)
