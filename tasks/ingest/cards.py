"""The cards of all clients, each made when it is asked for: of 13,330 clients of as many classes, all of them at once
would be 1.6 GB.

Shape suffixes: C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch

from anchorfl.tasks.contract import Card


@dataclass(frozen=True)
class Cards(Sequence[Card]):
    """The cards of all clients, in their order."""

    classes: int
    """C."""
    rows: tuple[int, ...]
    """Rows of every client."""
    counts: Sequence[tuple[tuple[int, int], ...]]
    """(class, rows) of every client's known positives."""
    identified: Sequence[tuple[int, ...]]
    """Identified classes of every client."""

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Card: ...
    @overload
    def __getitem__(self, index: slice) -> list[Card]: ...
    def __getitem__(self, index: int | slice) -> Card | list[Card]:
        """Return a client's card, or those of several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        client = range(len(self))[index]
        count_C, identified_C = np.zeros(self.classes, np.int64), np.zeros(self.classes, np.bool_)
        identified_C[list(self.identified[client])] = True
        for class_, number in self.counts[client]:
            count_C[class_] = number
        return Card(client, self.rows[client], torch.from_numpy(count_C), torch.from_numpy(identified_C))
