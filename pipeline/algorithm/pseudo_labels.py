"""Pseudo-labels by anchors: class embeddings find rows of classes that a client does not identify (FedAlign, 3.4).

Shape suffixes: N rows of the client, C classes, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfl.models.heads import AnchorHead
from anchorfl.tasks.contract import ClientData, Objective


@dataclass(frozen=True)
class Thresholds:
    """The rule of pseudo-annotation."""

    q1: float
    """Percentile of similarity per class above which a row is positive."""
    q2: float
    """Percentile below which it is negative; at most ``q1``."""
    alpha: float = 1.0
    """Weight of a pseudo-annotated entry in the loss."""
    clamp: float | None = None
    """Similarity on whose two sides both thresholds stay (reference code, multi-label: 0.5); None: anywhere."""
    allowed_C: Tensor | None = None
    """bool: classes that may get positives; None: all."""
    own_mean: bool = False
    """The loss of pseudo-labels is the mean over the rows that have one, as equation 10 has it, and not over all: an
    entry's weight is that many times larger."""

    def __post_init__(self) -> None:
        if not (0 < self.q1 < 100 and 0 < self.q2 < 100):
            raise ValueError(
                f"method.q1 = {self.q1}, method.q2 = {self.q2}: percentiles lie strictly between 0 and 100"
            )
        if self.q2 > self.q1:
            raise ValueError(f"method.q2 = {self.q2} exceeds method.q1 = {self.q1}: a sample could be both; lower q2")
        if not self.alpha >= 0:
            raise ValueError(f"method.alpha = {self.alpha}: must be at least 0")


@torch.no_grad()
def anchor_scores(kind: str, head: nn.Module, z_ND: Tensor, objective: Objective) -> Tensor:
    """Return a score of every row in every class [N, C], for a head with class embeddings.

    ``cosine`` or ``dot``: similarity of representation and anchor; ``confidence``: the model's own prediction, as its
    log-odds. They have the order of the confidence, which itself is 1 in float32 from log-odds of 17 on, and no row
    lies above a percentile of equal numbers.
    """
    if kind == "confidence":
        return log_odds(head(z_ND), objective)
    if not isinstance(head, AnchorHead):
        raise TypeError(f"anchors are class embeddings, which a {type(head).__name__} does not have")
    anchor_CD = head.classes()
    if kind == "cosine":
        z_ND, anchor_CD = F.normalize(z_ND, dim=-1), F.normalize(anchor_CD, dim=-1)
    return z_ND @ anchor_CD.T


def log_odds(logits_NC: Tensor, objective: Objective) -> Tensor:
    """Return log p / (1 - p) of ``objective.scores`` [N, C]; single-label: the logit less log-sum-exp of all others."""
    if objective.kind == "multi":
        return logits_NC
    best_NC = F.one_hot(logits_NC.argmax(-1), logits_NC.shape[1]).bool()
    others_N1 = logits_NC.masked_fill(best_NC, -torch.inf).logsumexp(-1, keepdim=True)  # of the best, whose 1 - p is
    share_NC = logits_NC.softmax(-1).masked_fill(best_NC, 0.0)  # lost in rounding; the p of all others is at most 1/2
    return logits_NC - torch.where(best_NC, others_N1, logits_NC.logsumexp(-1, keepdim=True) + (-share_NC).log1p())


def pseudo_annotate(
    data: ClientData, score_NC: Tensor, identified_C: Tensor, objective: Objective, thresholds: Thresholds
) -> tuple[ClientData, Tensor]:
    """Return the client's data with pseudo-labels in classes that it does not identify, and those with positives, bool
    [C].

    Positive above the q1-th percentile of the class's column over ALL rows, negative below the q2-th (linear
    interpolation, float64). Single-label: only rows without a label; a positive must also be the row's best class, a
    negative must not.
    """
    high_C, low_C = percentiles(score_NC, thresholds.q1), percentiles(score_NC, thresholds.q2)
    if thresholds.clamp is not None and objective.kind == "multi":
        high_C, low_C = high_C.clamp(min=thresholds.clamp), low_C.clamp(max=thresholds.clamp)
    open_NC = (data.known_NC == 0) & ~identified_C
    positive_NC = open_NC & (score_NC.double() > high_C)
    negative_NC = open_NC & (score_NC.double() < low_C)
    if objective.kind == "single":
        unlabeled_N1 = (data.known_NC == 0).all(-1, keepdim=True)
        best_NC = F.one_hot(score_NC.argmax(-1), score_NC.shape[1]).bool()
        positive_NC = positive_NC & unlabeled_N1 & best_NC
        negative_NC = negative_NC & unlabeled_N1 & ~best_NC
    if thresholds.allowed_C is not None:
        positive_NC = positive_NC & thresholds.allowed_C
    # q2 <= q1 makes the two disjoint except on a tie of both percentiles, where neither strict comparison holds.
    pseudo_NC = positive_NC | negative_NC
    y_NC = torch.where(pseudo_NC, positive_NC.to(data.y_NC.dtype), data.y_NC)
    known_NC = torch.where(pseudo_NC, 1.0, data.known_NC)
    alpha = thresholds.alpha
    if thresholds.own_mean:
        alpha *= len(data) / max(1, _rows_with_loss(pseudo_NC, positive_NC, objective))
    weight_NC = objective.weights(y_NC, known_NC, torch.where(pseudo_NC, alpha, 1.0))
    return replace(data, y_NC=y_NC, known_NC=known_NC, weight_NC=weight_NC), positive_NC.any(0)


def _rows_with_loss(pseudo_NC: Tensor, positive_NC: Tensor, objective: Objective) -> int:
    """Return the number of rows with a pseudo-label that has a loss; a softmax has none on a negative."""
    return int((positive_NC if objective.kind == "single" else pseudo_NC).any(-1).sum())


def percentiles(values_NC: Tensor, q: float) -> Tensor:
    """Return the q-th percentile (0..100) of every column, linear interpolation, in float64."""
    # Not torch.quantile, which refuses large inputs; the same arithmetic.
    sorted_NC = values_NC.double().sort(dim=0).values
    rank = torch.tensor(q / 100, dtype=torch.float64, device=values_NC.device) * (len(values_NC) - 1)
    low = int(rank.floor())
    return torch.lerp(sorted_NC[low], sorted_NC[int(rank.ceil())], rank - low)
