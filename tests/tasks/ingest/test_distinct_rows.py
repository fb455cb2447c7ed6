"""All rows of a federation at once: each once, whatever the ids are."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.ingest import distinct_rows as module
from anchorfl.tasks.ingest.distinct_rows import collect_distinct_rows


@pytest.mark.parametrize("base", [0, 14_000_000_000])
def test_ids_may_be_any_numbers(monkeypatch, base):
    """Photographs have numbers of eleven digits; a row of two clients is one row with two holders."""
    ids = [[5, 1], [9, 5, 2], []]

    def read(prepared, client):
        rows = np.array(ids[client], dtype=np.int64) + base
        x = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(rows % 100, 2).astype(np.float32)), 2)
        return pa.table({"row": rows, "x": x, "labels": pa.array([[0]] * len(rows), pa.list_(pa.int32()))})

    monkeypatch.setattr(module, "_read", read)
    prepared = SimpleNamespace(manifest=SimpleNamespace(examples=(2, 3, 0), spec=InputSpec("vector", (2,))))
    tracemalloc.start()
    found = collect_distinct_rows(prepared, [0, 1, 1], 2)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    assert (found.row_N - base).tolist() == [1, 2, 5, 9]
    assert found.holders.matrix().tolist() == [[True, False], [False, True], [True, True], [False, True]]
