"""Images that have been encoded already, for another seed or partition: to decode a photo takes many times as long as
to read its pixels.

They are the same where the raw files, the code that reads them, the rows by id and path, and the input's form are: what
a file becomes depends on nothing else.

Shape suffixes: N rows of the raw data, B some of them.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Bools, Column, Ints, Table
from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.files.split_leaks import is_path
from anchorfl.tasks.ingest.manifest import MANIFEST, Summary, read_summary
from anchorfl.tasks.ingest.prepared import Prepared

LARGEST = 1 << 31
"""Bytes of all inputs, before compression, up to which they are taken: this process holds them."""


def inputs_digest(table: Table, payload: str) -> str:
    """Return the sha256 of ids and paths of raw rows whose payload is a file; empty where it is none."""
    if not is_path(table, payload):
        return ""
    digest = hashlib.sha256(np.ascontiguousarray(table["row"].to_numpy(), "<i8").tobytes())
    for path in table[payload].to_pylist():
        digest.update(path.encode() + b"\0")
    return digest.hexdigest()


def encoded_before(root: Path, wanted: Summary, number_N: Ints, needed_N: Bools) -> tuple[Column, str] | None:
    """Return the encoded inputs of raw rows in their order, and the folder below ``root`` that they come from; None:
    no prepared data there have them all.

    wanted: what those data must be like, as far as the input goes. number_N: the numbers under which the rows are
    stored. needed_N: the rows that count; others have an input that means nothing.
    """
    if not wanted.inputs_digest or len(number_N) * int(np.prod(wanted.spec.shape)) > LARGEST:
        return None
    for folder in _alike(root, wanted):
        try:
            number_B, x = _inputs(Prepared.load(folder))
        except PreparedDataError:  # this only saves time; who uses those data learns what is wrong with them
            continue
        place_N = np.full(len(number_N), -1, dtype=np.int64)
        place_N[number_B] = np.arange(len(number_B))
        place_N = place_N[number_N]
        if (place_N[needed_N] >= 0).all():
            return Chunks.of(x).take(np.maximum(place_N, 0))["x"], folder
    return None


def _inputs(data: Prepared) -> tuple[Ints, Table]:
    """Return the numbers of all rows that anybody has, and their inputs, a row as often as it is there."""
    owners = range(len(data.manifest.extents))
    tables = pa.concat_tables([data.rows(owner, ["row", "x"]) for owner in owners])
    return tables["row"].to_numpy(), tables.select(["x"])


def _alike(root: Path, wanted: Summary) -> Iterator[str]:
    """Yield the prepared folders in which a row of a number has the input that it has in ``wanted``."""

    def key(summary: Summary) -> tuple[Any, ...]:
        return summary.raw_digest, summary.reader_digest, summary.inputs_digest, summary.raw_rows, summary.spec

    for path in sorted(root.glob(f"{glob.escape(wanted.task)}-*/{MANIFEST}")):
        try:
            summary = read_summary(str(path.parent))
        except PreparedDataError:  # of another version
            continue
        if key(summary) == key(wanted):
            yield str(path.parent)
