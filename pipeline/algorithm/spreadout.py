"""Moving class rows apart: the regularizers of FedAwS (ICML 2020) and FedALC (arXiv 2404.15598), each as a gradient.

d(u, v) = 1 - u.v for unit rows. Only the K nearest rows of a row are pushed, found exactly by products of blocks of
rows, so that no [C, C] matrix is ever whole.

Shape suffixes: C classes, K neighbours, D width, R rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.pipeline.algorithm.cooccurrence import LabelCooccurrence

Regularizer = Literal["neg_d2", "hinge_adaptive", "hinge_const"]
ROWS_PER_BLOCK = 1024
"""Rows whose products with all others are held at a time."""


def products(rows_CD: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield the matrix of cosines block by block, -inf on its diagonal: (rows, [R, C])."""
    for start in range(0, len(rows_CD), ROWS_PER_BLOCK):
        block = slice(start, min(start + ROWS_PER_BLOCK, len(rows_CD)))
        cosine_RC = rows_CD[block] @ rows_CD.T
        cosine_RC[torch.arange(len(cosine_RC)), torch.arange(block.start, block.stop)] = -torch.inf
        yield block, cosine_RC


def nearest_rows(rows_CD: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return index [C, K] and cosine [C, K] of every row's K = min(k, C - 1) nearest, and the cosine [C] of the one
    after them (0, that is a distance of 1, where there is none).
    """
    k = min(k, len(rows_CD) - 1)
    more = min(k + 1, len(rows_CD) - 1)
    best = [cosine_RC.topk(more, dim=1) for _, cosine_RC in products(rows_CD)]
    cosine_CM, index_CM = torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])
    after_C = cosine_CM[:, k] if more > k else torch.zeros_like(cosine_CM[:, 0])
    return index_CM[:, :k], cosine_CM[:, :k], after_C


def slope(regularizer: Regularizer, cosine_CK: Tensor, after_C: Tensor, nu: float) -> Tensor:
    """Return the derivative by the cosine of every pair's term [C, K].

    The term is -d^2 (FedAwS, eq. 7), or max(0, nu - d)^2 with nu either the distance of the row's (K+1)-th nearest,
    held constant, or given (FedALC, eq. 11).
    """
    if regularizer == "neg_d2":
        return 2 * (1 - cosine_CK)
    nu_C1 = 1 - after_C[:, None] if regularizer == "hinge_adaptive" else torch.full_like(after_C[:, None], nu)
    return 2 * F.relu(nu_C1 - 1 + cosine_CK)


def terms(rows_CD: Tensor, index_CK: Tensor, slope_CK: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """Return the terms of a block of rows, each a row's own sum over its neighbours: the rows that it touches, int64
    [R, K + 1], itself first, and its gradient there, [R, K + 1, D].
    """
    index_RK, slope_RK = index_CK[block], slope_CK[block]
    row_R1 = torch.arange(len(rows_CD))[block, None]
    row_grad_RD = torch.einsum("rk,rkd->rd", slope_RK, rows_CD[index_RK])
    neighbour_grad_RKD = slope_RK[..., None] * rows_CD[block, None]
    return torch.cat([row_R1, index_RK], dim=1), torch.cat([row_grad_RD[:, None], neighbour_grad_RKD], dim=1)


def gradient(rows_CD: Tensor, index_CK: Tensor, slope_CK: Tensor) -> Tensor:
    """Return the gradient [C, D] of the sum of all terms; it flows to both rows of a pair."""
    total_CD = torch.zeros_like(rows_CD)
    for start in range(0, len(rows_CD), ROWS_PER_BLOCK):
        index_RK, grad_RKD = terms(rows_CD, index_CK, slope_CK, slice(start, start + ROWS_PER_BLOCK))
        total_CD.index_add_(0, index_RK.flatten(), grad_RKD.flatten(0, 1))
    return total_CD


def fixed_gradient(
    rows_CD: Tensor, cooccurrence: LabelCooccurrence, alpha: float, beta: float, nu: float
) -> tuple[float, Tensor]:
    """Return value and gradient [C, D] of FedALC's eq. 12, as a mean over the C (C - 1) ordered pairs.

    A pair has alpha times rho d^2, which pulls classes together that occur together, plus beta times
    sigma max(0, nu - d)^2. rho and sigma are divided by their means over all pairs, so that alpha and beta do not
    depend on how rare labels are.
    """
    classes, count_C = len(rows_CD), cooccurrence.class_count_C.double()
    pairs, together = classes * (classes - 1), cooccurrence.with_others_C.sum()
    rho = max(float(together) / pairs, 1e-300)
    sigma = max(float((classes - 1) * count_C.sum() - together) / pairs, 1e-300)
    value, total_CD = 0.0, torch.zeros_like(rows_CD)
    for block, cosine_RC in products(rows_CD):
        both_RC = cooccurrence.counts_of_rows(block)
        distance_RC = 1 - cosine_RC.nan_to_num(neginf=1.0)  # a class is at distance 0 from itself
        pull_RC = (alpha / rho * both_RC).to(rows_CD)
        push_RC = (beta / sigma * (count_C[block, None] - both_RC)).to(rows_CD)
        push_RC[cosine_RC == -torch.inf] = 0
        gap_RC = F.relu(nu - distance_RC)
        value += float((pull_RC * distance_RC.square() + push_RC * gap_RC.square()).sum(dtype=torch.float64)) / pairs
        slope_RC = 2 * (push_RC * gap_RC - pull_RC * distance_RC) / pairs
        total_CD[block] += slope_RC @ rows_CD
        total_CD += slope_RC.T @ rows_CD[block]
    return value, total_CD
