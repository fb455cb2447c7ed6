"""Anchor, this project's own method: what a client cannot know, the server's model expects for it.

Every row has a target: its labels where they are known; where they are not, what the model that was sent expects of
them, given what is known of the row. Derivation, limits, and where it is not the best: docs/methods/anchor.md.
Suffixes: N rows of the client, B rows of a micro-batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, HeadSpec, ServerState
from anchorfl.pipeline.algorithm.parameters import log_prior
from anchorfl.tasks.contract import Batch, ClientData, Objective


class ExpectingTrainer(AveragingTrainer):
    replayable = True

    def __init__(self, ctx: ClientContext[ServerState], method: Anchor) -> None:
        super().__init__(ctx)
        data, self.single = ctx.data, ctx.objective.kind == "single"
        self.expected = method.expected
        self.prior_C = log_prior(ctx.card.count_C, method.gamma if self.single else 0.0).to(data.y_NC)
        self.target_NC = torch.zeros_like(data.y_NC)
        self.open_NC = torch.zeros_like(data.y_NC)
        if self.expected:
            with torch.no_grad():
                z_ND = ctx.infer(self.model, data)
                logits_NC = self.model.eval().head(z_ND)
            self.model.train()
            impossible_C = ctx.card.identified_C & method.disjoint
            self.target_NC, self.open_NC = expectation(logits_NC, data, impossible_C, ctx.objective)

    def active(self, data: ClientData) -> Tensor:
        return torch.logical_or(super().active(data), self.open_NC.any(-1))

    def loss(self, batch: Batch) -> Tensor:
        logits_BC: Tensor = self.model(batch.x)
        loss = self.ctx.objective.loss(logits_BC + self.prior_C, batch)
        if not self.expected:
            return loss
        target_BC, open_BC = self.target_NC[batch.index_B], self.open_NC[batch.index_B]
        distance = (open_BC * (self.ctx.objective.scores(logits_BC) - target_BC).square()).sum()
        classes = 1 if self.single else logits_BC.shape[-1]  # as the labels' loss is divided
        return loss + self.expected * distance / (batch.denominator * classes)


def expectation(
    logits_NC: Tensor, data: ClientData, impossible_C: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Return the expected labels [N, C], and 1 where they stand for labels that are not known, else 0 [N, C].

    Single-label: of a row without a label, the softmax over the classes that it can have, all but ``impossible_C``; a
    row that can have none is left out. Multi-label: of every label that is not known, its probability.
    """
    if objective.kind == "multi":
        return logits_NC.sigmoid(), (data.known_NC == 0).to(logits_NC)
    open_N1 = (data.known_NC == 0).all(-1, keepdim=True) & ~impossible_C.all()
    cannot_C = impossible_C & ~impossible_C.all()  # a softmax over nothing is NaN
    target_NC = logits_NC.masked_fill(cannot_C, -torch.inf).softmax(-1)
    return target_NC, open_N1.to(logits_NC).expand_as(target_NC)


@dataclass(frozen=True, kw_only=True)
class Anchor(Averaging):
    """Client: the labels' loss, by balanced softmax where a row has one, and the distance to what is expected of the
    rest. Server: FedAvg's. Class embeddings start from the class names.
    """

    name = "anchor"

    expected: float = 1.0
    """Weight of the expected labels, >= 0; 0: labels alone."""
    gamma: float = 1.0
    """Single-label: power of the class counts in balanced softmax, >= 0; 0 is plain cross-entropy."""
    disjoint: bool = True
    """Single-label: a row without a label is of none of the classes that its client identifies. False where labels of
    these may be missing, too."""

    def __post_init__(self) -> None:
        if not (self.expected >= 0 and self.gamma >= 0):
            raise ValueError(f"method.expected = {self.expected}, method.gamma = {self.gamma}: must be at least 0")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="biased")

    def trainer(self, ctx: ClientContext[ServerState]) -> ExpectingTrainer:
        return ExpectingTrainer(ctx, self)
