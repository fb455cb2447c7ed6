"""Heads: what turns a representation into one logit per class.

Shape suffixes: B rows, C classes, D encoder width, P width of the class-name vectors.
"""

from __future__ import annotations

import torch
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


class CosineHead(nn.Module):
    """One unit row per class; logits are cosines in [-1, 1] of the representation and the rows (FedAwS, FedALC).

    First rows: normal draws of length 1, which are almost spread out. Whoever moves them brings them back to length 1.
    parts: the representation and a row are that many vectors side by side, each of length 1, and a logit is the mean
    of their cosines (FedMLH: one part per hash function).
    """

    def __init__(self, classes: int, width: int, parts: int = 1) -> None:
        super().__init__()
        self.parts = parts
        self.rows = nn.Parameter(unit(torch.randn(classes, width), parts))

    def classes(self) -> Tensor:
        """The rows [C, D]."""
        return self.rows

    def forward(self, z_BD: Tensor) -> Tensor:
        return unit(z_BD, self.parts) @ self.rows.T / self.parts


def unit(rows_ND: Tensor, parts: int = 1) -> Tensor:
    """Rows with each of ``parts`` equal pieces brought to length 1; a piece of zeros stays."""
    return F.normalize(rows_ND.view(*rows_ND.shape[:-1], parts, -1), dim=-1).flatten(-2)
