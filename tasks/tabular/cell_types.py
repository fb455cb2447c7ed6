"""Cells of a CSV file that make of a column of numbers, lists or images a column of texts: ``-``, ``n/a``, ``0,5``.

A CSV file has no types, so one such cell is enough, and texts can be trained on as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Column
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.tabular.reading import TableFile, as_written

MOST = 0.9
"""Share of the cells from which on the others are taken for slips."""
IMAGE = r"(?i)\.(png|jpe?g|bmp|gif|tiff?|webp|ppm|pgm)$"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
COMMA = r"^[+-]?(\d*,\d+|\d{1,3}(\.\d{3})+,\d+|\d{1,3}(\.\d{3}){2,}|\d{1,3}(,\d{3})+(\.\d+)?)$"
LIST = r"^\[[-\s\d.,+eEnaN\[\]]*\]$"
SPACED = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(\s+[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)+$"
KINDS = (
    (NUMBER, "a number", "leave it empty where nothing is known, or correct it (texts that look so: give Parquet)"),
    (IMAGE, "the path of an image", "correct it or remove the row"),
)
WRITTEN = (
    (COMMA, NUMBER, "a number with a comma", "write decimal points, and nothing between thousands"),
    (LIST, LIST, "no list as JSON writes it", "separate its numbers by commas: [0.5, 3]"),
)
"""Pattern of cells that are written otherwise, pattern of those that may stand among them, what they are, the hint."""


def odd_cell(file: TableFile, name: str) -> str:
    """Return the odd cell of a column of texts of a CSV file, with the row and the hint; empty where there is none."""
    if not isinstance(file.content, pa.Table) or file.form(name) != "text":
        return ""
    text = pc.utf8_trim_whitespace(file.read([name])[name])
    for written, plain, what, hint in WRITTEN:
        odd = _alike(text, written)
        if pc.any(odd).as_py() and _share(pc.or_(odd, _alike(text, plain))) >= MOST:
            return f"{_cell(file, name, text, odd)}, {what}; {hint}"
    for pattern, what, hint in KINDS:
        alike = _alike(text, pattern)
        if MOST <= _share(alike) < 1:
            return f"{_cell(file, name, text, pc.invert(alike))}, where most rows have {what}; {hint}"
    return ""


def check_codes(file: TableFile, names: Iterable[str]) -> None:
    """Raise InputError where a column of numbers of a CSV file has codes (01 and 1), some of which are one number."""
    written = as_written(file, names)
    for name in written.column_names:
        number = file.read([name])[name]
        trimmed = pc.utf8_trim_whitespace(written[name])
        plain = pc.replace_substring_regex(trimmed, r"^([+-]?\d*\.\d*?)0+$", r"\1")  # 1.50 is no other code than 1.5
        plain = pc.replace_substring_regex(plain, r"\.$", "")
        cells = pa.table({"plain": plain, "number": number}).filter(pc.is_valid(number))
        texts = cells.group_by(["plain", "number"]).aggregate([]).group_by("number").aggregate([("plain", "list")])
        texts = texts["plain_list"].filter(pc.greater(pc.list_value_length(texts["plain_list"]), 1))
        if len(texts):
            first, second = sorted(pc.index(plain, text).as_py() for text in texts[0].as_py()[:2])
            raise InputError(
                f"{file.path}: row {file.row_N[second] + 1}: column {name!r} has {plain[first].as_py()!r} and"
                f" {plain[second].as_py()!r}, which are one number in a CSV file; write them alike, or give a Parquet"
                " file, where they can be texts"
            )


def check_texts(file: TableFile, name: str) -> None:
    """Raise InputError where the texts to train on are numbers with spaces between."""
    if isinstance(file.content, pa.Table):
        spaced = _alike(text := pc.utf8_trim_whitespace(file.read([name])[name]), SPACED)
        if _share(spaced) >= MOST:
            raise InputError(
                f"{file.path}: {_cell(file, name, text, spaced)}, numbers with spaces; write a list as JSON does"
                " ([0.5, 3]), nothing between thousands, or, where texts are meant, a Parquet file"
            )


def check_cells(file: TableFile, name: str, hint: str = "") -> None:
    """Raise InputError where a column of texts was hardly meant as one. hint: what else helps."""
    if odd := odd_cell(file, name):
        raise InputError(f"{file.path}: {odd}{hint}")


def all_images(file: TableFile, name: str) -> bool:
    """Return whether every text of a column is the path of an image."""
    alike = _alike(pc.utf8_trim_whitespace(file.read([name])[name]), IMAGE)
    return _share(alike) == 1


def _alike(text: Column, pattern: str) -> Column:
    """Return bool per cell, null where it is empty."""
    return pc.match_substring_regex(text, pattern)


def _share(alike: Column) -> float:
    return float(pc.mean(alike.cast(pa.int8())).as_py() or 0.0)


def _cell(file: TableFile, name: str, text: Column, which: Column) -> str:
    at = pc.index(pc.fill_null(which, False), True).as_py()
    return f"row {file.row_N[at] + 1}: column {name!r} holds {text[at].as_py()!r}"
