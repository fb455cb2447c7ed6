"""Several encoders of the same input (FedMLH: one per hash function)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class SideBySide(nn.Module):
    """Several encoders; their representations follow one another: x -> z_BD, D the sum of their widths."""

    def __init__(self, encoders: Iterable[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([encoder(x) for encoder in self.encoders], dim=-1)
