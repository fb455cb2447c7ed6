"""The text format of the extreme-classification repository.

First line ``rows features labels``, then one row a line: ``l1,l2,... f:v f:v ...``. Labels and features count from 0; a
row without labels begins with a space. Files are read in blocks of whole lines and become numbers column by column
(pyarrow's CSV reader), never pair by pair; a block with a fault is halved until the line with the fault stands alone.

Measured beside a library in docs/why-by-hand.md.

Shape suffixes: N rows, P pairs or labels of all rows, row after row.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from anchorfl.tasks.arrays.arrow import Column, Ints
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.decompression import check_growth
from anchorfl.tasks.files.raw_files import MAX_LINE_BYTES, open_bytes, open_text
from anchorfl.tasks.sparse.pairs import MOST, label_lists, pair_lists

BLOCK = 4 << 20
"""Bytes of a block."""
MOST_LABELS = 1 << 22
"""The largest published set has 2.8 million."""
NEWLINE, COLON, COMMA = b"\n:,"
_BLANK = np.isin(np.arange(256), list(b" \t\r\n"))
_KNOWN = np.isin(np.arange(256), list(b"0123456789.,:+-eE \t\r\n"))
_TO_LINES = bytes(NEWLINE if blank else byte for byte, blank in enumerate(_BLANK.tolist()))
_WHOLE = re.compile(r"-?\d{1,18}")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_FLOAT_MAX = float(np.finfo(np.float32).max)
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a file."""

    rows: int
    """Number of rows of the file."""
    features: int
    """Number of features."""
    labels: int
    """Number of labels."""


@dataclass(frozen=True, slots=True)
class SparseFileRows:
    """The rows of a file without the bad ones; labels and pairs are chunked."""

    header: Header
    index_N: Ints
    """Indices in the file from 0, int64."""
    labels: Column
    """list<int32>, each row's ascending."""
    pairs: Column
    """list<float32>."""


def read_rows(path: Path, bad: BadRows) -> SparseFileRows:
    """Return all rows of a file, plain or gzipped. Raises InputError with file, line and field."""
    blocks = _blocks(path)
    header = _header(path, next(blocks, (1, b""))[1])
    parts, rows = list[tuple[Ints, Column, Column]](), 0
    for first, block in blocks:
        lines = block.count(b"\n")
        data = _promised(path, header, rows, first, block) if rows + lines > header.rows else block
        _parse(path, header, data, first, bad, parts)
        rows += data.count(b"\n")
    if rows < header.rows:
        raise InputError(f"{path}:1: the header promises {header.rows} rows, the file has {rows}; get the file again")
    empty = np.zeros(0, dtype=np.int64)
    return SparseFileRows(
        header,
        np.concatenate([empty, *(part[0] for part in parts)]),
        pa.chunked_array([part[1] for part in parts], pa.list_(pa.int32())),
        pa.chunked_array([part[2] for part in parts], pa.list_(pa.float32())),
    )


def read_splits(train: Path, test: Path, rows: int, column: int) -> npt.NDArray[np.bool_]:
    """Return true where a row is a test row, bool [rows]. train, test: files of row numbers from 1, one a line, in each
    of several columns for another split; column: which, from 0.

    Raises InputError with file and line on a number that is none, out of range, twice there or on both sides, and
    where a row is on no side.
    """
    seen = np.zeros(rows, dtype=np.int64)
    """Line that named the row: positive in the training file, negative in the test file, 0 nowhere."""
    for path, sign in ((train, 1), (test, -1)):
        for line, text in open_text(path):
            fields = text.split()
            if len(fields) <= column or not _WHOLE.fullmatch(fields[column]):
                raise InputError(f"{path}:{line}: column {column + 1} holds no row number; write a whole number from 1")
            row = int(fields[column])
            if not 1 <= row <= rows:
                raise InputError(
                    f"{path}:{line}: row number {row} is outside 1..{rows}, the rows of the data; get the file again"
                )
            if seen[row - 1]:
                location = f"{train if seen[row - 1] > 0 else test}:{abs(seen[row - 1])}"
                raise InputError(
                    f"{path}:{line}: row number {row} already stands in {location}; a row has one side of the split"
                )
            seen[row - 1] = sign * line
    lost = np.flatnonzero(seen == 0)
    if len(lost):
        raise InputError(
            f"{train}: row number {lost[0] + 1} ({len(lost)} in all) is neither here nor in {test}; get them again"
        )
    return seen < 0


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number of the first line, and whole lines, each with a newline; first of all the first line alone."""
    line, size, rest, data = 1, 0, b"", b"\n"
    with open_bytes(path) as stream:
        while data:
            try:
                data = stream.read(BLOCK)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise InputError(
                    f"{path}: the gzip file is damaged or cut short after line {line - 1} ({error}); get it again"
                ) from error
            size += len(data)
            check_growth(path, size)
            rest += data
            if len(rest) > MAX_LINE_BYTES + BLOCK:
                raise InputError(f"{path}:{line}: the line is longer than {MAX_LINE_BYTES} bytes; get the file again")
            if not data and rest and not rest.endswith(b"\n"):
                rest += b"\n"
            if line == 1 and (cut := rest.find(b"\n") + 1):
                yield 1, rest[:cut]
                line, rest = 2, rest[cut:]
            if line > 1 and (cut := rest.rfind(b"\n") + 1):
                yield line, rest[:cut]
                line, rest = line + rest.count(b"\n", 0, cut), rest[cut:]


def _header(path: Path, line: bytes) -> Header:
    fields = line.split()
    if not fields:
        msg = f"{path}: the file is empty; get it again" if not line else f"{path}:1: the first line is empty"
        raise InputError(msg if not line else f"{msg}; write 'rows features labels'")
    if len(fields) != 3 or not all(re.fullmatch(rb"0{,9}[1-9]\d{,17}", field) for field in fields):
        shown = line[:60].decode("utf-8", "replace").strip()
        raise InputError(
            f"{path}:1: the first line is {shown!r}; write 'rows features labels', three whole numbers above 0"
        )
    header = Header(*(int(field) for field in fields))
    if header.labels > MOST_LABELS:
        raise InputError(
            f"{path}:1: {header.labels} labels are more than the {MOST_LABELS} that can be counted; correct the line"
        )
    if header.features > MOST:
        raise InputError(
            f"{path}:1: {header.features} features are more than the {MOST} that can be told apart; hash them"
        )
    return header


def _promised(path: Path, header: Header, rows: int, first: int, block: bytes) -> bytes:
    """Return the lines of a block that the header promises. Raises InputError where more follow than empty lines."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == NEWLINE)
    left = header.rows - rows
    cut = int(ends[left - 1]) + 1 if left else 0
    more = block[cut:].lstrip()
    if more:
        line = first + block.count(b"\n", 0, len(block) - len(more))
        raise InputError(
            f"{path}:{line}: the header promises {header.rows} rows, and here is one more; correct the first line"
        )
    return block[:cut]


def _parse(
    path: Path, header: Header, data: bytes, first: int, bad: BadRows, parts: list[tuple[Ints, Column, Column]]
) -> None:
    """Add the rows of ``data`` to ``parts``; bad rows go to ``bad`` in their order."""
    if not data:
        return
    columns = _columns(data, header)
    if columns is not None:
        index_N = np.arange(data.count(b"\n"), dtype=np.int64) + first - 2  # line 2 is row 0
        parts.append((index_N, *columns))
        return
    cut = data.find(b"\n", len(data) // 2) + 1
    cut = data.rfind(b"\n", 0, len(data) - 1) + 1 if cut == len(data) else cut
    if not cut:
        bad.meet(f"{path}:{first}: {_fault(data.decode('utf-8', 'replace').rstrip(), header)}")
        return
    _parse(path, header, data[:cut], first, bad, parts)
    _parse(path, header, data[cut:], first + data.count(b"\n", 0, cut), bad, parts)


def _columns(data: bytes, header: Header) -> tuple[Column, Column] | None:
    """Return the labels and pairs of all rows of a block; None where a row has a fault."""
    byte_T = np.frombuffer(data, np.uint8)
    if not _KNOWN[byte_T].all():
        return None
    end_N = np.flatnonzero(byte_T == NEWLINE)
    begin_N = np.concatenate([[0], end_N[:-1] + 1])
    blanks = np.flatnonzero(_BLANK[byte_T])
    first_N = blanks[np.searchsorted(blanks, begin_N)]  # the labels of a row end here
    edge_T = np.zeros(len(byte_T) + 1, dtype=np.int8)
    edge_T[begin_N] += 1
    edge_T[first_N + 1] -= 1
    in_labels_T = np.cumsum(edge_T[:-1], dtype=np.int8).view(np.bool_)
    as_lines_T = np.frombuffer(bytearray(data.translate(_TO_LINES)), np.uint8)
    label_T = as_lines_T[in_labels_T]
    as_lines_T[in_labels_T] = NEWLINE
    commas = np.flatnonzero((byte_T == COMMA) & in_labels_T)
    colons = np.flatnonzero(byte_T == COLON)
    label_N = np.diff(np.searchsorted(commas, end_N), prepend=0) + (first_N > begin_N)
    pair_N = np.diff(np.searchsorted(colons, end_N), prepend=0)
    label_T[label_T == COMMA] = NEWLINE
    labels = number_columns(label_T, {"label": pa.int32()}, int(label_N.sum()))
    pairs = number_columns(as_lines_T, {"feature": pa.int32(), "value": pa.float32()}, int(pair_N.sum()))
    if labels is None or pairs is None:
        return None
    class_P = _ascending(labels[0], label_N, header.labels)
    feature_P, value_P = pairs
    if class_P is None or _ascending(feature_P, pair_N, header.features) is None or not np.isfinite(value_P).all():
        return None
    return label_lists(class_P, label_N), pair_lists(feature_P + 1, value_P, pair_N)


def number_columns(text_T: Bytes, types: dict[str, Any], expected: int) -> list[npt.NDArray[Any]] | None:
    """Return the numbers of a text with one entry ``a:b`` a line and empty lines between; None where they are no
    numbers, or other than ``expected`` entries. types: Arrow type of every part of an entry.
    """
    if not expected:
        return None if (text_T != NEWLINE).any() else [np.zeros(0, dtype=t.to_pandas_dtype()) for t in types.values()]
    try:
        table = csv.read_csv(
            pa.BufferReader(pa.py_buffer(text_T)),
            csv.ReadOptions(column_names=list(types)),
            csv.ParseOptions(delimiter=":", quote_char=False, double_quote=False),
            csv.ConvertOptions(column_types=types, null_values=[], check_utf8=False),
        )
    except pa.ArrowInvalid:  # a fault that ``_fault`` names once the line stands alone
        return None
    return [table[name].to_numpy() for name in types] if table.num_rows == expected else None


def _ascending(index_P: npt.NDArray[np.int32], length_N: Ints, count: int) -> npt.NDArray[np.int32] | None:
    """Return the indices of every row in ascending order; None where one is outside 0..count-1 or twice in a row."""
    if len(index_P) and (index_P.min() < 0 or index_P.max() >= count):
        return None
    begins_P = np.zeros(len(index_P) + 1, dtype=np.bool_)
    begins_P[np.cumsum(length_N)] = True  # the first entry of the next row
    inside_P = ~begins_P[1:-1]
    if (np.diff(index_P) > 0)[inside_P].all():
        return index_P
    row_P = np.repeat(np.arange(len(length_N)), length_N)
    index_P = index_P[np.lexsort((index_P, row_P))]
    return index_P if (np.diff(index_P) > 0)[inside_P].all() else None


def _fault(line: str, header: Header) -> str:
    """Return the fault of a row, and how to mend it."""
    labels, _, rest = line.replace("\t", " ").partition(" ")
    names = labels.split(",") if labels else []
    for kind, fields, count in (("label", names, header.labels), ("feature", rest.split(), header.features)):
        seen = set[int]()
        for position, field in enumerate(fields, 1):
            index, colon, value = field.partition(":") if kind == "feature" else (field, ":", "0")
            where = f"{kind if kind == 'label' else 'field'} {position} ({field[:40]!r})"
            if not colon:
                return f"{where} has no colon; write feature:value"
            if not _WHOLE.fullmatch(index):
                hint = "a row without labels begins with a space" if kind == "label" else "write feature:value"
                return f"{where} has no whole number for the {kind}; {hint}"
            if not 0 <= int(index) < count:
                return f"{where}: {kind}s must be 0..{count - 1} by the first line; correct the row or that line"
            if int(index) in seen:
                return f"{where}: {kind} {index} stands twice in the row; leave one out"
            seen.add(int(index))
            if value.lower().lstrip("+-") in {"nan", "inf", "infinity"} or (
                _NUMBER.fullmatch(value) and abs(float(value)) > _FLOAT_MAX
            ):
                return f"{where} has a value that is not finite; leave the field out or correct it"
            if not _NUMBER.fullmatch(value):
                return f"{where} has no number behind the colon; write feature:value"
    return "the row cannot be read; write 'l1,l2,... f:v f:v ...' with plain numbers"
