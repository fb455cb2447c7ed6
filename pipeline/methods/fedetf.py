"""FedETF (Li et al., ICCV 2023): a classifier that is a fixed simplex, so that clients agree on it from the start.

Facts, and where paper and code differ: docs/methods/fedetf.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from anchorfl.pipeline.algorithm.contract import (
    Averaging,
    AveragingTrainer,
    ClientContext,
    HeadSpec,
    ServerState,
    Supports,
)
from anchorfl.pipeline.algorithm.parameters import log_prior
from anchorfl.tasks.contract import Batch


class FrameTrainer(AveragingTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], gamma: float) -> None:
        super().__init__(ctx)
        self.prior_C = log_prior(ctx.card.count_C, gamma).to(ctx.data.y_NC)

    def loss(self, batch: Batch) -> Tensor:
        return self.ctx.objective.loss(self.model(batch.x) + self.prior_C, batch)


@dataclass(frozen=True, kw_only=True)
class FedETF(Averaging):
    """Client: balanced softmax over the cosines with the simplex, times a trained scale. Server: FedAvg's, of encoder,
    projection and scale. Scores are by plain logits.
    """

    name = "fedetf"
    supports = Supports(kinds=("single",))

    gamma: float = 1.0
    """Power of the class counts in balanced softmax, >= 0; 0 is plain cross-entropy."""
    first_scale: float = 1.0
    """First value of the scale, > 0 (authors' code: 1 for residual networks, 10 for a small CNN)."""

    def __post_init__(self) -> None:
        if not (self.gamma >= 0 and self.first_scale > 0):
            raise ValueError(
                f"method.gamma = {self.gamma} must be at least 0, method.first_scale = {self.first_scale} above 0"
            )

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="frame", first_scale=self.first_scale)

    def trainer(self, ctx: ClientContext[ServerState]) -> FrameTrainer:
        return FrameTrainer(ctx, self.gamma)
