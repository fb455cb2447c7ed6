"""FedALC's encoder of sparse rows: an embedding layer and three linear layers (arXiv 2404.15598, text experiments).

Shape suffixes: B rows, L pairs, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anchorfl.models.dropout import Dropout, MaskSource


class SparseEncoder(nn.Module):
    """Value-weighted sum of one vector per feature, then Linear, ReLU, Linear, ReLU, Linear: pairs [B, L, 2] -> z_BD.

    A pair is the number of a feature from 1 and its value; number 0 is padding. The sum is the product of the dense
    row with the embedding matrix; its first values are normal with deviation ``std`` (torch's own: 1). The paper's
    sizes are ``width`` 512 (embedding and output) and ``hidden`` 1024, without dropout; where the output is to have
    length 1, the method normalizes it.
    """

    def __init__(
        self, features: int, width: int, hidden: int, dropout: float, masks: MaskSource, std: float = 1.0
    ) -> None:
        super().__init__()
        # a gradient for all features, not for those of the batch alone: the optimizers here and messages are dense
        self.embedding = nn.EmbeddingBag(features + 1, width, mode="sum", padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.mul_(std)
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), Dropout(dropout, masks),
            nn.Linear(hidden, hidden), nn.ReLU(), Dropout(dropout, masks),
            nn.Linear(hidden, width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        z_BD: Tensor = self.layers(self.embedding(x[..., 0].long(), per_sample_weights=x[..., 1].contiguous()))
        return z_BD
