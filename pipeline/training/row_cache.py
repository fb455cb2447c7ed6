"""Clients' rows that a worker keeps from round to round, in a bounded piece of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm import messages
from anchorfl.tasks.contract import Card, ClientData

ClientRows = tuple[Card, ClientData]
MEGABYTE = 1e6
SLAB = 1 << 23
"""Bytes of a slab."""
ALIGNMENT = 64
"""Bytes to which a tensor's place in a slab is rounded up: a cache line."""


@dataclass(slots=True, eq=False)
class _Slab:
    """A piece of memory with the rows of some clients."""

    memory: Tensor
    """uint8; empty where a client's tensors are kept as they came."""
    size: int
    """Bytes."""
    used: int = 0
    clients: list[int] = field(default_factory=list)

    def copy_of(self, value: Tensor) -> Tensor:
        """Return a copy that lies in the slab."""
        size = messages.nbytes(value)
        place = self.memory[self.used : self.used + size].view(value.dtype).view(value.shape)
        self.used += _aligned(size)
        return place.copy_(value)


class RowCache:
    """Clients' rows up to so many bytes. What is left out is read again when it is asked for, so that a worker of
    thousands of clients needs no more memory than one of ten.

    Small clients share slabs, and a slab leaves as a whole: that which was asked for longest ago. Tensors of their own
    would be cut out of the heap between the messages of a round, whose memory then could not be used for the next one:
    1,000 clients of a kilobyte each kept a gigabyte.
    """

    def __init__(self, megabytes: float) -> None:
        self.max_bytes = int(megabytes * MEGABYTE)
        self.cached_bytes = 0
        self._slabs: OrderedDict[int, _Slab] = OrderedDict()
        self._rows: dict[int, tuple[int, ClientRows]] = {}
        self._added = 0
        self._open = -1  # the slab that takes the next small client

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all."""
        while self._slabs:
            self._drop()

    def get(self, client: int, read: Callable[[], ClientRows]) -> ClientRows:
        """Return a client's card and rows, by ``read`` where they are not cached."""
        if client in self._rows:
            slab, rows = self._rows[client]
            self._slabs.move_to_end(slab)
            return rows
        rows = read()
        size = _size(rows)
        if size > self.max_bytes:
            return rows
        slab, rows = self._place(rows, size)
        self._rows[client] = slab, rows
        self._slabs[slab].clients.append(client)
        self._slabs.move_to_end(slab)
        while self.cached_bytes > self.max_bytes:
            self._drop()
        return rows

    def _place(self, rows: ClientRows, size: int) -> tuple[int, ClientRows]:
        """Return the number of the slab in which the rows of a client lie, and the rows there."""
        card, data = rows
        shared = min(SLAB, self.max_bytes // 4)
        if size > shared // 4 or data.x.device.type != "cpu":
            return self._add(0, size), rows
        if self._open not in self._slabs or self._slabs[self._open].used + size > shared:
            self._open = self._add(shared, shared)
        slab = self._slabs[self._open]
        card = replace(card, count_C=slab.copy_of(card.count_C), identified_C=slab.copy_of(card.identified_C))
        data = replace(
            data,
            x=slab.copy_of(data.x),
            y_NC=slab.copy_of(data.y_NC),
            known_NC=slab.copy_of(data.known_NC),
            weight_NC=slab.copy_of(data.weight_NC),
        )
        return self._open, (card, data)

    def _add(self, memory: int, size: int) -> int:
        """Add a slab with so many bytes of memory, which counts as ``size``; return its number."""
        self._added += 1
        self._slabs[self._added] = _Slab(torch.empty(memory, dtype=torch.uint8), size)
        self.cached_bytes += size
        return self._added

    def _drop(self) -> None:
        """Forget the slab that was asked for longest ago, with its clients."""
        _, slab = self._slabs.popitem(last=False)
        self.cached_bytes -= slab.size
        for client in slab.clients:
            del self._rows[client]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _size(rows: ClientRows) -> int:
    """Return the bytes of a client's tensors in a slab; the lengths of rows are few, and stay where they are."""
    card, data = rows
    tensors = (card.count_C, card.identified_C, data.x, data.y_NC, data.known_NC, data.weight_NC)
    return sum(_aligned(messages.nbytes(value)) for value in tensors)
