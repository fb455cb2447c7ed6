"""Rows taken from a table in chunks: what Arrow's own ``take`` gives, for any cuts and any positions."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.arrays.chunks import Chunks
from tests.tasks.federations import QUICK

SEEDS = st.integers(0, 2**32 - 1)


@QUICK
@given(SEEDS, st.integers(1, 400), st.integers(0, 30), st.booleans())
def test_rows_of_chunks_are_the_rows_of_the_table(seed, largest, rows, ascending):
    rng = np.random.default_rng(seed)
    column = pa.array([list(range(rng.integers(5))) for _ in range(rows)], pa.list_(pa.int32()))
    table = pa.table({"row": pa.array(np.arange(rows)), "x": column})
    cuts = np.sort(rng.integers(0, rows + 1, 3)).tolist()
    table = pa.concat_tables(
        [table.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]
    )  # chunks of its own, some of them empty
    chunks = Chunks.of(table, largest)
    assert len(chunks) == rows
    assert all(c.nbytes <= largest or c.num_rows == 1 for c in chunks.chunks) or rows == 0
    index = rng.integers(0, max(rows, 1), 40 if rows else 0)
    index = np.sort(index) if ascending else index
    assert chunks.take(index).equals(table.take(index))
    with patch("anchorfl.tasks.arrays.chunks.MAX_CHUNK_BYTES", 64):  # rows are put in order a few at a time
        assert chunks.take(index).equals(table.take(index))
