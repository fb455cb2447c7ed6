"""FedPU (Lin et al., ICML 2022): positive and unlabeled learning where each client labels some of the classes.

By the estimator, not by the authors' code, in which one term is never reached: docs/methods/fedpu.md derives it.
Suffixes: B rows of a micro-batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, ServerState
from anchorfl.tasks.contract import Batch, ClientData

EPS = 1e-6
"""Keeps the logarithm finite (authors' code)."""


class PositiveUnlabeledTrainer(AveragingTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], lambda_: float, prior: float) -> None:
        super().__init__(ctx)
        self.lambda_ = lambda_ if ctx.objective.kind == "single" else 0.0
        labeled = int(ctx.data.y_NC.any(-1).sum())
        unlabeled = len(ctx.data) - labeled
        identified_C = ctx.card.identified_C.to(ctx.data.y_NC)
        other_C = 1 - identified_C
        # in a mini-batch every mean is over all rows, so |P|/N of the risk: a row of P counts 1, one of U |P|/|U|
        self.unlabeled_C = labeled / max(1, unlabeled) * identified_C / identified_C.sum().clamp(min=1)
        self.labeled_C = other_C / other_C.sum().clamp(min=1)
        self.prior = prior / float(identified_C.sum().clamp(min=1))

    def active(self, data: ClientData) -> Tensor:
        if not self.lambda_:
            return super().active(data)
        return torch.ones(len(data), dtype=torch.bool, device=data.y_NC.device)

    def loss(self, batch: Batch) -> Tensor:
        if not self.lambda_:
            return super().loss(batch)
        logits_BC = self.model(batch.x)
        not_BC = -torch.log(1 - logits_BC.softmax(-1) + EPS)  # the loss of "it is not class c"
        labeled_B1 = batch.y_BC.any(-1, keepdim=True)
        weight_BC = torch.where(labeled_B1, self.labeled_C - self.prior * batch.y_BC, self.unlabeled_C)
        extra = (weight_BC * not_BC).sum() / batch.denominator
        return self.ctx.objective.loss(logits_BC, batch) + self.lambda_ * extra


@dataclass(frozen=True, kw_only=True)
class FedPU(Averaging):
    """Client: to the cross-entropy of labeled rows come "none of my classes" on unlabeled rows and "no class of other
    clients" on labeled ones. Server: FedAvg's. Multi-label: FedAvg, where identified classes have no unlabeled row.
    """

    name = "fedpu"

    lambda_: float = 1.0
    """Weight of the two terms, >= 0; 0 is FedAvg."""
    prior: float = 0.0
    """Share of the unlabeled rows that belong to classes which the client identifies, in [0, 1]; FedAlign's data have
    none."""

    def __post_init__(self) -> None:
        if not (self.lambda_ >= 0 and 0 <= self.prior <= 1):
            raise ValueError(
                f"method.lambda_ = {self.lambda_} must be at least 0, method.prior = {self.prior} in [0, 1]"
            )

    def trainer(self, ctx: ClientContext[ServerState]) -> PositiveUnlabeledTrainer:
        return PositiveUnlabeledTrainer(ctx, self.lambda_, self.prior)
