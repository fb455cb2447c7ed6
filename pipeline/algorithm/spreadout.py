"""Moving class rows apart: the regularizers of FedAwS (ICML 2020) and FedALC (arXiv 2404.15598), each as a gradient.

d(u, v) = 1 - u.v for unit rows. Only the K nearest rows of a row are pushed, found exactly by products of blocks of
rows, so that no [C, C] matrix is ever whole.

Shape suffixes: C classes, K neighbours, D width, M entries of the co-occurrence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Form = Literal["neg_d2", "hinge_adaptive", "hinge_const"]
BLOCK = 1024
"""Rows whose products with all others are held at a time."""


def products(rows_CD: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of the matrix of cosines, -inf on its diagonal: (rows, [block, C])."""
    for start in range(0, len(rows_CD), BLOCK):
        block = slice(start, min(start + BLOCK, len(rows_CD)))
        cosine_RC = rows_CD[block] @ rows_CD.T
        cosine_RC[torch.arange(len(cosine_RC)), torch.arange(block.start, block.stop)] = -torch.inf
        yield block, cosine_RC


def nearest(rows_CD: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Index [C, K] and cosine [C, K] of every row's K = min(k, C - 1) nearest, and the cosine [C] of the one after them
    (0, that is a distance of 1, where there is none).
    """
    k = min(k, len(rows_CD) - 1)
    more = min(k + 1, len(rows_CD) - 1)
    found = [cosine_RC.topk(more, dim=1) for _, cosine_RC in products(rows_CD)]
    cosine_CM, index_CM = torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])
    after_C = cosine_CM[:, k] if more > k else torch.zeros_like(cosine_CM[:, 0])
    return index_CM[:, :k], cosine_CM[:, :k], after_C


def slope(form: Form, cosine_CK: Tensor, after_C: Tensor, nu: float) -> Tensor:
    """Derivative by the cosine of a pair's term: of -d^2 (FedAwS, eq. 7), or of max(0, nu - d)^2 with nu either the
    distance of the row's (K+1)-th nearest, held constant, or given (FedALC, eq. 11).
    """
    if form == "neg_d2":
        return 2 * (1 - cosine_CK)
    nu_C1 = 1 - after_C[:, None] if form == "hinge_adaptive" else torch.full_like(after_C[:, None], nu)
    return 2 * F.relu(nu_C1 - 1 + cosine_CK)


def terms(rows_CD: Tensor, index_CK: Tensor, slope_CK: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """The terms of a block of rows, each a row's own sum over its neighbours: the rows that it touches, int64 [block,
    K + 1], itself first, and its gradient there, [block, K + 1, D].
    """
    index_RK, slope_RK = index_CK[block], slope_CK[block]
    itself_R1 = torch.arange(len(rows_CD))[block, None]
    own_RD = torch.einsum("rk,rkd->rd", slope_RK, rows_CD[index_RK])
    others_RKD = slope_RK[..., None] * rows_CD[block, None]
    return torch.cat([itself_R1, index_RK], dim=1), torch.cat([own_RD[:, None], others_RKD], dim=1)


def gradient(rows_CD: Tensor, index_CK: Tensor, slope_CK: Tensor) -> Tensor:
    """Gradient [C, D] of the sum of all terms; it flows to both rows of a pair."""
    total_CD = torch.zeros_like(rows_CD)
    for start in range(0, len(rows_CD), BLOCK):
        index_RK, grad_RKD = terms(rows_CD, index_CK, slope_CK, slice(start, start + BLOCK))
        total_CD.index_add_(0, index_RK.flatten(), grad_RKD.flatten(0, 1))
    return total_CD


def counts_at(known: dict[str, Tensor], index_CK: Tensor, classes: int) -> Tensor:
    """Instances that carry both classes of a pair, [C, K]. known: ``key`` int64 [M], u * C + v ascending, and ``count``
    of the pairs that occur.
    """
    asked_CK = torch.arange(len(index_CK), device=index_CK.device)[:, None] * classes + index_CK
    key_M, count_M = known["key"], known["count"]
    if not len(key_M):
        return torch.zeros_like(index_CK)
    place_CK = torch.searchsorted(key_M, asked_CK).clamp(max=len(key_M) - 1)
    return torch.where(key_M[place_CK] == asked_CK, count_M[place_CK], 0)


def kept_counts(count_CC: Any, instances: int) -> dict[str, Tensor]:
    """What is kept of co-occurrence counts (SciPy CSR [C, C], instances of a class on its diagonal): ``key`` and
    ``count`` as above, off the diagonal; ``own`` [C], instances of a class; ``with_others`` [C], sum over other classes
    of the instances that carry both; ``instances``, their number.
    """
    found = count_CC.tocoo()
    other_M = found.row != found.col
    row_M, col_M, count_M = found.row[other_M].astype(np.int64), found.col[other_M], found.data[other_M]
    own_C = count_CC.diagonal().astype(np.int64)
    values = {
        "key": row_M * len(own_C) + col_M,
        "count": count_M.astype(np.int64),
        "own": own_C,
        "with_others": np.bincount(row_M, count_M, len(own_C)).astype(np.int64),
        "instances": np.array(instances, dtype=np.int64),
    }
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}


def counts_of(known: dict[str, Tensor], block: slice, classes: int) -> Tensor:
    """Instances that carry both classes, [block, C] float64; 0 on the diagonal."""
    key_M = known["key"]
    ends = torch.searchsorted(key_M, torch.tensor([block.start * classes, block.stop * classes]))
    found = slice(*ends.tolist())
    out = torch.zeros((block.stop - block.start) * classes, dtype=torch.float64)
    out[key_M[found] - block.start * classes] = known["count"][found].double()
    return out.view(-1, classes)


def fixed_gradient(
    rows_CD: Tensor, known: dict[str, Tensor], alpha: float, beta: float, nu: float
) -> tuple[float, Tensor]:
    """Value and gradient [C, D] of FedALC's eq. 12, as a mean over the C (C - 1) ordered pairs: alpha times rho d^2,
    which pulls classes together that occur together, plus beta times sigma max(0, nu - d)^2. rho and sigma are divided
    by their means over all pairs, so that alpha and beta do not depend on how rare labels are.
    """
    classes, own_C = len(rows_CD), known["own"].double()
    pairs = classes * (classes - 1)
    rho = max(float(known["with_others"].sum()) / pairs, 1e-300)
    sigma = max(float((classes - 1) * own_C.sum() - known["with_others"].sum()) / pairs, 1e-300)
    value, total_CD = 0.0, torch.zeros_like(rows_CD)
    for block, cosine_RC in products(rows_CD):
        both_RC = counts_of(known, block, classes)
        distance_RC = 1 - cosine_RC.nan_to_num(neginf=1.0)  # a class is at distance 0 from itself
        pull_RC = (alpha / rho * both_RC).to(rows_CD)
        push_RC = (beta / sigma * (own_C[block, None] - both_RC)).to(rows_CD)
        push_RC[cosine_RC == -torch.inf] = 0
        gap_RC = F.relu(nu - distance_RC)
        value += float((pull_RC * distance_RC.square() + push_RC * gap_RC.square()).sum(dtype=torch.float64)) / pairs
        slope_RC = 2 * (push_RC * gap_RC - pull_RC * distance_RC) / pairs
        total_CD[block] += slope_RC @ rows_CD
        total_CD += slope_RC.T @ rows_CD[block]
    return value, total_CD
