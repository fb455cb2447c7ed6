"""Rows taken many times from a large Arrow table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Ints, Table

MAX_CHUNK_BYTES = 1 << 30
"""Bytes of a chunk."""


@dataclass(frozen=True)
class Chunks:
    """A table in a few chunks of consecutive rows, each of one Arrow array per column.

    Arrow's own ``take`` copies all chunks of a column into one array, every time, and fails where that is beyond 2^31
    values of lists.
    """

    chunks: tuple[Any, ...]
    start_Q1: Ints
    """First row of every chunk, and the number of rows last."""

    @classmethod
    def of(cls, table: Table, largest: int = MAX_CHUNK_BYTES) -> Chunks:
        """Return the chunks of a table, of at most ``largest`` bytes unless a single row is larger."""
        chunks = tuple(_cut(table, largest))
        return cls(chunks, np.cumsum([0, *(chunk.num_rows for chunk in chunks)], dtype=np.int64))

    @classmethod
    def as_they_are(cls, table: Table) -> Chunks:
        """Return the chunks that a table has; nothing is copied."""
        chunks = tuple(pa.Table.from_batches([batch]) for batch in table.to_batches()) or (table,)
        return cls(chunks, np.cumsum([0, *(chunk.num_rows for chunk in chunks)], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.start_Q1[-1])

    def take(self, index_B: Ints) -> Table:
        """Return the rows at these positions, in that order, as a table."""
        if (np.diff(index_B) >= 0).all():
            return self._chunk_by_chunk(index_B)
        # so many rows at a time that putting them in order stays within what Arrow can concatenate
        rows = max(1, int(MAX_CHUNK_BYTES * max(1, len(self)) / max(1, sum(chunk.nbytes for chunk in self.chunks))))
        if len(self.chunks) == 1 and len(index_B) <= rows:
            return self._chunk_by_chunk(index_B)
        parts = [index_B[start : start + rows] for start in range(0, len(index_B), rows)]
        return pa.concat_tables([self._chunk_by_chunk(np.sort(p)).take(np.argsort(np.argsort(p))) for p in parts])

    def _chunk_by_chunk(self, index_B: Ints) -> Table:
        """Return the rows at these positions, those of a chunk after those of the one before it."""
        chunk_B = np.searchsorted(self.start_Q1, index_B, side="right") - 1
        taken = [
            self.chunks[q].take(index_B[chunk_B == q] - self.start_Q1[q]) for q in np.unique(chunk_B).tolist()
        ] or [self.chunks[0].slice(0, 0)]
        return pa.concat_tables(taken)


def _cut(table: Table, largest: int) -> Iterator[Any]:
    if table.nbytes <= largest or table.num_rows < 2:
        yield table.combine_chunks()
        return
    half = table.num_rows // 2
    yield from _cut(table.slice(0, half), largest)
    yield from _cut(table.slice(half), largest)
