"""Anchor, this project's own method: rows speak of the labels that they do not have, too.

Every row has a target: its labels where they are known; else that it is of none of the client's classes, and, as far
as that leaves it open, what the sent model expects of it. Control variates correct the drift that is left. Derivation,
limits: docs/methods/anchor.md. Suffixes: N rows of the client, B rows of a micro-batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.aggregation import Weighting
from anchorfl.pipeline.algorithm.class_shares import missing_share
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientResult, HeadSpec, Method, ServerContext
from anchorfl.pipeline.algorithm.control_variates import (
    ControlledTrainer,
    ControlState,
    ControlUpdate,
    contribution_of,
    control_after,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means
from anchorfl.pipeline.algorithm.parameters import log_prior, weights_of
from anchorfl.tasks.contract import Batch, ClientData, Objective


@dataclass(frozen=True)
class AnchorState(ControlState):
    """The server's state, all of which is sent."""

    missing: Tensor
    """Share of the labels of identified classes that are missing, []."""


class ExpectingTrainer(ControlledTrainer[AnchorState]):
    replayable = True

    def __init__(self, ctx: ClientContext[AnchorState], method: Anchor) -> None:
        super().__init__(ctx)
        data, self.single = ctx.data, ctx.objective.kind == "single"
        self.expected, self.certain = method.expected, method.certain if self.single else 0.0
        self.target_NC = self.open_NC = self.weight_NC = torch.zeros_like(data.y_NC)
        if self.expected or self.certain:
            with torch.no_grad():
                z_ND = ctx.infer(self.model, data)
                logits_NC = self.model.eval().head(z_ND)
            self.model.train()
            missing = ctx.state.missing.to(z_ND)
            self.odds_C = torch.where(ctx.card.identified_C, missing, torch.ones_like(missing))
            self.target_NC, self.open_NC = expectation(logits_NC, data, self.odds_C, ctx.objective)
            # one label: a model that is sure would confirm itself; several: a label's two values, of C in the mean
            sure_N1 = (1 - missing) * self.target_NC.square().sum(-1, keepdim=True)
            self.weight_NC = self.expected * self.open_NC * (1 - sure_N1 if self.single else 2 / data.y_NC.shape[1])
        count_C = ctx.card.count_C.to(data.y_NC) + (self.target_NC * self.open_NC).sum(0)
        self.prior_C = log_prior(count_C, method.gamma if self.single else 0.0).to(data.y_NC)

    def active(self, data: ClientData) -> Tensor:
        return torch.logical_or(super().active(data), self.open_NC.any(-1))

    def loss(self, batch: Batch) -> Tensor:
        logits_BC: Tensor = self.model(batch.x)
        loss = self.ctx.objective.loss(logits_BC + self.prior_C, batch)
        if not (self.expected or self.certain):
            return loss
        target_BC, weight_BC = self.target_NC[batch.index_B], self.weight_NC[batch.index_B]
        rest = (weight_BC * (self.ctx.objective.scores(logits_BC) - target_BC).square()).sum()
        if self.certain:
            certain_B = possible(logits_BC.log_softmax(-1), self.odds_C).logsumexp(-1)
            rest = rest - self.certain * (self.open_NC[batch.index_B, 0] * certain_B).sum()
        return loss + rest / batch.denominator


def expectation(logits_NC: Tensor, data: ClientData, odds_C: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """Return the expected labels [N, C], and 1 where they stand for labels that are not known, else 0 [N, C].

    Single-label: of a row without a label, the softmax times ``odds_C``, the probability that a row of the class has
    none; a row that can be nothing is left out. Multi-label: of every label that is not known, its probability.
    """
    if objective.kind == "multi":
        return logits_NC.sigmoid(), (data.known_NC == 0).to(logits_NC)
    open_N = (data.known_NC == 0).all(-1) & odds_C.any()
    target_NC = possible(logits_NC, odds_C).softmax(-1)
    return target_NC, open_N.to(logits_NC)[:, None].expand_as(target_NC)


def possible(logits_NC: Tensor, odds_C: Tensor) -> Tensor:
    """Return the logits of a row's class, given that it has no label; as they are, where every row would have one."""
    return logits_NC + torch.where(odds_C.any(), odds_C, 1.0).log()


@dataclass(frozen=True, kw_only=True)
class Anchor(Method[AnchorState, ControlUpdate]):
    """Client: the labels' loss, by balanced softmax where a row has one; for the rest what is certain of it, and the
    distance to what is expected; gradients corrected by control variates. Server: means, as SCAFFOLD's.
    """

    name = "anchor"
    revision = 4
    averaged = ("weights", "control")

    expected: float = 1.0
    """Weight of the distance to the expected labels, >= 0."""
    certain: float = 1.0
    """Single-label: weight of the likelihood that a row has no label, >= 0."""
    gamma: float = 1.0
    """Single-label: power of the class counts in balanced softmax, >= 0; 0 is plain cross-entropy."""
    shares: bool = True
    """Single-label: what the classes' shares among the clients that identify them leave says how many labels are
    missing. False: no label of an identified class is missing."""
    control_variates: bool = True
    """Single-label: gradients are corrected by control variates, which travel as the weights do. False: they are not,
    and clients send weights alone."""
    weighting: Weighting = "samples"
    """Weight of a client in the means: its samples, or 1."""

    def __post_init__(self) -> None:
        if bad := next((n for n in ("expected", "certain", "gamma") if not getattr(self, n) >= 0), ""):
            raise ValueError(f"method.{bad} = {getattr(self, bad)}: must be at least 0")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="biased")

    @property
    def robust(self) -> tuple[str, ...]:
        return () if self.control_variates else super().robust

    @property
    def sends_weights_alone(self) -> bool:
        return not self.control_variates

    def begin(self, ctx: ServerContext) -> AnchorState:
        controlled = self.control_variates and ctx.objective.kind == "single"
        control = {n: torch.zeros_like(p) for n, p in ctx.model.named_parameters() if controlled}
        missing = missing_share(ctx.cards) if self.shares else torch.zeros(())
        return AnchorState(weights_of(ctx.model), control, missing)

    def trainer(self, ctx: ClientContext[AnchorState]) -> ExpectingTrainer:
        return ExpectingTrainer(ctx, self)

    def contribution(self, result: ClientResult[ControlUpdate]) -> Contribution:
        return contribution_of(result.update, self.client_weight(result.card))

    def merge(self, state: AnchorState, means: Means, ctx: ServerContext) -> AnchorState:
        control = control_after(state.control, means, self.total_weight(ctx.cards))
        return AnchorState(means["weights"], control, state.missing)
