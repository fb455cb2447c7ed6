"""Anchor, this project's own method: rows speak of the labels that they do not have, too.

Every row has a target: its labels where they are known; else that it is of none of the client's classes, and, as far
as that leaves it open, what the sent model expects of it. Control variates correct the drift that is left. Derivation,
limits: docs/methods/anchor.md. Suffixes: N rows of the client, B rows of a micro-batch, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.aggregation import Weighting
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientResult, HeadSpec, ServerContext
from anchorfl.pipeline.algorithm.control_variates import (
    AgreeingTrainer,
    ControlState,
    ControlUpdate,
    contribution_of,
    control_after,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means
from anchorfl.pipeline.algorithm.expected_labels import expectation, missing_share, possible, weight
from anchorfl.pipeline.algorithm.generator_training import (
    CONDITION,
    GeneratorMethod,
    GeneratorState,
    SyntheticTrainer,
    first_fields,
)
from anchorfl.pipeline.algorithm.parameters import log_prior, weights_of
from anchorfl.tasks.contract import Batch, ClientData


@dataclass(frozen=True)
class AnchorState(ControlState):
    """The server's state, all of which is sent."""

    missing: Tensor
    """Share of the labels of identified classes that are missing, []."""


@dataclass(frozen=True)
class ImagesState(AnchorState, GeneratorState):
    """The server's state with a generator."""


class ExpectingTrainer(SyntheticTrainer[AnchorState, ControlUpdate], AgreeingTrainer[AnchorState]):
    replayable = True

    def __init__(self, ctx: ClientContext[AnchorState], method: Anchor) -> None:
        super().__init__(ctx)
        data, self.single, self.per_batch = ctx.data, ctx.objective.kind == "single", method.synthetic_per_batch
        self.expected, self.certain = method.expected, method.certain if self.single else 0.0
        self.target_NC = self.open_NC = self.weight_NC = torch.zeros_like(data.y_NC)
        if self.expected or self.certain:
            with torch.no_grad():
                logits_NC = self.model.eval().head(ctx.infer(self.model, data))
            self.model.train()
            missing = ctx.state.missing.to(logits_NC)
            self.odds_C = torch.where(ctx.card.identified_C, missing, torch.ones_like(missing))
            self.target_NC, self.open_NC = expectation(logits_NC, data, self.odds_C, ctx.objective)
            self.weight_NC = self.expected * weight(self.target_NC, self.open_NC, data, missing, ctx.objective)
        self.correct_in_full(self.open_NC.any())
        count_C = ctx.card.count_C.to(data.y_NC) + (self.target_NC * self.open_NC).sum(0)
        self.prior_C = log_prior(count_C, method.gamma if self.single else 0.0).to(data.y_NC)

    def active(self, data: ClientData) -> Tensor:
        return torch.logical_or(super().active(data), self.open_NC.any(-1))

    def rows_loss(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        loss = self.ctx.objective.loss(logits_BC + self.prior_C, batch)
        if not (self.expected or self.certain):
            return loss
        target_BC, weight_BC = self.target_NC[batch.index_B], self.weight_NC[batch.index_B]
        rest = (weight_BC * (self.ctx.objective.scores(logits_BC) - target_BC).square()).sum()
        if self.certain:
            certain_B = possible(logits_BC.log_softmax(-1), self.odds_C).logsumexp(-1)
            rest = rest - self.certain * (self.open_NC[batch.index_B, 0] * certain_B).sum()
        return loss + rest / batch.denominator


@dataclass(frozen=True, kw_only=True)
class Anchor(GeneratorMethod[AnchorState, ControlUpdate]):
    """Client: the labels' loss, by balanced softmax where a row has one; for the rest what is certain of it, and the
    distance to what is expected; the encoder's gradients corrected by control variates. Server: means, as SCAFFOLD's.
    """

    name = "anchor"
    revision = 6
    single_label_revision = 5
    averaged = ("weights", "control")

    expected: float = 1.0
    """Weight of the distance to the expected labels, >= 0."""
    certain: float = 1.0
    """Single-label: weight of the likelihood that a row has no label, >= 0."""
    gamma: float = 1.0
    """Single-label: power of the class counts in balanced softmax, >= 0; 0 is plain cross-entropy."""
    shares: bool = True
    """Single-label: what the classes' shares leave says how many labels are missing. False: none of identified ones."""
    control_variates: bool = True
    """Control variates, which travel, correct the encoder's gradients; False: weights alone travel."""
    synthetic_per_batch: int = 0
    """Single-label, images: images of a generator, which the server trains, that join a mini-batch; 0: no generator."""
    generator_every: int = 5
    """The generator is trained after every so many rounds."""
    weighting: Weighting = "samples"
    """Weight of a client in the means: its samples, or 1."""

    def __post_init__(self) -> None:
        numbers = ("expected", "certain", "gamma", "synthetic_per_batch")
        if bad := next((n for n in numbers if not getattr(self, n) >= 0), ""):
            raise ValueError(f"method.{bad} = {getattr(self, bad)}: must be at least 0")
        if self.generator_every < 1:
            raise ValueError(f"method.generator_every = {self.generator_every}: must be at least 1")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="biased")

    @property
    def robust(self) -> tuple[str, ...]:
        return () if self.control_variates else super().robust

    @property
    def sends_weights_alone(self) -> bool:
        # the generator sees the mean before there is noise, and shares are of every client's labels
        more = self.control_variates or self.generates or self.shares or self.sends_initial_message
        return self.keeps_verbs_of(Anchor) and not more

    def begin(self, ctx: ServerContext) -> AnchorState:
        encoder = ctx.model.encoder.named_parameters("encoder")  # not the head, which is balanced
        control = {n: torch.zeros_like(p) for n, p in encoder if self.control_variates}
        missing = missing_share(ctx.cards) if self.shares else torch.zeros(())
        state = AnchorState(weights_of(ctx.model), control, missing)
        return ImagesState(**vars(state), **first_fields(ctx, CONDITION, True)) if self.generates else state

    def trainer(self, ctx: ClientContext[AnchorState]) -> ExpectingTrainer:
        return ExpectingTrainer(ctx, self)

    def contribution(self, result: ClientResult[ControlUpdate]) -> Contribution:
        return contribution_of(result.update, self.client_weight(result.card))

    def merge(self, state: AnchorState, means: Means, ctx: ServerContext) -> AnchorState:
        control = control_after(state.control, means, self.total_weight(ctx.cards))
        return self.after_round(replace(state, weights=means["weights"], control=control), means, ctx)
