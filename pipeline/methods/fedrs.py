"""FedRS (Li and Zhan, KDD 2021): a softmax whose logits of classes that a client lacks are scaled down in training.

Facts, and where paper and code differ: docs/methods/fedrs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, ServerState
from anchorfl.tasks.contract import Batch, Card


class RestrictedTrainer(AveragingTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], scale_C: Tensor) -> None:
        super().__init__(ctx)
        self.scale_C = scale_C.to(ctx.data.y_NC)

    def loss(self, batch: Batch) -> Tensor:
        return self.ctx.objective.loss(self.model(batch.x) * self.scale_C, batch)


@dataclass(frozen=True, kw_only=True)
class FedRS(Averaging):
    """Client: logit c, its bias included, times alpha where the client has no labeled sample of class c (eq. 8), in
    training only. Server: FedAvg's.
    """

    name = "fedrs"

    alpha: float = 0.5
    """Scale of the classes that the client lacks, in [0, 1]; 1 is FedAvg."""
    scaling: Literal["binary", "continuous"] = "binary"
    """``binary``: 1 or alpha (paper); ``continuous``: alpha + (1 - alpha) * n_c / max n (the authors' code, which also
    scales down rare classes)."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"method.alpha = {self.alpha}: must be in [0, 1]")

    def scale(self, card: Card) -> Tensor:
        """Return the scale of every logit, float64 [C]."""
        share_C = card.count_C.double() / card.count_C.max().clamp(min=1)
        if self.scaling == "binary":
            share_C = (card.count_C > 0).double()
        return self.alpha + (1 - self.alpha) * share_C

    def trainer(self, ctx: ClientContext[ServerState]) -> RestrictedTrainer:
        return RestrictedTrainer(ctx, self.scale(ctx.card))
