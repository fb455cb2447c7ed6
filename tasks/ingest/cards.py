"""The cards of all clients, each made when it is asked for: of 13,330 clients of as many classes, all of them at once
would be 1.6 GB.

Shape suffixes: C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch

from anchorfl.tasks.contract import Card


@dataclass(frozen=True)
class Cards(Sequence[Card]):
    """In the order of clients. classes: C; rows, counts, aware: of every client, its rows, the (class, rows) of its
    known positives, and its identified classes.
    """

    classes: int
    rows: tuple[int, ...]
    counts: tuple[tuple[tuple[int, int], ...], ...]
    identified: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Card: ...
    @overload
    def __getitem__(self, index: slice) -> list[Card]: ...
    def __getitem__(self, index: int | slice) -> Card | list[Card]:
        """A client's card, or those of several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        client = range(len(self))[index]
        count_C = torch.zeros(self.classes, dtype=torch.int64)
        identified_C = torch.zeros(self.classes, dtype=torch.bool)
        identified_C[list(self.identified[client])] = True
        for class_, number in self.counts[client]:
            count_C[class_] = number
        return Card(client, self.rows[client], count_C, identified_C)
