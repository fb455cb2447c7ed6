"""Dropout whose masks come from a generator of the caller, by table look-up of random bytes where that is exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_BITS = torch.tensor([[float((byte >> bit) & 1) for bit in range(8)] for byte in range(256)])
_RESOLUTION = 1 << 16


class MaskSource:
    """The source of random bits for every dropout of one model; ``reseed`` it before a client trains.

    ``lookup`` false draws each element with ``bernoulli_``: 20 times slower on a CPU at p = 0.5 (docs/adr/0006).
    """

    def __init__(self, *, lookup: bool = True) -> None:
        self.lookup = lookup
        self.generator = torch.Generator()
        self._tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def reseed(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __deepcopy__(self, memo: dict[int, object]) -> MaskSource:
        # A generator cannot be copied; a copied model starts with an unseeded source of its own.
        return MaskSource(lookup=self.lookup)

    @contextmanager
    def seeded(self, device: torch.device) -> Iterator[None]:
        """Seed torch's global generators, the CPU's and a GPU's, for the block; then they are as they were before."""
        seed = int(torch.empty((), dtype=torch.int64, device=self.generator.device).random_(generator=self.generator))
        gpus = [device.index or 0] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus):
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu].manual_seed(seed)
            yield

    def mask(self, like: Tensor, p: float, positions: tuple[int, ...] = ()) -> Tensor:
        """Return a mask in the shape of ``like``: 0 with probability p, else 1 / (1 - p).

        positions: dimensions of ``like`` that are positions of a row, which may be padding.
        """
        if not self.lookup or like.device.type != "cpu":
            return torch.empty_like(like).bernoulli_(1 - p, generator=self.generator).div_(1 - p)
        n = like.numel()
        if p == 0.5:
            # One random bit per element: a byte picks a row of eight ready-made factors.
            table_V8 = self._table(like)
            rows = self._random_bytes((n + 7) // 8).view(torch.uint8)[: (n + 7) // 8].to(torch.int32)
            return table_V8.index_select(0, rows).view(-1)[:n].view(like.shape)
        keep = min(max(round((1 - p) * _RESOLUTION), 1), _RESOLUTION - 1)
        # 16 random bits per element; the scale uses the probability that is really drawn, so the mean stays exact.
        drawn = self._random_bytes(2 * n).view(torch.int16)[:n].view(like.shape)
        return (drawn < keep - _RESOLUTION // 2).to(like.dtype).mul_(_RESOLUTION / keep)

    def _random_bytes(self, count: int) -> Tensor:
        words = torch.empty((count + 7) // 8, dtype=torch.int64)
        # from = -2**63 without an upper end is the full 64-bit range; the default would leave the sign bit at zero.
        return words.random_(-(2**63), None, generator=self.generator)

    def _table(self, like: Tensor) -> Tensor:
        key = (like.device, like.dtype)
        if key not in self._tables:
            self._tables[key] = (2 * _BITS).to(like.device, like.dtype)
        return self._tables[key]


class Dropout(nn.Module):
    """Dropout: in training mode each element is 0 with probability p, and the others are scaled by 1 / (1 - p)."""

    def __init__(self, p: float, source: MaskSource) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout p = {p}: must be in [0, 1)")
        self.p = p
        self.source = source

    def forward(self, x: Tensor, positions: tuple[int, ...] = ()) -> Tensor:
        """positions: as ``MaskSource.mask``."""
        if not self.training or self.p == 0:
            return x
        return x * self.source.mask(x, self.p, positions)
