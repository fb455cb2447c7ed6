"""CSV files with quoted fields that run over many lines, read as a stream of blocks in bounded memory.

A record is counted as Arrow counts it: the header is record 1, and what a quoted field holds is no new record. No
message quotes a field: these files hold the notes of patients.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.decompression import CheckedStream
from anchorfl.tasks.files.raw_files import open_text

BLOCK = 1 << 24
"""Bytes that are parsed at a time; a longer record cannot be read."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some records."""

    columns: Any
    """The columns that were asked for, all strings (an empty field is the empty string)."""
    number_N: Ints
    """Number of every record in its file."""


def read_blocks(path: Path, columns: Sequence[str], bad: BadRows, block: int = BLOCK) -> Iterator[Block]:
    """Yield the records of a file, plain or gzip, with these columns of its header.

    Raises InputError with file and record on a missing column, a damaged gzip stream, bytes that are no UTF-8, and a
    file that ends within quotes; a record with too few or too many fields is a bad row.
    """
    width = _check_header(path, columns)
    broken = _Broken()
    start = 2
    with path.open("rb") as file:
        plain = pa.CompressedInputStream(file, "gzip") if path.suffix == ".gz" else pa.PythonFile(file)
        source = _Quotes(path, plain)
        for batch in _batches(path, source, columns, broken, block):
            number_N = np.arange(start, start + batch.num_rows + len(broken.numbers))
            number_N = np.setdiff1d(number_N, broken.numbers)[: batch.num_rows]
            start = int(number_N[-1]) + 1 if len(number_N) else start
            broken.report(path, width, bad)
            yield Block(batch, number_N)
        broken.report(path, width, bad)
    if (source.quotes - broken.quotes) % 2:
        raise InputError(
            f"{path}: the file ends within a quoted field: it is cut short, or a quote is not closed; get it again"
        )


@dataclass(slots=True)
class _Broken:
    """The records whose number of fields is not the header's."""

    numbers: list[int] = field(default_factory=list)
    """Numbers of the records."""
    fields: list[int] = field(default_factory=list)
    """Number of fields of each."""
    quotes: int = 0
    """Number of quotation marks in them."""
    reported: int = 0
    """Number of them that were reported."""

    def meet(self, row: Any) -> str:
        """Answer Arrow's question what to do: leave it out for now, since an error raised here would not arrive."""
        self.numbers.append(row.number)
        self.fields.append(row.actual_columns)
        self.quotes += row.text.count('"')
        return "skip"

    def report(self, path: Path, width: int, bad: BadRows) -> None:
        """Meet those that were not reported yet."""
        for number, fields in list(zip(self.numbers, self.fields, strict=True))[self.reported :]:
            self.reported += 1
            bad.meet(
                f"{path}: record {number}: {fields} fields, the header has {width}; look for a quote that is not "
                "closed in it or in the record before, and get the file again"
            )


class _Quotes(CheckedStream):
    """A stream that counts the quotation marks that pass; their number is even in a whole file."""

    quotes = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes. Raises InputError."""
        data = super().read(size)
        self.quotes += data.count(b'"')
        return data


def _batches(path: Path, source: _Quotes, columns: Sequence[str], broken: _Broken, block: int) -> Iterator[Any]:
    """Yield Arrow's record batches; its errors become InputError, without the text that Arrow would quote."""
    read = pacsv.ReadOptions(block_size=block, use_threads=False)  # with threads it would not number the records
    parse = pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=broken.meet)
    convert = pacsv.ConvertOptions(
        include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=False
    )
    try:
        yield from pacsv.open_csv(source, read_options=read, parse_options=parse, convert_options=convert)
    except OSError as error:
        if path.suffix != ".gz":
            raise
        raise InputError(f"{path}: the gzip file is damaged or cut short ({error}); get it again") from error
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: {_fault(str(error), block)}") from None  # it quotes the record


def _fault(message: str, block: int) -> str:
    """Return Arrow's complaint, without the content of the record."""
    if "straddl" in message:
        return f"a record is longer than {block} bytes: a quote is not closed; get the file again"
    return "this is no CSV file; get it again"


def _check_header(path: Path, columns: Sequence[str]) -> int:
    """Return the number of columns. Raises InputError where one of ``columns`` is missing."""
    _, line = next(open_text(path), (1, ""))
    try:
        names = next(csv.reader([line]), [])
    except csv.Error as error:
        raise InputError(f"{path}:1: the header is no line of CSV ({error}); get the file again") from error
    for name in columns:
        if name not in names:
            known = ", ".join(names) or "nothing"
            raise InputError(
                f"{path}:1: no column {name}{nearest(name, names)} in the header, it has {known}; get the file again"
            )
    return len(names)
