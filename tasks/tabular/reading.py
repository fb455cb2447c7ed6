"""A user's file: a Parquet or CSV table, the types of its columns, and the faults of its rows.

Rows are numbered from 1 in messages, the header of a CSV file not counted. A CSV cell that reads ``[1, 2]`` is a list,
written as JSON, or texts as Python writes them (``['a', 'b']``). An empty cell is a missing value.
"""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from anchorfl.tasks.arrays.arrow import Bools, Column, Ints, Table
from anchorfl.tasks.errors import InputError, has_controls
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.decompression import NUMBERS, check_growth
from anchorfl.tasks.files.raw_files import open_bytes, open_text
from anchorfl.tasks.tabular.csv_quotes import QuoteCheckedStream

Form = Literal["numbers", "text", "vector", "series", "names", "other"]
"""Content of a column: a number, a text, a list of numbers, a list of lists of numbers, a list of texts; or else."""
CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET = (".parquet", ".pq")
BATCH_ROWS = 1 << 16
"""Rows of a Parquet file that are unpacked at a time."""
FEWER = "get it again, or give labels as one column of lists of classes, and numbers as int8 or float32"
MAX_COLUMNS = 100_000
"""Columns of a table: each takes kilobytes and its time, whatever it holds."""
ROW_BYTES = 8
"""A row's number takes so many bytes, whatever the row holds."""
BLOCK_BYTES = 1 << 26
"""A CSV row may be this long."""
PYTHON_TEXT = r"""'[^'\\]*'|"[^"\\]*\""""
"""A text as Python writes it, without escapes."""
PYTHON_TEXTS = rf"\[\s*(({PYTHON_TEXT})(\s*,\s*({PYTHON_TEXT}))*)?\s*\]"
"""A list of texts as Python writes it. Without commas (as NumPy writes an array) it is none."""


@dataclass(frozen=True)
class TableFile:
    """An open file."""

    path: Path
    types: Mapping[str, Any]
    """Arrow type of every column, in file order, as ``read`` gives it."""
    row_N: Ints
    """Ids of its rows from 0; rows that could not be taken apart are left out."""
    content: Any
    """CSV: the table; Parquet: its file, of which only the columns that are asked for are read."""
    separators: Mapping[str, str] = field(default_factory=dict)
    """Columns of texts that are read as lists: name -> what stands between the entries of a cell."""
    leaves: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Parquet: the numbers of the columns of its values that a column is made of."""

    def form(self, name: str) -> Form:
        """Return the content of a column."""
        return form_of(self.types[name])

    def read(self, names: Iterable[str], *, first: bool = False) -> Table:
        """Return some columns of all rows, or of the first ``BATCH_ROWS``. Raises InputError on a damaged file."""
        names = list(dict.fromkeys(names))
        try:
            # a name may hold a dot, which Parquet takes for a path: what else that brought is dropped
            if isinstance(self.content, pa.Table):
                table = self.content.slice(0, BATCH_ROWS) if first else self.content
            else:
                table = self._unpacked(names, first)
        except InputError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            if "all lists to be of size" in str(error):
                raise InputError(
                    f"{self.path}: a column of lists of a fixed size, among {listed(names)}, has an empty cell, which"
                    " pyarrow cannot read; store it as lists of any size, or remove the row"
                ) from error
            raise InputError(f"{self.path} is damaged: {arrow_message(error)}; write it again") from error
        return pa.table({name: self._plain(name, table[name]) for name in names})

    def head(self, names: Iterable[str]) -> Table:
        """Return some columns of the first ``BATCH_ROWS`` rows: it costs the same however long the file is."""
        return self.read(names, first=True)

    def separated(self, name: str, separator: str) -> TableFile:
        """Return the file with a column of texts read as lists of texts."""
        types = {**self.types, name: pa.list_(pa.string())}
        return replace(self, types=types, separators={**self.separators, name: separator})

    def _plain(self, name: str, column: Column) -> Column:
        column = plain(column, self._plain_type(name))
        return _separated(column, self.separators[name]) if name in self.separators else column

    def _plain_type(self, name: str) -> Any:
        """Return the type of a column before its texts are taken apart."""
        return pa.string() if name in self.separators else self.types[name]

    def _unpacked(self, names: Sequence[str], first: bool) -> Table:
        """Return columns of a Parquet file, part by part: a file that unpacks to no end is refused early.

        Its footer says what numbers unpack to. Texts come as those that differ and indices, whose number it says, too.
        """
        self._check_claims(names)
        parts, rows, numbers, rest = list[Any](), 0, 0, 0
        for group in range(self.content.num_row_groups):  # the texts of two groups make no one dictionary of lists
            for batch in self.content.iter_batches(BATCH_ROWS, row_groups=[group], columns=names):
                check_growth(self.path, rest + sum(_text_bytes(batch[name]) for name in names), hint=FEWER)
                columns = {name: pa.chunked_array([batch[name]]) for name in names}
                parts.append(pa.table({name: plain(columns[name], self._plain_type(name)) for name in names}))
                plainly = sum(parts[-1][name].nbytes for name in names if self.form(name) == "numbers")
                rows, numbers, rest = rows + len(batch), numbers + plainly, rest + parts[-1].nbytes - plainly
                check_growth(self.path, numbers, NUMBERS, FEWER)
                check_growth(self.path, rest, hint=FEWER)
                if first and rows >= BATCH_ROWS:
                    return pa.concat_tables(parts).slice(0, BATCH_ROWS)
        return pa.concat_tables(parts) if parts else self.content.read(columns=names)

    def _check_claims(self, names: Sequence[str]) -> None:
        """Raise InputError where columns of a Parquet file, by its footer, unpack to too much."""
        metadata, numbers, rest = self.content.metadata, 0, 0
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for name in names:
                width = value_bytes(self.types[name])
                for chunk in map(group.column, self.leaves[name]):
                    claim = max(chunk.total_uncompressed_size, chunk.num_values * width)
                    numbers += claim if self.form(name) == "numbers" else 0
                    rest += claim if self.form(name) != "numbers" else 0
        check_growth(self.path, numbers, NUMBERS, FEWER)
        check_growth(self.path, rest, hint=FEWER)


@dataclass(slots=True)
class Faults:
    """The faults of rows. All columns are looked at first, so that the first bad row is named."""

    path: Path
    row_N: Ints
    whole: bool = False
    """Images are decoded, not only opened."""
    found: list[tuple[Ints, Callable[[int], str]]] = field(default_factory=list)
    """Indices of bad rows, and the message for an index."""

    def add(self, bad_N: Bools, message: Callable[[int], str]) -> None:
        """Note bad rows. message: what is wrong with the row at an index, and the hint."""
        index = np.flatnonzero(bad_N)
        if len(index):
            self.found.append((index, message))

    def settle(self, bad: BadRows) -> Bools:
        """Meet every bad row, with its first fault, in file order; true where a row is good."""
        good_N = np.ones(len(self.row_N), dtype=np.bool_)
        first = dict[int, Callable[[int], str]]()
        for index, message in self.found:
            for i in index.tolist():
                first.setdefault(i, message)
        for i in sorted(first):
            bad.meet(f"{self.path}: row {self.row_N[i] + 1}: {first[i](i)}")
            good_N[i] = False
        return good_N


def open_file(path: Path, bad: BadRows, texts: Collection[str] = ()) -> TableFile:
    """Return the file of a user. texts: columns of a CSV file that are texts, whatever they look like. Raises
    InputError where there is none, or it is no table, is damaged or has no row.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; give the path of a .parquet, .csv or .csv.gz file, or with --task.root its folder"
        )
    name = path.name.lower()
    if not name.endswith(CSV + PARQUET):
        raise InputError(f"{path}: the name must end in .parquet, .csv or .csv.gz; rename or convert the file")
    leaves: Mapping[str, Sequence[int]] = {}
    if name.endswith(PARQUET):
        content, names, rows, leaves = _parquet(path)
        row_N = np.arange(rows)
    else:
        content, names, rows, row_N = _csv(path, bad, texts)
    twice = [column for column, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}; rename one")
    if odd := [column for column in names if has_controls(column)]:
        raise InputError(f"{path}: the name of column {odd[0]!r} holds control characters or a line end; rename it")
    if not rows:
        raise InputError(f"{path}: the table has no row")
    schema = content.schema if isinstance(content, pa.Table) else content.schema_arrow
    types = {column: plain_type(schema.field(column).type) for column in names}
    return TableFile(path, types, row_N, content, leaves=leaves)


def as_written(file: TableFile, names: Iterable[str]) -> Table:
    """Return those of some columns that are numbers in a CSV file, as texts; none of a file that has types."""
    numbers = [name for name in names if file.form(name) == "numbers"]
    if not numbers or not (file.path.is_file() and file.path.name.lower().endswith(CSV)):
        return pa.table({})
    return _csv(file.path, BadRows(skip=True), numbers, numbers)[0]


def form_of(kind: Any) -> Form:
    """Return the content of a column of a plain type."""
    if pa.types.is_list(kind):
        inner = form_of(kind.value_type)
        nested: dict[Form, Form] = {"numbers": "vector", "vector": "series", "text": "names"}
        return nested.get(inner, "other")
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "numbers"
    return "text" if pa.types.is_string(kind) else "other"


def plain_type(kind: Any) -> Any:
    """Return the plain type for columns of a type: string, list, or float64 for decimals and empty columns."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if types.is_decimal(kind) or types.is_null(kind):
        return pa.float64()
    return pa.float32() if types.is_float16(kind) else kind


def value_bytes(kind: Any) -> int:
    """Return the bytes of a value of a plain type, without those of texts: at least 1."""
    while pa.types.is_list(kind):
        kind = kind.value_type
    return int(max(1, kind.bit_width // 8)) if pa.types.is_primitive(kind) else 4  # an offset


def _text_bytes(array: Any) -> int:
    """Return the bytes of an array of texts, or of lists of them, that are indices of those that differ; else 0."""
    while pa.types.is_nested(array.type) and hasattr(array, "flatten") and not pa.types.is_struct(array.type):
        array = array.flatten()
    if not pa.types.is_dictionary(array.type) or not pa.types.is_string(array.type.value_type):
        return 0
    return int(pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0)


def plain(column: Column, kind: Any) -> Column:
    """Return a column brought to its plain type."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column if column.type == kind else column.cast(kind)


def arrow_message(error: Exception) -> str:
    """Return the message of an Arrow error, without line ends."""
    return " ".join(str(error).split())


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names for a message, the first and the last of many."""
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[: most - 2])} ... {names[-1]}"


def _check_columns(path: Path, columns: int) -> None:
    if columns > MAX_COLUMNS:
        msg = f"{path} has {columns} columns, of which {MAX_COLUMNS} are read at most"
        raise InputError(f"{msg}; give numbers as one column of lists, in Parquet")


def _parquet(path: Path) -> tuple[Any, list[str], int, Mapping[str, Sequence[int]]]:
    try:
        file = pq.ParquetFile(path)
        names, rows = file.schema_arrow.names, file.metadata.num_rows
        check_growth(path, ROW_BYTES * rows, hint=FEWER)
        _check_columns(path, len(names))
        leaves, texts = dict[str, list[int]](), list[str]()
        for number in range(len(file.schema)):
            leaf = file.schema.column(number)
            parts = leaf.path.split(".")
            for length in range(1, len(parts) + 1):  # a name may hold a dot
                leaves.setdefault(".".join(parts[:length]), []).append(number)
        for field_ in file.schema_arrow:
            if form_of(plain_type(field_.type)) in ("text", "names"):
                texts += [file.schema.column(number).path for number in leaves[field_.name]]
        if texts:
            file = pq.ParquetFile(path, read_dictionary=texts)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"{path} is no Parquet file, or a damaged one: {arrow_message(error)}; write it again"
        ) from error
    return file, names, rows, leaves


def _csv(
    path: Path, bad: BadRows, texts: Collection[str], only: Sequence[str] = ()
) -> tuple[Any, list[str], int, Ints]:
    """only: columns that are read; empty: all."""
    header = next((line for _, line in open_text(path)), "")
    delimiter = max(",;\t", key=re.sub('"[^"]*"', "", header).count)  # a name in quotes may hold any
    cells = _header_cells(path, delimiter)
    _check_columns(path, cells)
    single = cells == 1 and bool(header.strip("\r\n"))
    broken: list[Any] = []

    def keep(row: Any) -> str:
        broken.append(row)
        return "skip"

    with open_bytes(path) as stream:
        try:
            table = pyarrow.csv.read_csv(
                QuoteCheckedStream(path, stream, delimiter),
                # threads would lose the row numbers
                pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                pyarrow.csv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=keep,
                    ignore_empty_lines=not single,  # of one column an empty line is an empty cell
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(texts, pa.string()), include_columns=list(only)
                ),
            )  # fmt: skip
        except InputError:
            raise
        except (pa.ArrowException, OSError, EOFError, zlib.error, ValueError) as error:
            raise InputError(f"{path} is no CSV table: {arrow_message(error)}; correct it") from error
    if single:
        table = table.slice(0, len(table) - _empty_lines_at_end(path))
    for row in broken:
        bad.meet(
            f"{path}: row {row.number - 1}: {row.actual_columns} cells, the header has {row.expected_columns};"
            " quote cells that hold a delimiter"
        )
    total = table.num_rows + len(broken)
    row_N = np.setdiff1d(np.arange(total), [row.number - 2 for row in broken])
    if len(set(table.column_names)) == table.num_columns:
        table = pa.table({name: _cells(table[name], name, path) for name in table.column_names})
    return table, table.column_names, table.num_rows, row_N


def _empty_lines_at_end(path: Path) -> int:
    """Return how many lines at the end of a file are empty, without what follows the last line end."""
    ends = b""
    with open_bytes(path) as stream:
        while chunk := stream.read(BLOCK_BYTES):
            content = chunk.rstrip(b"\r\n")
            ends = chunk[len(content) :] if content else ends + chunk
    return max(0, len(ends.replace(b"\r\n", b"\n")) - 1)


def _header_cells(path: Path, delimiter: str) -> int:
    """Return the number of cells of the header, which may be of several lines. Reads no further."""
    lines = (part for _, line in open_text(path) for part in line.split("\r"))
    try:
        return len(next((row for row in csv.reader(lines, delimiter=delimiter) if row), []))
    except csv.Error as error:
        raise InputError(f"{path}: the header cannot be taken apart: {error}; close its quotes") from error


def _cells(column: Column, name: str, path: Path) -> Column:
    """Return a CSV column whose texts that are lists became lists, and empty texts null."""
    if pa.types.is_binary(column.type):
        raise InputError(f"{path}: column {name!r} is no UTF-8; convert the file to UTF-8")
    if not pa.types.is_string(column.type):
        return column
    text = pc.utf8_trim_whitespace(column)
    filled = pc.not_equal(text, "")
    column = pc.if_else(filled, column, pa.scalar(None, pa.string()))
    bracketed = pc.and_(pc.starts_with(text, "["), pc.ends_with(text, "]"))
    if not pc.any(filled).as_py() or not pc.all(pc.or_(bracketed, pc.invert(filled))).as_py():
        return column
    text = pc.replace_substring(pc.if_else(filled, text, "null"), "\n", " ")
    if not pc.any(pc.match_substring(text, '"')).as_py():  # as Python and pandas write it; JSON has NaN
        text = pc.replace_substring_regex(text, r"\bnan\b", "NaN")
    lines = pc.binary_join_element_wise('{"cell": ', text, "}", "").combine_chunks()
    data = "\n".join(lines.to_pylist()).encode()
    try:
        parsed = pyarrow.json.read_json(io.BytesIO(data), pyarrow.json.ReadOptions(block_size=max(len(data), 1) + 1))
    except pa.ArrowInvalid:  # such a text may be meant; where it is asked for as a list, that it is a text is said
        return _python_lists(column)
    return parsed["cell"] if parsed.num_rows == len(column) else column


def _python_lists(column: Column) -> Column:
    """Return a column of texts as lists where Python wrote all its cells (``['a', 'b']``), else as it is."""
    cells = [None if cell is None else cell.strip() for cell in column.to_pylist()]
    if not all(cell is None or re.fullmatch(PYTHON_TEXTS, cell) for cell in cells):
        return column
    lists = [None if cell is None else [text[1:-1] for text in re.findall(PYTHON_TEXT, cell)] for cell in cells]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def _separated(column: Column, separator: str) -> Column:
    """Return lists of the texts between separators; spaces around them do not count, nor does an empty text."""
    cells = (None if cell is None or not cell.strip() else cell.split(separator) for cell in column.to_pylist())
    lists = [None if cell is None else [text.strip() for text in cell if text.strip()] for cell in cells]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])
