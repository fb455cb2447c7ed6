"""MOON (Li, He and Song, CVPR 2021): a client's representations are drawn to those of the server's model and away from
those of the client's own last model.

The representation is the encoder's output; FedAlign's tables have no projection head. Facts, and where paper and code
differ: docs/methods/moon.md. Suffixes: N rows of the client, B rows of a micro-batch, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, ServerState, Tensors
from anchorfl.pipeline.algorithm.parameters import below, prefixed, weights_of
from anchorfl.tasks.contract import Batch, ClientData

LAST = "last."
"""Prefix of the last encoder in the client's memory."""


class MoonTrainer(AveragingTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], mu: float, tau: float) -> None:
        super().__init__(ctx)
        self.mu, self.tau = mu, tau
        self.sent_ND: Tensor | None = None
        last = below(LAST, ctx.memory)
        if mu and last:  # both encoders are frozen and without dropout, so once a round is enough
            self.sent_ND = ctx.infer(self.model, ctx.data)
            self.model.encoder.load_state_dict(last)
            self.last_ND = ctx.infer(self.model, ctx.data)
            self.model.load_state_dict(ctx.state.weights)

    def active(self, data: ClientData) -> Tensor:
        if self.sent_ND is None:
            return super().active(data)
        return torch.ones(len(data), dtype=torch.bool, device=data.y_NC.device)  # the contrast needs no label

    def loss(self, batch: Batch) -> Tensor:
        if self.sent_ND is None:
            return super().loss(batch)
        z_BD = self.model.encoder(batch.x)
        near_B = F.cosine_similarity(z_BD, self.sent_ND[batch.index_B])
        far_B = F.cosine_similarity(z_BD, self.last_ND[batch.index_B])
        contrast = F.softplus((far_B - near_B) / self.tau).sum() / batch.denominator
        return self.ctx.objective.loss(self.model.head(z_BD), batch) + self.mu * contrast

    def memory(self) -> Tensors:
        return super().memory() | prefixed(LAST, weights_of(self.model.encoder))


@dataclass(frozen=True, kw_only=True)
class Moon(Averaging):
    """Client: mu * -log(e^(near/tau) / (e^(near/tau) + e^(far/tau))) is added for every row, labeled or not (eq. 3);
    nothing in its first round, when it has no last model. Server: FedAvg's.
    """

    name = "moon"

    mu: float = 0.001
    """Weight of the contrast, >= 0; 0 is FedAvg (FedAlign's tables: 0.001; MOON's own: 1 to 5)."""
    tau: float = 0.5
    """Temperature of the cosine similarities, > 0."""

    def __post_init__(self) -> None:
        if not (self.mu >= 0 and self.tau > 0):
            raise ValueError(f"method.mu = {self.mu} must be at least 0, method.tau = {self.tau} above 0")

    def trainer(self, ctx: ClientContext[ServerState]) -> MoonTrainer:
        return MoonTrainer(ctx, self.mu, self.tau)
