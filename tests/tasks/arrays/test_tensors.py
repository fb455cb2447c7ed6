"""Stored tables as tensors: splits without a row, of every kind of input."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anchorfl.tasks.arrays.tensors import client_data
from anchorfl.tasks.contract import InputSpec, Objective

KINDS = [
    (InputSpec("tokens", (7,), vocabulary=("a", "b")), pa.int32(), (0, 1)),
    (InputSpec("sparse", (9,)), pa.float32(), (0, 1, 2)),
    (InputSpec("image", (1, 3, 4), levels=255), pa.uint8(), (0, 1, 3, 4)),
    (InputSpec("series", (5, 2)), pa.float32(), (0, 5, 2)),
]


@pytest.mark.parametrize(("spec", "kind", "shape"), KINDS, ids=[spec.kind for spec, _, _ in KINDS])
def test_a_split_without_rows(spec, kind, shape):
    """As with ``task.validation = 0``."""
    lists = pa.list_(pa.int32())
    table = pa.table({"x": pa.array([], pa.list_(kind)), "labels": pa.array([], lists), "known": pa.array([], lists)})
    data = client_data(table, spec, 3, Objective("multi"), range(3))
    assert len(data) == 0
    assert tuple(data.x.shape) == shape
    assert data.y_NC.shape == data.known_NC.shape == (0, 3)
