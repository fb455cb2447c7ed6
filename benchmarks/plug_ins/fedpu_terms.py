"""FedAlign with FedPU's terms: is it for them that FedPU is ahead on R8-8? A row of one's own beside these two:

    export PYTHONPATH=benchmarks/plug_ins
    anchorfl table fedalign --data r8-8 --rows fedalign,fedpu \
        --row "FedAlign with FedPU's terms = fedalign --method.name fedpu_terms:FedAlignWithTerms"
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import ClientContext
from anchorfl.pipeline.methods.fedalign import AlignState, AlignTrainer, FedAlign
from anchorfl.pipeline.methods.fedpu import EPS, FedPU
from anchorfl.tasks.contract import Batch, ClientData


class TermsTrainer(AlignTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[AlignState], method: FedAlignWithTerms) -> None:
        super().__init__(ctx, method)
        self.terms = FedPU(lambda_=method.lambda_).trainer(ctx)
        self.labeled_N1 = ctx.data.y_NC.any(-1, keepdim=True)  # before there are pseudo-labels

    def active(self, data: ClientData) -> Tensor:
        if not self.terms.lambda_:
            return super().active(data)
        return torch.ones(len(data), dtype=torch.bool, device=data.y_NC.device)

    def loss(self, batch: Batch) -> Tensor:
        logits_BC = self.model(batch.x)
        labeled_B1 = self.labeled_N1[batch.index_B]
        weight_BC = torch.where(labeled_B1, self.terms.labeled_C, self.terms.unlabeled_C)
        extra = (weight_BC * -torch.log(1 - logits_BC.softmax(-1) + EPS)).sum() / batch.denominator
        return self.ctx.objective.loss(logits_BC, batch) + self.terms.lambda_ * extra


@dataclass(frozen=True, kw_only=True)
class FedAlignWithTerms(FedAlign):
    """FedAlign, and on every row FedPU's "none of my classes" or "no class of other clients"."""

    name = "fedalign-with-terms"

    lambda_: float = 1.0
    """Weight of the two terms, >= 0; 0 is FedAlign."""

    def trainer(self, ctx: ClientContext[AlignState]) -> TermsTrainer:
        return TermsTrainer(ctx, self)
