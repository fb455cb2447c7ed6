"""FedProx (Li et al., MLSys 2020): FedAvg, but every client is pulled towards the weights that it was sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, ServerState


class ProxTrainer(AveragingTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], mu: float) -> None:
        super().__init__(ctx)
        self.mu = mu

    def penalty(self) -> Tensor:
        sent = self.ctx.state.weights
        gaps = [(p - sent[name]).pow(2).sum() for name, p in self.model.named_parameters()]
        return self.mu / 2 * torch.stack(gaps).sum()


@dataclass(frozen=True, kw_only=True)
class FedProx(Averaging):
    """Client: mu/2 |w - w_t|^2 is added to the loss of every step (eq. 2). Server: FedAvg's."""

    name = "fedprox"

    mu: float = 0.001
    """Weight of the pull, >= 0; 0 is FedAvg."""

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ValueError(f"method.mu = {self.mu}: must be at least 0")

    def trainer(self, ctx: ClientContext[ServerState]) -> ProxTrainer:
        return ProxTrainer(ctx, self.mu)
