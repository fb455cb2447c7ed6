"""FedPU with the terms that its authors' code trains on: is it for ours that FedPU is ahead on R8-8?

    export PYTHONPATH=benchmarks/plug_ins
    anchorfl table fedalign --data r8-8 --rows fedalign,fedpu \
        --row "FedPU as coded = fedpu --method.name fedpu_as_coded:FedPUAsCoded"
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anchorfl.pipeline.algorithm.contract import ClientContext, ServerState
from anchorfl.pipeline.methods.fedpu import FedPU, PositiveUnlabeledTrainer


class AsCodedTrainer(PositiveUnlabeledTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], lambda_: float, prior: float) -> None:
        super().__init__(ctx, lambda_, prior)
        identified_C = ctx.card.identified_C
        self.unlabeled_C = self.unlabeled_C * (identified_C.sum() / len(identified_C))  # the mean is over all classes
        self.labeled_C = torch.zeros_like(self.labeled_C)  # its condition is always false


@dataclass(frozen=True, kw_only=True)
class FedPUAsCoded(FedPU):
    """FedPU without its second term, and the mean of the first over all classes."""

    name = "fedpu-as-coded"

    def trainer(self, ctx: ClientContext[ServerState]) -> AsCodedTrainer:
        return AsCodedTrainer(ctx, self.lambda_, self.prior)
