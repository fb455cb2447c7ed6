"""Recordings: text files of numbers, one line per moment, one field per measure, the time first.

Shape suffixes: N moments (lines), D measures besides the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.decompression import check_growth

MISSING = ["", "nan", "NaN"]
"""Spellings of a missing value in the files."""
CHUNK = 1 << 20
"""Bytes of a gzip file that are unpacked at a time."""
_GZIP = 16 + zlib.MAX_WBITS
"""zlib's name of the format gzip."""
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?\s*$"


@dataclass(frozen=True, slots=True)
class Recording:
    """The content of a file."""

    path: Path
    names: tuple[str, ...]
    """Names of the measures."""
    time_N: npt.NDArray[np.float64]
    """Time in the file's unit, float64."""
    value_DN: npt.NDArray[np.float32]
    """float32, NaN where missing."""
    line_N: Ints
    """Number of the line in the file, from 1."""
    faults: tuple[tuple[int, str], ...] = ()
    """Line and fault of each row that was left out."""

    def without(self, wrong_N: Bools, describe: Callable[[int], str]) -> Recording:
        """Return the recording without the wrong rows. describe(n): what is wrong with row n, and the hint."""
        if not wrong_N.any():
            return self
        faults = [(int(self.line_N[n]), describe(n)) for n in np.flatnonzero(wrong_N).tolist()]
        good = self.take(np.flatnonzero(~wrong_N))
        return replace(good, faults=(*self.faults, *faults))

    def take(self, index: Ints) -> Recording:
        """Return some rows, in that order."""
        return replace(self, time_N=self.time_N[index], value_DN=self.value_DN[:, index], line_N=self.line_N[index])

    def in_order(self, owner: str) -> Recording:
        """Return the recording by time; a row with an earlier line's time is at fault. owner: whose times these are."""
        ordered = self
        if (np.diff(self.time_N) <= 0).any():
            ordered = self.take(np.argsort(self.time_N, kind="stable"))
        twice_N = np.zeros(len(ordered.time_N), dtype=np.bool_)
        twice_N[1:] = np.diff(ordered.time_N) == 0
        return ordered.without(
            twice_N,
            lambda n: (
                f"timestamp {ordered.time_N[n]:.15g} stands twice for {owner}, first in line {ordered.line_N[n - 1]}; "
                "keep one of the rows"
            ),
        )

    def messages(self) -> list[str]:
        """Return every fault with its location, by line."""
        return [f"{self.path}:{line}: {fault}" for line, fault in sorted(self.faults)]


def read_bytes(path: Path) -> bytes:
    """Return all of a file, plain or gzip. Raises InputError with the line near which a gzip stream breaks off.

    Not by the gzip module, whose many small reads keep threads that read side by side waiting for one another.
    """
    packed = path.read_bytes()
    if path.suffix != ".gz":
        return packed
    size, parts, stream = 0, list[bytes](), zlib.decompressobj(_GZIP)
    try:
        for start in range(0, len(packed), CHUNK):
            part = packed[start : start + CHUNK]
            while part:
                parts.append(stream.decompress(part))
                size += len(parts[-1])
                check_growth(path, size)
                part = stream.unused_data  # what follows is a member of its own, or nothing
                stream = zlib.decompressobj(_GZIP) if part else stream
        fault = "" if stream.eof else "it ends before its end mark"
    except zlib.error as error:
        fault = str(error)
    if fault:
        line = 1 + sum(part.count(b"\n") for part in parts)
        raise InputError(f"{path}:{line}: the gzip file is damaged or cut short near this line ({fault}); get it again")
    return b"".join(parts)


def recording(path: Path, data: bytes, names: Sequence[str], delimiter: str, header: bool) -> Recording:
    """Return the rows of ``data``, the content of ``path``.

    names: of all fields, the time first; header: whether line 1 is one (the caller has checked it).

    Left out with a fault: rows with another number of fields, with a field that is no finite number, without a time.
    Empty lines are no rows.
    """
    _check_text(path, data)
    wrong = dict[int, str]()

    def misfit(row: Any) -> str:
        what = f"{row.actual_columns} fields, but {row.expected_columns} are needed"
        wrong[row.number] = f"{what}; correct or remove the line"
        return "skip"

    columns, number_N = _columns(path, data, names, delimiter, header, misfit)
    line_N = np.setdiff1d(np.arange(len(columns[0]) + len(wrong)) + 1 + header, np.array([*wrong], dtype=np.int64))
    value_DN = np.empty((len(names) - 1, len(line_N)), dtype=np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and reported below
        for value_N, column in zip(value_DN, columns[1:], strict=True):
            value_N[:] = column.to_numpy()
    time_N = columns[0].to_numpy()
    rows = Recording(path, tuple(names[1:]), time_N, value_DN, line_N, tuple(wrong.items()))
    empty_N: Bools = np.isnan(time_N) & np.isnan(value_DN).all(0)
    if number_N is not None:
        bad_N = np.zeros(len(line_N), dtype=np.bool_)
        bad_N[list(number_N)] = True
        empty_N &= ~bad_N
        rows = rows.without(bad_N, lambda n: number_N[n])
        empty_N = empty_N[~bad_N]
    if empty_N.any():
        rows = rows.take(np.flatnonzero(~empty_N))
    return _finite(rows, names[0])


def _check_text(path: Path, data: bytes) -> None:
    """Raise InputError where the content is no UTF-8: Arrow could not hand such a row over to be reported."""
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise InputError(f"{path}:{line}: bytes that are no UTF-8; correct the line or get the file again") from error


def _finite(rows: Recording, time: str) -> Recording:
    """Return the recording without rows that have no time or an infinite value."""
    rows = rows.without(
        ~np.isfinite(rows.time_N), lambda _: f"no number in column {time!r}; fill it in or remove the line"
    )
    endless_DN: Bools = np.isinf(rows.value_DN)
    return rows.without(
        np.asarray(endless_DN.any(0)),
        lambda n: (
            f"the value in column {rows.names[int(endless_DN[:, n].argmax())]!r} is not finite or too large for "
            "float32; correct it or remove the line"
        ),
    )


def _columns(
    path: Path, data: bytes, names: Sequence[str], delimiter: str, header: bool, misfit: Callable[[Any], str]
) -> tuple[list[Any], dict[int, str] | None]:
    """Return the columns as float64 (time) and float32, and the faults of rows with a field that is no number.

    The faults are None where there are none.
    """
    if not data.rstrip(b"\r\n") or (header and data.find(b"\n") in (-1, len(data) - 1)):
        return [pa.chunked_array([pa.array([], pa.float64())])] * len(names), None

    def read(types: dict[str, Any]) -> Any:
        return pa.csv.read_csv(
            pa.BufferReader(data),
            # one thread: lines are numbered only so, and the files are read side by side
            read_options=pa.csv.ReadOptions(use_threads=False, column_names=names, skip_rows=int(header)),
            parse_options=pa.csv.ParseOptions(
                delimiter=delimiter, quote_char=False, ignore_empty_lines=False, invalid_row_handler=misfit
            ),
            convert_options=pa.csv.ConvertOptions(column_types=types, null_values=MISSING),
        )

    numbers = dict.fromkeys(names, pa.float32()) | {names[0]: pa.float64()}
    try:
        return read(numbers).columns, None
    except pa.ArrowInvalid:  # some field is no number: read the fields as they are and find every such
        pass
    try:
        return _numbers_of(read(dict.fromkeys(names, pa.binary())))
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: this is no text of numbers ({error}); get the file again") from error


def _numbers_of(table: Any) -> tuple[list[Any], dict[int, str]]:
    """Do what ``_columns`` does, from the fields as bytes."""
    faults, columns = dict[int, str](), list[Any]()
    for name, column in zip(table.column_names, table.columns, strict=True):
        missing = pc.is_in(column, pa.array([word.encode() for word in MISSING]))
        good = pc.match_substring_regex(column, _NUMBER)
        for n in np.flatnonzero(~pc.or_(missing, good).to_numpy()).tolist():
            text = column[n].as_py().decode(errors="replace")
            faults.setdefault(n, f"{text!r} in column {name!r} is no number; correct it or remove the line")
        text = pc.if_else(good, column, pa.scalar(None, pa.binary())).cast(pa.string())
        columns.append(pc.utf8_trim_whitespace(text).cast(pa.float64()))
    return columns, faults
