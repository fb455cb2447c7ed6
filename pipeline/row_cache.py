"""The rows of the clients that a worker has trained last, so that they are not read anew in every round."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pipeline import tree
from tasks.contract import Card, ClientData

Rows = tuple[Card, ClientData]
MEGABYTE = 1e6


class RowCache:
    """Clients' rows up to so many bytes; those that were asked for longest ago leave first. What is left out is read
    again when it is asked for, so that a worker of thousands of clients needs no more memory than one of ten.
    """

    def __init__(self, megabytes: float) -> None:
        self.most = int(megabytes * MEGABYTE)
        self.held = 0
        self._rows: OrderedDict[int, Rows] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, client: int, read: Callable[[], Rows]) -> Rows:
        """A client's card and rows; ``read`` gives them where they are not here."""
        if client in self._rows:
            self._rows.move_to_end(client)
            return self._rows[client]
        made = read()
        self._rows[client] = made
        self.held += _size(made)
        while self.held > self.most and self._rows:
            _, left = self._rows.popitem(last=False)
            self.held -= _size(left)
        return made


def _size(rows: Rows) -> int:
    card, data = rows
    held = {"count_C": card.count_C, "aware_C": card.aware_C, "x": data.x, "y_NC": data.y_NC}
    return tree.nbytes(held | {"known_NC": data.known_NC, "weight_NC": data.weight_NC})
