"""SLEEC, sparse local embeddings for extreme classification (Bhatia et al., NIPS 2015), in its small form: one learner,
one cluster. An oracle and not a federated method: it is trained in one place, on all rows with all their labels.

Rows get embeddings whose inner products are those of their label vectors, for each row and its nearest rows only
(singular value projection); a linear map takes features there; a new row gets the labels of its nearest training rows
among the mapped ones. Simplification: the map is ridge regression, without the L1 term on the mapped rows that the
paper's ADMM is for. Matrices [N, N] are held densely: for up to some ten thousand rows (Bibtex: 4,880).

Shape suffixes: N training rows, B rows, F features, C classes, R width of the embeddings, S their number in a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

OVER = 10
"""Vectors more than are asked for in a block, so that those asked for converge faster."""
FIRST, LATER = 6, 2
"""Products per eigenvalue problem: the first starts anywhere, the later ones from the last block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SleecOptions:
    """The authors' parameters for Bibtex."""

    width: int = 100
    """R, L-hat in the paper."""
    near: int = 250
    """Rows whose inner products with a row are kept, itself among them."""
    voters: int = 25
    """Training rows that give their labels to a new row."""
    ridge: float = 1.0
    """Penalty of the linear map, > 0."""
    unit_rows: bool = True
    """Scale every row of features to length 1."""
    iterations: int = 30
    """Steps of the singular value projection."""

    def __post_init__(self) -> None:
        if min(self.width, self.near, self.voters, self.iterations) < 1:
            raise ValueError(f"{self}: width, near, voters and iterations must be at least 1")
        if not self.ridge > 0:
            raise ValueError(f"ridge = {self.ridge}: must be above 0")


@dataclass(frozen=True, slots=True)
class Sleec:
    """A trained model. map_FR: features to embeddings; mapped_NR: those of the training rows; y_NC: their labels."""

    options: SleecOptions
    map_FR: Tensor
    mapped_NR: Tensor
    y_NC: Tensor

    @classmethod
    def fit(cls, x_NF: Tensor, y_NC: Tensor, z_NR: Tensor, options: SleecOptions) -> Sleec:
        """Learn the map from features to the embeddings that ``embed`` gave: ``min |z - x map|^2 + ridge |map|^2``."""
        x_NF = _scaled(x_NF, options)
        gram_FF = x_NF.T @ x_NF + options.ridge * torch.eye(x_NF.shape[1], dtype=x_NF.dtype)
        map_FR = torch.cholesky_solve(x_NF.T @ z_NR, torch.linalg.cholesky(gram_FF))
        return cls(options, map_FR, x_NF @ map_FR, y_NC)

    def __call__(self, x_BF: Tensor) -> Tensor:
        """Return scores [B, C]: how many of the row's nearest training rows (Euclidean, mapped) have each label."""
        z_BR = _scaled(x_BF, self.options) @ self.map_FR
        far_BN = self.mapped_NR.square().sum(1) - 2 * z_BR @ self.mapped_NR.T  # and |z|^2, equal in all of a row
        near_BK = far_BN.sort(dim=1, stable=True).indices[:, : self.options.voters]  # of equals the first
        return self.y_NC[near_BK].sum(1)


def embed(y_NC: Tensor, options: SleecOptions, rng: torch.Generator) -> Tensor:
    """Return embeddings [N, R] with ``z_i z_j`` near ``y_i y_j`` for every i and its ``near`` rows j of the largest
    inner products (of equals the first), either way round.

    Steps of length 1, which never raise the error on these entries, each followed by the projection on the positive
    semidefinite matrices of rank R. rng: where the search for eigenvectors starts.
    """
    gram_NN = y_NC @ y_NC.T
    seen_NN = _neighbours(gram_NN, options.near)
    rows = len(y_NC)
    width, block = min(options.width, rows), min(options.width + OVER, rows)
    start_NS = torch.randn(rows, block, generator=rng, dtype=y_NC.dtype)
    now_NN = torch.where(seen_NN, gram_NN, 0)  # the first step, from 0
    z_NR, vector_NS = _project(now_NN, start_NS, width, FIRST)
    for _ in range(options.iterations - 1):
        torch.where(seen_NN, gram_NN, z_NR @ z_NR.T, out=now_NN)
        z_NR, vector_NS = _project(now_NN, vector_NS, width, LATER)
    return z_NR


def _neighbours(gram_NN: Tensor, near: int) -> Tensor:
    """Return the entries that count: bool [N, N], symmetric."""
    order_NN = gram_NN.sort(dim=1, descending=True, stable=True).indices
    seen_NN = torch.zeros_like(gram_NN, dtype=torch.bool).scatter_(1, order_NN[:, :near], True)
    return seen_NN | seen_NN.T


def _project(matrix_NN: Tensor, vector_NS: Tensor, width: int, products: int) -> tuple[Tensor, Tensor]:
    """Return embeddings z [N, R] whose ``z z^T`` is the nearest positive semidefinite matrix of rank R, by block power
    iteration, and the block it ended with.
    """
    for _ in range(products):
        vector_NS = torch.linalg.qr(matrix_NN @ vector_NS).Q
    small_SS = vector_NS.T @ matrix_NN @ vector_NS
    value_S, turn_SS = torch.linalg.eigh((small_SS + small_SS.T) / 2)  # ascending
    vector_NS = vector_NS @ turn_SS
    return vector_NS[:, -width:] * value_S[-width:].clamp(min=0).sqrt(), vector_NS


def _scaled(x_BF: Tensor, options: SleecOptions) -> Tensor:
    return F.normalize(x_BF, dim=1) if options.unit_rows else x_BF
