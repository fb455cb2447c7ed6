"""The rows of ARFF files, dense (``1.5,0,...``) and sparse (``{column value,...}``), plain or gzipped.

Comments (``%``) are left out. A nominal value is its number where all values of the attribute are numbers, else its
position in the list. Not understood: missing values (``?``), weights of rows, and in sparse rows nominal attributes
other than ``{0,1}``.

Measured beside a library in docs/why-by-hand.md.

Shape suffixes: N rows, A attributes, P values that are not 0, row after row.
"""

from __future__ import annotations

import csv as csv_rows
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import open_text
from anchorfl.tasks.sparse.arff_header import BINARY, NUMBER, Attribute, Line, read_attributes
from anchorfl.tasks.sparse.xc_format import number_columns

BATCH = 4 << 20
"""Characters of the rows that are parsed together."""
_SPARSE = bytes.maketrans(b"{},\r ", b"\n\n\n\n:")
_LOOSE = re.compile(r"\t|  |[{,] | [},]")


@dataclass(frozen=True, slots=True)
class Arff:
    """A file without its bad rows."""

    path: Path
    attributes: tuple[Attribute, ...]
    rows: int
    """Number of rows, with the bad ones."""
    index_N: Ints
    """Indices among all rows from 0, int64."""
    length_N: Ints
    """Number of values of every row that are not 0."""
    column_P: Ints
    """Columns of these values, from 0."""
    value_P: npt.NDArray[np.float32]
    """The values."""


_Part = tuple[Ints, Ints, npt.NDArray[np.float32]]
"""length_N, column_P, value_P of some rows."""


def read_arff(path: Path, bad: BadRows) -> Arff:
    """Return the content of a file, plain or gzipped. Raises InputError with file, line and field."""
    lines = open_text(path)
    attributes = read_attributes(path, lines)
    indices, parts, rows = [np.zeros(0, dtype=np.int64)], list[_Part](), 0
    for batch in _batches(lines):
        _parse(path, attributes, batch, np.arange(rows, rows + len(batch)), bad, indices, parts)
        rows += len(batch)
    if not rows:
        raise InputError(f"{path}: there is no row below @data; get the file again")
    empty = np.zeros(0, dtype=np.int64)
    lengths, columns, values = zip(*parts, strict=True) if parts else ([empty], [empty], [empty.astype(np.float32)])
    joined = (np.concatenate(some) for some in (indices, lengths, columns, values))
    return Arff(path, attributes, rows, *joined)


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Yield the rows, without empty lines and comments."""
    batch, size = list[Line](), 0
    for number, line in lines:
        text = line.strip()
        if text and not text.startswith("%"):
            batch.append((number, text))
            size += len(text)
        if size > BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parse(
    path: Path,
    attributes: tuple[Attribute, ...],
    batch: list[Line],
    index_N: Ints,
    bad: BadRows,
    indices: list[Ints],
    parts: list[_Part],
) -> None:
    """Add the rows of a batch; where one has a fault, by halves, until it stands alone and goes to ``bad``."""
    sparse = batch[0][1].startswith("{")
    part = (_sparse if sparse else _dense)([text for _, text in batch], attributes)
    if part is not None:
        indices.append(index_N)
        parts.append(part)
    elif len(batch) == 1:
        number, line = batch[0]
        fault = (_sparse_fault if sparse else _dense_fault)(line, attributes)
        bad.meet(f"{path}:{number}: {fault}")
    else:
        half = len(batch) // 2
        _parse(path, attributes, batch[:half], index_N[:half], bad, indices, parts)
        _parse(path, attributes, batch[half:], index_N[half:], bad, indices, parts)


def _dense(lines: list[str], attributes: tuple[Attribute, ...]) -> _Part | None:
    """Return the rows of values; None where one has a fault."""
    listed = [a for a, attribute in enumerate(attributes) if attribute.values not in {(), BINARY}]
    names = [str(a) for a in range(len(attributes))]
    types = dict.fromkeys(names, pa.float32()) | {names[a]: pa.string() for a in listed}
    text = pa.py_buffer("\n".join(lines).encode())
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(column_names=names, block_size=max(1 << 20, 2 * text.size)),
            csv.ParseOptions(quote_char="'", escape_char="\\", double_quote=False),
            csv.ConvertOptions(column_types=types, null_values=[]),
        )
    except pa.ArrowInvalid:  # a fault that ``_dense_fault`` names once the row stands alone
        return None
    value_NA = np.empty((table.num_rows, len(names)), dtype=np.float32)
    for a, attribute in enumerate(attributes):
        column = table[names[a]]
        if a in listed:
            column = pc.index_in(pc.utf8_trim_whitespace(column), pa.array(attribute.values))
            if column.null_count:
                return None
            column = pa.array(np.array(attribute.numbers(), dtype=np.float32)).take(column)
        value_NA[:, a] = column.to_numpy()
    row_P, column_P = np.nonzero(value_NA)
    length_N = np.bincount(row_P, minlength=len(lines))
    part = length_N, column_P, value_NA[row_P, column_P]
    return part if table.num_rows == len(lines) and _allowed(part, attributes) else None


def _sparse(lines: list[str], attributes: tuple[Attribute, ...]) -> _Part | None:
    """Return the rows ``{column value,...}``; None where one has a fault."""
    if not all(line[0] == "{" and line[-1] == "}" for line in lines):
        return None
    if any(attribute.values not in {(), BINARY} for attribute in attributes):
        return None
    lines = [_tight(line) if _LOOSE.search(line) else line for line in lines]
    length_N = np.array([0 if line == "{}" else line.count(",") + 1 for line in lines], dtype=np.int64)
    text_T = np.frombuffer("\n".join(lines).encode().translate(_SPARSE), np.uint8)
    numbers = number_columns(text_T, {"column": pa.int32(), "value": pa.float32()}, int(length_N.sum()))
    if numbers is None:
        return None
    column_P, value_P = numbers[0].astype(np.int64), numbers[1]
    row_P = np.repeat(np.arange(len(lines)), length_N)
    if len(column_P) and (column_P.min() < 0 or column_P.max() >= len(attributes)):
        return None
    if len(np.unique(row_P * len(attributes) + column_P)) < len(column_P):
        return None
    nonzero_P = value_P != 0
    part = np.bincount(row_P[nonzero_P], minlength=len(lines)), column_P[nonzero_P], value_P[nonzero_P]
    return part if _allowed(part, attributes) else None


def _tight(line: str) -> str:
    """Return a sparse row with no more spaces than it needs."""
    return re.sub(r"\s*([{},])\s*", r"\1", re.sub(r"\s+", " ", line))


def _allowed(part: _Part, attributes: tuple[Attribute, ...]) -> bool:
    """Return whether all values are finite, and those of ``{0,1}`` attributes 1."""
    _, column_P, value_P = part
    binary_A = np.array([attribute.values == BINARY for attribute in attributes])
    return bool(np.isfinite(value_P).all() and (value_P[binary_A[column_P]] == 1).all())


def _dense_fault(line: str, attributes: tuple[Attribute, ...]) -> str:
    try:
        fields = next(csv_rows.reader([line], quotechar="'", escapechar="\\", skipinitialspace=True))
    except csv_rows.Error as error:
        return f"the row cannot be taken apart ({error}); write one value for each attribute, separated by commas"
    if len(fields) != len(attributes):
        return f"{len(fields)} fields for {len(attributes)} attributes; write one value for each"
    for position, (field, attribute) in enumerate(zip(fields, attributes, strict=True), 1):
        fault = _value_fault(field.strip(), attribute)
        if fault:
            return f"field {position} (attribute {attribute.name!r}) {fault}"
    return "the row cannot be read; write plain numbers, separated by commas"


def _sparse_fault(line: str, attributes: tuple[Attribute, ...]) -> str:
    for attribute in attributes:
        if attribute.values not in {(), BINARY}:
            return f"attribute {attribute.name!r} is nominal; in sparse rows it must have the values {{0,1}}, in order"
    if not line.endswith("}"):
        return "the row is not closed; write {column value,column value,...}"
    seen = set[int]()
    for position, field in enumerate(line[1:-1].split(","), 1):
        parts: Any = field.split()
        if len(parts) != 2 or not re.fullmatch(r"\d{1,18}", parts[0]):
            return f"field {position} ({field.strip()[:40]!r}) is no column and value; write {{column value,...}}"
        column = int(parts[0])
        if column >= len(attributes):
            return f"field {position} ({field.strip()!r}): columns must be 0..{len(attributes) - 1}; correct the row"
        if column in seen:
            return f"field {position} ({field.strip()!r}): column {column} stands twice; leave one out"
        seen.add(column)
        fault = _value_fault(parts[1], attributes[column])
        if fault:
            return f"field {position} (attribute {attributes[column].name!r}) {fault}"
    return "the row cannot be read; write {column value,column value,...} with plain numbers"


def _value_fault(value: str, attribute: Attribute) -> str:
    """Return the fault of one value; empty where there is none."""
    if value == "?":
        return "is missing ('?'); fill it in or leave the row out"
    if attribute.values and value not in attribute.values:
        shown = ", ".join(attribute.values[:8]) + (", ..." if len(attribute.values) > 8 else "")
        return f"is {value!r}, which is none of its values {shown}{nearest(value, attribute.values)}; correct it"
    if not attribute.values and value.lower().lstrip("+-") in {"nan", "inf", "infinity"}:
        return f"is {value}, which is not finite; correct it"
    if not attribute.values and not NUMBER.fullmatch(value):
        return f"is {value[:40]!r}, which is no number; correct it"
    return ""
