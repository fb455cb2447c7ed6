"""FedROD (Chen and Chao, ICLR 2022): a generic head by balanced softmax for all, a personal one that stays at home.

Facts, and where paper and codes differ: docs/methods/fedrod.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfl.pipeline.algorithm.contract import (
    Averaging,
    AveragingTrainer,
    ClientContext,
    ServerState,
    Supports,
    Tensors,
)
from anchorfl.pipeline.algorithm.optimizers import SGD
from anchorfl.pipeline.algorithm.parameters import below, log_prior, prefixed
from anchorfl.tasks.contract import Batch

HEAD_WEIGHT, HEAD_BIAS = "head.weight", "head.bias"
"""Names of a head's parameters, the generic one's and the personal one's."""
PERSONAL_HEAD = "personal_head."  # the optimizer "personal" has its own part of the memory
"""Prefix of the personal head in the client's memory."""


class TwoHeadsTrainer(AveragingTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], gamma: float) -> None:
        zeros = {name: torch.zeros_like(ctx.state.weights[name]) for name in (HEAD_WEIGHT, HEAD_BIAS)}
        head = zeros | below(PERSONAL_HEAD, ctx.memory)
        self.personal_head = {name: nn.Parameter(value.clone()) for name, value in head.items()}
        self.prior_C = log_prior(ctx.card.count_C, gamma).to(ctx.data.y_NC)
        super().__init__(ctx)
        self.parameters = [*self.parameters, *self.personal_head.values()]
        for p in self.personal_head.values():
            p.grad = torch.zeros_like(p)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        personal = SGD(self.personal_head.values(), lr=self.ctx.optimizer.lr)
        return super().make_optimizers() | {"personal": personal}

    def personal(self, z_BD: Tensor, generic_BC: Tensor) -> Tensor:
        """Return the client's own logits: those of the generic head plus those of its own."""
        return generic_BC + F.linear(z_BD, self.personal_head[HEAD_WEIGHT], self.personal_head[HEAD_BIAS])

    def loss(self, batch: Batch) -> Tensor:
        """Return the generic loss, with the gradient of the personal head's, which moves that head alone."""
        z_BD = self.model.encoder(batch.x)
        generic_BC = self.model.head(z_BD)
        personal = self.ctx.objective.loss(self.personal(z_BD.detach(), generic_BC.detach()), batch)
        return self.ctx.objective.loss(generic_BC + self.prior_C, batch) + (personal - personal.detach())

    def memory(self) -> Tensors:
        head = {name: value.detach().clone() for name, value in self.personal_head.items()}
        return super().memory() | prefixed(PERSONAL_HEAD, head)


@dataclass(frozen=True, kw_only=True)
class FedROD(Averaging):
    """Client: encoder and generic head by balanced softmax; a linear personal head, whose logits are added to the
    generic ones, by plain cross-entropy, which moves nothing else. Server: FedAvg's. Scores are by the generic head.
    """

    name = "fedrod"
    supports = Supports(kinds=("single",))

    gamma: float = 1.0
    """Power of the class counts in balanced softmax, >= 0; 0 is FedAvg for what is sent."""

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise ValueError(f"method.gamma = {self.gamma}: must be at least 0")

    def trainer(self, ctx: ClientContext[ServerState]) -> TwoHeadsTrainer:
        return TwoHeadsTrainer(ctx, self.gamma)
