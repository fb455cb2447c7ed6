"""The files of a corpus: which they are, how they are cut into shards of whole segments, and the text in a shard.

A file is plain text, JSON lines (``.jsonl``, ``.ndjson``, ``.json``) or Parquet; the first two also gzipped. In JSON
lines and Parquet every record is an article; a text file is one article, or lines and paragraphs of any number of them.
"""

from __future__ import annotations

import glob
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anchorfl.tasks.corpus.counting import RECORD, Layout, Segment
from anchorfl.tasks.errors import InputError, nearest

BLOCK = 2 << 20
"""Bytes of text that are counted at one time: they and their arrays stay near the processor."""
MAX_SEGMENT_BYTES = 64 << 20
"""Bytes of the longest line, paragraph or article."""
ROWS, READ_BYTES = 1024, 64 << 20
"""Rows of a Parquet file that are read at a time, fewer where its rows are as long as that."""
SUFFIXES = (".txt", ".jsonl", ".ndjson", ".parquet")
"""Files that are taken from a folder, also with .gz behind (not Parquet); a file named by itself may have any name."""
Format = Literal["text", "json", "parquet"]
_FORMATS: dict[str, Format] = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_LINE, _BLANK = re.compile(rb"\n"), re.compile(rb"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class Reading:
    """The options by which files become segments."""

    segment: Segment = "paragraph"
    layout: Layout = "lines"
    field: str = "text"
    """Name of the JSON field or Parquet column with the text."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a file that a worker can read alone."""

    path: str
    kind: Format
    start: int = 0
    """First byte of a text; Parquet: number of the row group."""
    end: int = -1
    """End of a text in bytes; below 0: a gzip stream, whole."""


def files(corpus: Sequence[str]) -> list[Path]:
    """Return all files that the arguments mean, each once. Raises InputError where an argument means none."""
    paths = dict[Path, None]()
    for text in corpus:
        path = Path(text).expanduser()
        if path.is_dir():
            matches = [inner for inner in sorted(path.rglob("*")) if inner.is_file() and _plain(inner) in SUFFIXES]
        else:
            matches = [path] if path.is_file() else sorted(Path(p) for p in glob.glob(str(path), recursive=True))
            matches = [inner for inner in matches if inner.is_file()]
        if not matches:
            kinds = ", ".join(SUFFIXES)
            raise InputError(f"{text}: no file there; give a file, a folder with {kinds} (or .gz) files, or a pattern")
        paths |= dict.fromkeys(matches)
    return list(paths)


def shards_of(path: Path, reading: Reading) -> list[Shard]:
    """Return the shards of a file, by looking at a few bytes of it. Raises InputError where it cannot be cut."""
    kind = _FORMATS.get(_plain(path), "text")
    try:
        if kind == "parquet":
            return [Shard(str(path), "parquet", group) for group in range(_parquet(path, reading.field).num_row_groups)]
        if path.suffix == ".gz":
            return [Shard(str(path), kind)]
        whole = kind == "text" and reading.segment == "article"
        edges = [0, path.stat().st_size] if whole else list(_edges(path, _end(kind, reading)))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; make the file readable") from error
    if whole and edges[1] > MAX_SEGMENT_BYTES:
        msg = f"{path}: a text file is one article, and this has {edges[1]} bytes, more than {MAX_SEGMENT_BYTES}"
        raise InputError(f"{msg}; give each article a file or a JSON line, or take --segment paragraph")
    return [Shard(str(path), kind, start, end) for start, end in pairwise(edges)]


def blocks(shard: Shard, reading: Reading) -> Iterator[str]:
    """Yield the text of a shard in blocks of whole segments. Raises InputError with file and line."""
    if shard.kind == "parquet":
        yield from _join_articles(_parquet_texts(shard, reading.field))
        return
    line = 1
    for data in _chunks(shard, reading):
        if shard.kind == "json":
            yield from _join_articles(_json_texts(shard, data, line, reading.field))
        else:
            yield _decode(shard, data, line)
        line += data.count(b"\n") if shard.end < 0 else 0


def _plain(path: Path) -> str:
    """Return the suffix without .gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix


def _end(kind: str, reading: Reading) -> re.Pattern[bytes]:
    return _BLANK if kind == "text" and reading.layout == "blank_lines" else _LINE


def _edges(path: Path, end: re.Pattern[bytes]) -> Iterator[int]:
    """Yield the positions in a file where shards begin and end.

    These are 0, the first segment ends at or after every ``BLOCK``, and the size.
    """
    size, at = path.stat().st_size, 0
    yield at
    with path.open("rb") as stream:
        while at + BLOCK < size:
            at += BLOCK
            stream.seek(at)
            data, match = b"", None
            while match is None and (more := stream.read(max(1 << 13, len(data)))):
                data += more
                _check_length(str(path), len(data), end)
                match = end.search(data, _back(data, len(data) - len(more)))
            if match is None:
                break
            at += match.end()
            yield at
    if at < size or not size:
        yield size


def _check_length(path: str, size: int, end: re.Pattern[bytes]) -> None:
    if size > MAX_SEGMENT_BYTES:
        edge = "line end" if end is _LINE else "blank line"
        raise InputError(f"{path}: no {edge} within {MAX_SEGMENT_BYTES} bytes; cut the text into lines or paragraphs")


def _chunks(shard: Shard, reading: Reading) -> Iterator[bytes]:
    """Yield the bytes of a text or JSON shard, each chunk of whole lines or paragraphs."""
    if shard.end >= 0:
        with open(shard.path, "rb") as stream:
            stream.seek(shard.start)
            yield stream.read(shard.end - shard.start)
        return
    end, rest = _end(shard.kind, reading), b""
    whole = shard.kind == "text" and reading.segment == "article"
    try:
        # the gzip module's file is a binary stream, whatever its stub calls it
        with cast("IO[bytes]", gzip.open(shard.path, "rb")) as stream:
            while data := stream.read(BLOCK):
                rest += data
                _check_length(shard.path, len(rest), end)
                last = None if whole else _last(end, rest, len(rest) - len(data))
                if last is not None:
                    yield rest[:last]
                    rest = rest[last:]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{shard.path}: the gzip file is damaged or cut short ({error}); get it again") from error
    if rest:
        yield rest


def _last(end: re.Pattern[bytes], data: bytes, new: int) -> int | None:
    """Return the end of the last segment of ``data`` that reaches beyond ``new``; None where there is none."""
    if end is _LINE:
        return data.rfind(b"\n") + 1 or None
    ends = [match.end() for match in end.finditer(data, _back(data, new))]
    return ends[-1] if ends else None


def _back(data: bytes, new: int) -> int:
    """Return the position to search from, if ``data`` before ``new`` held no segment end.

    A blank line may begin with the last line before ``new``.
    """
    line = data.rfind(b"\n", 0, new)
    return new if line < 0 else line


def _decode(shard: Shard, data: bytes, line: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at = _line_number(shard, line) + data.count(b"\n", 0, error.start)
        raise InputError(
            f"{shard.path}:{at}: byte {data[error.start]:#04x} is no UTF-8; convert the file to UTF-8"
        ) from error


def _line_number(shard: Shard, line: int) -> int:
    """Return the number of the first line of a shard; ``line`` for a stream, which is counted as it is read."""
    if shard.end < 0:
        return line
    with open(shard.path, "rb") as stream:
        return 1 + stream.read(shard.start).count(b"\n")


def _json_texts(shard: Shard, data: bytes, line: int, field: str) -> Iterator[str]:
    """Yield the field of every JSON line; a null is no text."""
    for at, row in enumerate(_decode(shard, data, line).split("\n")):
        if not row.strip():
            continue
        try:
            record = json.loads(row.removeprefix("\ufeff"))
            text = record[field]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            location = f"{shard.path}:{_line_number(shard, line) + at}"
            if isinstance(error, KeyError):
                msg = f"{location}: no field {field!r}{nearest(field, record)}; name the field of the text with --field"
            else:
                msg = f"{location}: not a JSON object ({error}); write one object a line"
            raise InputError(msg) from error
        if not isinstance(text, str | None):
            raise InputError(
                f"{shard.path}:{_line_number(shard, line) + at}: field {field!r} is no text; name another with --field"
            )
        yield text or ""


def _parquet(path: Path, field: str) -> Any:
    """Return a Parquet file that has the column."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a Parquet file ({str(error).splitlines()[0]}); get it again") from error
    if field not in schema.names:
        msg = f"{path}: no column {field!r}{nearest(field, schema.names)}; it has {', '.join(schema.names)}"
        raise InputError(f"{msg}; name the column of the text with --field")
    kind = schema.field(field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InputError(f"{path}: column {field!r} holds {kind}, no text; name another with --field")
    return pq.ParquetFile(path, read_dictionary=[field])  # a text that a million rows repeat is read once


def _parquet_texts(shard: Shard, field: str) -> Iterator[str]:
    file = _parquet(Path(shard.path), field)
    try:
        group = file.metadata.row_group(shard.start)
        rows = max(16, min(ROWS, READ_BYTES * group.num_rows // max(1, group.total_byte_size)))
        for batch in file.iter_batches(rows, row_groups=[shard.start], columns=[field]):
            column = batch.column(0)
            texts = column.dictionary if pa.types.is_dictionary(column.type) else column
            _check_articles(shard.path, pc.max(pc.binary_length(texts)).as_py() or 0)
            yield from (text.as_py() or "" for text in column)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{shard.path} is damaged ({' '.join(str(error).split())}); get it again") from error


def _check_articles(path: str, longest: int) -> None:
    """Raise InputError where an article is longer than texts are: a few bytes of a Parquet file may be any length."""
    if longest > MAX_SEGMENT_BYTES:
        raise InputError(f"{path}: an article has {longest} bytes, more than {MAX_SEGMENT_BYTES}; cut it into several")


def _join_articles(texts: Iterator[str]) -> Iterator[str]:
    """Yield articles, ``RECORD`` between them, in blocks."""
    articles, size = list[str](), 0
    for text in texts:
        articles.append(text)
        size += len(text)
        if size >= BLOCK:
            yield RECORD.join(articles)
            articles, size = [], 0
    if articles:
        yield RECORD.join(articles)
