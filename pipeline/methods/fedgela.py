"""FedGELA (Fan et al., NeurIPS 2023): a simplex as the classifier, whose rows each client scales by its class shares.

Facts, and where paper and code differ: docs/methods/fedgela.md. Suffixes: B rows of a micro-batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import (
    Averaging,
    AveragingTrainer,
    ClientContext,
    HeadSpec,
    ServerState,
    Supports,
)
from anchorfl.pipeline.algorithm.optimizers import make
from anchorfl.tasks.contract import Batch


class AdaptedFrameTrainer(AveragingTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], power: float) -> None:
        super().__init__(ctx)
        count_C = ctx.card.count_C.double()
        share_C = len(count_C) * count_C / count_C.sum().clamp(min=1)
        self.length_C = share_C.pow(power).to(ctx.data.y_NC)  # 0 to the power of 0 is 1: no adaptation

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        trained = [p for name, p in self.model.named_parameters() if name != "head.scale"]
        return {"all": make(self.ctx.optimizer, trained)}

    def loss(self, batch: Batch) -> Tensor:
        return self.ctx.objective.loss(self.model(batch.x) * self.length_C, batch)


@dataclass(frozen=True, kw_only=True)
class FedGELA(Averaging):
    """Client: cross-entropy of the cosines with the simplex, at a fixed scale, those of class c times C n_c / n.
    Server: FedAvg's, of encoder and projection. Scores are by the simplex as it is.
    """

    name = "fedgela"
    constant = ("head.scale",)
    supports = Supports(kinds=("single",))

    scale: float = 20.0
    """Scale of the cosines, > 0: the length of the simplex's rows (E_W) over the temperature."""
    power: float = 1.0
    """Power of a class's share among the client's labeled samples, >= 0; 0: no client adapts the simplex."""

    def __post_init__(self) -> None:
        if not (self.scale > 0 and self.power >= 0):
            raise ValueError(f"method.scale = {self.scale} must be above 0, method.power = {self.power} at least 0")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="frame", first_scale=self.scale)

    def trainer(self, ctx: ClientContext[ServerState]) -> AdaptedFrameTrainer:
        return AdaptedFrameTrainer(ctx, self.power)
