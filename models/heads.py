"""Heads: from a representation to one logit per class.

Shape suffixes: B rows, C classes, D encoder width, P width of the class-name vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LinearHead(nn.Linear):
    """The head of every method that has no class embeddings: ``logits_BC = z_BD @ weight_CD.T + bias_C``."""


class AnchorHead(nn.Module, ABC):
    """FedAlign's label encoder: logits are dot products with the class representations, which are the anchors.

    ``unit``: class representations are L2-normalized for the logits, data representations are not (the reference code,
    single-label; in equation 4, neither is).
    """

    def __init__(self, *, unit: bool) -> None:
        super().__init__()
        self.unit = unit

    @abstractmethod
    def classes(self) -> Tensor:
        """Return the class representations [C, D]: the anchors."""

    def forward(self, z_BD: Tensor) -> Tensor:
        rows_CD = self.classes()
        return z_BD @ (F.normalize(rows_CD, dim=-1) if self.unit else rows_CD).T


class LabelHead(AnchorHead):
    """A label encoder of one trainable vector per class.

    ``vectors_CP`` are the initial values. Where P differs from D, a linear layer maps P to D.
    """

    def __init__(self, vectors_CP: Tensor, width: int, *, unit: bool) -> None:
        super().__init__(unit=unit)
        self.table = nn.Parameter(vectors_CP.detach().clone())
        self.project = nn.Identity() if vectors_CP.shape[1] == width else nn.Linear(vectors_CP.shape[1], width)

    def classes(self) -> Tensor:
        """Return the class representations [C, D]."""
        out: Tensor = self.project(self.table)
        return out


class BiasedHead(LabelHead):
    """Anchor's head: class representations of length 1, single- and multi-label, and a bias for each class.

    Without it, a multi-label class that few rows have would need a direction that no representation has.
    """

    def __init__(self, vectors_CP: Tensor, width: int) -> None:
        super().__init__(vectors_CP, width, unit=True)
        self.bias = nn.Parameter(torch.zeros(len(vectors_CP)))

    def forward(self, z_BD: Tensor) -> Tensor:
        return super().forward(z_BD) + self.bias


class CosineHead(nn.Module):
    """A unit row per class; logits are cosines in [-1, 1] of the representation and the rows (FedAwS, FedALC).

    First rows: normal draws of length 1, which are almost spread out. Whoever moves them brings them back to length 1.
    parts: the representation and a row are that many vectors side by side, each of length 1, and a logit is the mean of
    their cosines (FedMLH: one part per hash function).
    """

    def __init__(self, classes: int, width: int, parts: int = 1) -> None:
        super().__init__()
        self.parts = parts
        self.rows = nn.Parameter(unit(torch.randn(classes, width), parts))

    def classes(self) -> Tensor:
        """Return the rows [C, D]."""
        return self.rows

    def forward(self, z_BD: Tensor) -> Tensor:
        return unit(z_BD, self.parts) @ self.rows.T / self.parts


class ConceptHead(nn.Module):
    """FedBM's classifier, which a language model made: a normal distribution of concept embeddings per class.

    Class k has mean mu_k and diagonal variance Sigma_k; logits are tau h.mu_k + tau^2/2 h^2.Sigma_k for the unit
    projection h of the representation (FedBM, eq. 4 and 5, times tau). Only the projection is trained; mean, variance
    and tau are buffers, zeros and 1 until the server sets them.
    """

    mean: Tensor
    variance: Tensor
    tau: Tensor

    def __init__(self, classes: int, width: int, concept_width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, concept_width)
        self.register_buffer("mean", torch.zeros(classes, concept_width))
        self.register_buffer("variance", torch.zeros(classes, concept_width))
        self.register_buffer("tau", torch.ones(()))

    def directions(self, z_BD: Tensor) -> Tensor:
        """Return h, the projections of representations, of length 1: [B, width of the concepts]."""
        return F.normalize(self.project(z_BD), dim=-1)

    def forward(self, z_BD: Tensor) -> Tensor:
        h_BE = self.directions(z_BD)
        return self.tau * (h_BE @ self.mean.T) + self.tau**2 / 2 * (h_BE.square() @ self.variance.T)

    def bound(self, z_BD: Tensor, class_B: Tensor) -> Tensor:
        """Return an upper bound of the expected cross-entropy over the distributions, per row [B] (FedBM, eq. 4).

        It is the cross-entropy of the logits plus tau^2/2 h^2.Sigma_y, in which the true class's variance cancels.
        """
        h_BE = self.directions(z_BD)
        right_B = self.tau * (h_BE * self.mean[class_B]).sum(-1)
        logits_BC = self.tau * (h_BE @ self.mean.T) + self.tau**2 / 2 * (h_BE.square() @ self.variance.T)
        return logits_BC.logsumexp(-1) - right_B


class PrototypeHead(nn.Module):
    """FedNH's classifier: logits are a trained scale times the cosines of the representation and unit prototypes.

    No gradient moves the prototypes. They start as orthonormal rows, of length 1 where there are too many.
    """

    rows: Tensor

    def __init__(self, classes: int, width: int, scale: float) -> None:
        super().__init__()
        self.register_buffer("rows", F.normalize(nn.init.orthogonal_(torch.empty(classes, width)), dim=-1))
        self.scale = nn.Parameter(torch.tensor(scale))

    def classes(self) -> Tensor:
        """Return the prototypes [C, D]."""
        return self.rows

    def forward(self, z_BD: Tensor) -> Tensor:
        return self.scale * (F.normalize(z_BD, dim=-1) @ self.rows.T)


class FrameHead(nn.Module):
    """FedETF's classifier: a trained unit projection against a simplex equiangular tight frame, times a trained scale.

    The projection has one number per class. The frame is ``sqrt(C / (C - 1)) (I - 1 / C)``: every two columns have the
    cosine -1 / (C - 1). The projection before it makes any rotation of the frame the same, so it is this one everywhere
    and is never sent.
    """

    frame: Tensor

    def __init__(self, classes: int, width: int, scale: float) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"a frame of {classes} class: it needs two at least; take another method")
        self.project = nn.Linear(width, classes)
        self.scale = nn.Parameter(torch.tensor(scale))
        frame_CC = (torch.eye(classes) - 1 / classes) * (classes / (classes - 1)) ** 0.5
        self.register_buffer("frame", frame_CC, persistent=False)

    def forward(self, z_BD: Tensor) -> Tensor:
        return self.scale * (F.normalize(self.project(z_BD), dim=-1) @ self.frame)


class GuidedHead(nn.Module):
    """FedLGT's label-guided head: the classes look at a row, and at each other, in layers of self-attention.

    A class is a token, the frozen vector of its name plus one for the state of its label: nothing where it is unknown,
    else one of two trained vectors. The row's representation is one token more. A class's logit is read from its own
    token of the last layer. vectors_CP: of the names; where P differs from D, a linear layer maps P to D.
    """

    names: Tensor

    def __init__(self, vectors_CP: Tensor, width: int, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        classes, own_width = vectors_CP.shape
        self.register_buffer("names", F.normalize(vectors_CP.detach(), dim=-1))
        self.project = nn.Identity() if own_width == width else nn.Linear(own_width, width)
        self.states = nn.Parameter(F.normalize(torch.randn(2, width), dim=-1))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(layers)
        self.read = nn.Linear(width, classes)
        heads = max((int(getattr(layer, "heads", 1)) for layer in layers), default=1)
        self.values_of_row = (classes + 1) * (8 * width + heads * (classes + 1))
        """Numbers that a row takes in a layer, about: its tokens, their queries, keys and values, and their weights."""

    def forward(self, z_BD: Tensor, state_BC: Tensor | None = None) -> Tensor:
        """Return the logits [B, C]. state_BC: labels that are shown, 1 or -1, else 0; None: none is shown."""
        token_BCD = self.project(self.names).expand(len(z_BD), -1, -1)
        if state_BC is not None:
            shown_BC2 = torch.stack([state_BC < 0, state_BC > 0], -1).to(z_BD.dtype)
            token_BCD = token_BCD + shown_BC2 @ self.states
        token_BLD: Tensor = self.norm(torch.cat([z_BD[:, None], token_BCD], 1))
        for layer in self.layers:
            token_BLD = layer(token_BLD, None)
        out: Tensor = (token_BLD[:, 1:] * self.read.weight).sum(-1) + self.read.bias
        return out


VALUES_AT_ONCE = 2**28
"""Numbers that a head over tokens of classes may hold at a time: 1 GiB in float32."""


def in_pieces(head: nn.Module, z_ND: Tensor) -> Tensor:
    """Return the head's logits [N, C], of as many rows at a time as there is room for; mostly of all."""
    rows = max(1, VALUES_AT_ONCE // head.values_of_row) if isinstance(head, GuidedHead) else len(z_ND)
    if rows >= len(z_ND):
        out: Tensor = head(z_ND)
        return out
    return torch.cat([head(z_ND[start : start + rows]) for start in range(0, len(z_ND), rows)])


def unit(rows_ND: Tensor, parts: int = 1) -> Tensor:
    """Return the rows with each of ``parts`` equal pieces brought to length 1; a piece of zeros stays."""
    return F.normalize(rows_ND.view(*rows_ND.shape[:-1], parts, -1), dim=-1).flatten(-2)
