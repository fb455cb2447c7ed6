"""FedBM (2025): a frozen classifier that a language model made (LKCC), and images from a generator that the server
trains on the class concepts (CGDE).

Facts and readings: docs/methods/fedbm.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from anchorfl.pipeline.algorithm.aggregation import Weighting
from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientResult,
    HeadSpec,
    Method,
    ServerContext,
    Supports,
    Tensors,
    Update,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.generator_training import (
    CONCEPTS,
    GENERATOR,
    BMState,
    BMTrainer,
    FrozenKind,
    GeneratorTraining,
    SyntheticOptions,
    first_generator,
    frozen_classifier,
    frozen_part,
    prediction_loss,
    retrain,
    row_loss,
    without_frozen,
)
from anchorfl.pipeline.algorithm.parameters import prefixed, weights_of
from anchorfl.tasks.contract import Card


@dataclass(frozen=True, kw_only=True)
class FedBM(Method[BMState, Update]):
    """Client: cross-entropy against a classifier of concept embeddings, over its rows and generated ones. Server: the
    mean; after every ``generator_every``-th round it trains the generator against the new classifier.
    """

    name = "fedbm"
    supports = Supports(kinds=("single",), stack=False)  # clients draw images of their own

    weighting: Weighting = "samples"
    """Weight of a client in the mean: its number of samples, or 1."""
    lkcc: bool = True
    """The frozen classifier; false: a linear one, which is trained (w/o LKCC)."""
    classifier: FrozenKind = "distribution"
    """The frozen part: mean and variance of the concept embeddings, their mean alone, or random unit rows."""
    tau: float = 12.5
    """Inverse temperature, > 0 (reference scripts: 17.5, 12.5 or 7.5, by data set)."""
    cgde: bool = True
    """The generator; false: none (w/o CGDE)."""
    concept_conditions: bool = True
    """Draw conditions from the concept embeddings; false: standard normal (w/o concept conditions)."""
    lambda_div: float = 1.0
    """Weight of the diversity of generated images, >= 0."""
    lambda_dis: float = 0.1
    """Weight of the distance to the running statistics of BatchNorm, >= 0; above 0 it needs BatchNorm."""
    synthetic_per_batch: int = 16
    """Generated images that join a mini-batch."""
    generator_loss: Literal["bound", "cross_entropy"] = "bound"
    """The generator's L_sem against the frozen classifier: the bound of equation 4 (reference), or the cross-entropy of
    the global model's prediction (equation 6)."""
    generator_every: int = 5
    """The generator is trained after every so many rounds."""
    generator_steps: int = 100
    """Steps of one training."""
    generator_batch: int = 64
    """Images of a step."""
    generator_lr: float = 3e-4
    """Rate of the generator's Adam."""

    def __post_init__(self) -> None:
        if bad := next((n for n in ("tau", "generator_lr") if not getattr(self, n) > 0), ""):
            raise ValueError(f"method.{bad} = {getattr(self, bad)}: must be above 0")
        if (
            min(self.lambda_div, self.lambda_dis) < 0
            or min(self.synthetic_per_batch, self.generator_every, self.generator_steps) < 1
        ):
            raise ValueError(
                "method: lambda_div and lambda_dis must be at least 0; synthetic_per_batch, generator_every and"
                " generator_steps at least 1"
            )
        if self.generator_batch < 2:
            raise ValueError(f"method.generator_batch = {self.generator_batch}: must be at least 2")

    @property
    def head(self) -> HeadSpec:
        concepts = self.lkcc or (self.cgde and self.concept_conditions)
        return HeadSpec(kind="concept" if self.lkcc else "linear", concepts=concepts)

    def begin(self, ctx: ServerContext) -> BMState:
        weights, concepts_CMD = weights_of(ctx.model), ctx.concepts_CMD
        if concepts_CMD is None:  # without language; conditions of the generator are as wide as the representation
            classes, width = ctx.model.get_parameter("head.weight").shape
            concepts_CMD = torch.zeros(classes, 1, width) if self.cgde else torch.zeros(0)
        elif self.lkcc:
            weights |= frozen_classifier(concepts_CMD, self.classifier, self.tau, ctx.rng)
        generator = first_generator(ctx, concepts_CMD.shape[2], self.lambda_dis > 0) if self.cgde else {}
        never_I = torch.full((len(ctx.cards),), -1)
        return BMState(weights, concepts_CMD, generator, torch.zeros((), dtype=torch.int64), never_I)

    def broadcast(self, state: BMState, ctx: ServerContext) -> BMState:
        nothing = torch.zeros(0)
        return BMState(without_frozen(state.weights), nothing, {}, nothing, nothing)

    def client_message(self, state: BMState, card: Card) -> Tensors:
        """Return at first contact the frozen classifier, then each new generator; with the first, the concepts."""
        seen = int(state.seen_version_I[card.client])
        message = frozen_part(state.weights) if seen < 0 else {}
        if int(state.version) > max(seen, 0):
            message |= prefixed(GENERATOR, state.generator)
            if seen <= 0:
                message[CONCEPTS] = state.concepts_CMD
        return message

    def trainer(self, ctx: ClientContext[BMState]) -> BMTrainer:
        return BMTrainer(ctx, SyntheticOptions(self.synthetic_per_batch, self.concept_conditions))

    def peak_state(self, state: BMState, rounds: int) -> tuple[BMState, int]:
        if not self.cgde or self.generator_every >= rounds:  # the generator is never trained
            return state, 1
        return replace(state, version=torch.ones_like(state.version)), self.generator_every

    def contribution(self, result: ClientResult[Update]) -> Contribution:
        return Contribution({"weights": Term(result.update.weights, self.client_weight(result.card))})

    def merge(self, state: BMState, means: Means, ctx: ServerContext) -> BMState:
        weights = means["weights"] | frozen_part(state.weights)
        seen_version_I = state.seen_version_I.clone()
        seen_version_I[list(means.clients)] = state.version
        state = replace(state, weights=weights, seen_version_I=seen_version_I)
        # after the last round nobody would see what it learns
        if not self.cgde or ctx.round % self.generator_every or ctx.round == ctx.rounds:
            return state
        loss = prediction_loss if self.generator_loss == "cross_entropy" else row_loss
        training = GeneratorTraining(
            loss, self.lambda_div, self.lambda_dis, self.generator_steps, self.generator_batch, self.generator_lr
        )
        generator = retrain(state.generator, weights, state.concepts_CMD, self.concept_conditions, training, ctx)
        return replace(state, generator=generator, version=state.version + 1)
