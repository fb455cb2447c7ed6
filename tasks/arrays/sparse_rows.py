"""Rows of a client or a split of the server in parts: labels sparse, inputs as they are stored, so that a million rows
of ten thousand classes are never a matrix.

Shape suffixes: N all rows, B rows of a part, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from anchorfl.tasks.arrays.arrow import Bools, Column, Table, nulls
from anchorfl.tasks.arrays.disclosure import known_matrix
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.tensors import inputs
from anchorfl.tasks.contract import ClientData, InputSpec


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows."""

    data: ClientData
    """The inputs, with label matrices of no column."""
    labels: Labels
    known_BC: Bools | None
    """None where every label is known."""


@dataclass(frozen=True, slots=True)
class SparseRows:
    """All rows of a client or of a split."""

    x: Column
    """Column as it is stored (tasks/ingest/prepared.py)."""
    known: Column
    """Column as it is stored, as ``x``."""
    labels: Labels
    spec: InputSpec

    @classmethod
    def of(cls, table: Table, spec: InputSpec, classes: int) -> SparseRows:
        """Return the rows of a stored table. Raises ValueError on a class outside 0..C-1 or twice in a row."""
        return cls(table["x"], table["known"], Labels.of_lists(table["labels"], classes), spec)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> RowBlock:
        """Return the rows from ``start`` to before ``stop``, or to the last."""
        labels = self.labels.take(np.arange(start, min(stop, len(self))))
        x, length_B = inputs(self.x.slice(start, len(labels)), self.spec)
        none = torch.zeros(len(labels), 0)
        known, classes = self.known.slice(start, len(labels)), labels.classes
        known_BC = None if nulls(known).all() else known_matrix(known, range(classes), classes)
        return RowBlock(ClientData(x, none, none, none, length_B, self.spec.scaling()), labels, known_BC)
