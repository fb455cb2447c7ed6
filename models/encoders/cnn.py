"""A small convolutional encoder for small images (the digits task)."""

from __future__ import annotations

import math

from torch import Tensor, nn

from anchorfl.models.dropout import Dropout, MaskSource


class SmallCNN(nn.Module):
    """Two 3x3 convolutions, one 2x2 max-pooling, one linear layer, LayerNorm: image [B, channels, H, W] -> z_BD.

    No BatchNorm: rows stay independent of each other, so unlabeled rows may be left out of a batch.
    """

    def __init__(self, shape: tuple[int, ...], width: int, dropout: float, masks: MaskSource) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.drop = Dropout(dropout, masks)
        self.linear = nn.Linear(math.prod((32, height // 2, breadth // 2)), width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        z_BD: Tensor = self.norm(self.linear(self.drop(self.convolutions(x).flatten(1))))
        return z_BD
