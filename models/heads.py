"""Heads: what turns a representation into one logit per class.

Shape suffixes: B rows, C classes, D encoder width, P width of the class-name vectors.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class LinearHead(nn.Linear):
    """``logits_BC = z_BD @ weight_CD.T + bias_C``: the head of every method that has no class embeddings."""


class LabelHead(nn.Module):
    """FedAlign's label encoder: one trainable vector per class; logits are dot products with the class representations.

    ``vectors_CP`` are the initial values. Where P differs from D, a linear layer maps P to D. ``unit`` (single-label):
    class representations are L2-normalised for the logits, data representations are not (KDD 2023, section 3.2).
    """

    def __init__(self, vectors_CP: Tensor, width: int, *, unit: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(vectors_CP.detach().clone())
        self.project = nn.Identity() if vectors_CP.shape[1] == width else nn.Linear(vectors_CP.shape[1], width)
        self.unit = unit

    def classes(self) -> Tensor:
        """Class representations [C, D]: the anchors."""
        out: Tensor = self.project(self.table)
        return out

    def forward(self, z_BD: Tensor) -> Tensor:
        rows_CD = self.classes()
        return z_BD @ (F.normalize(rows_CD, dim=-1) if self.unit else rows_CD).T
