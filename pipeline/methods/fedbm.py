"""FedBM (2025): a frozen classifier that a language model made (LKCC), and images from a generator that the server
trains on the class concepts (CGDE).

Facts and readings: docs/methods/fedbm.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.models.classifier import Classifier
from anchorfl.models.heads import ConceptHead
from anchorfl.pipeline.algorithm.aggregation import Weighting
from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientResult,
    HeadSpec,
    ServerContext,
    Supports,
    Tensors,
    Update,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.generator_training import (
    CONCEPTS,
    GeneratorMethod,
    GeneratorState,
    GeneratorTraining,
    SyntheticTrainer,
    first_generator,
    prediction_loss,
)
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.tasks.contract import Batch, Card

FROZEN = ("head.mean", "head.variance", "head.tau")
"""Names of the frozen classifier in the model's weights, and in a client's message and memory."""
FrozenKind = Literal["distribution", "mean", "random"]
"""Origin of the frozen classifier: mean and variance of the concepts, their mean alone, or random unit rows."""


@dataclass(frozen=True)
class BMState(GeneratorState):
    """The server's state; ``weights``: the classifier's, frozen ones included."""

    concepts_CMD: Tensor
    """Concepts of the classes, by the language model; empty where the method does without."""


def row_loss(model: Classifier, x: Tensor, class_B: Tensor) -> Tensor:
    """Return the loss of every row [B] against the frozen classifier (its bound, eq. 4), or a linear one."""
    if isinstance(model.head, ConceptHead):
        return model.head.bound(model.encoder(x), class_B)
    return F.cross_entropy(model(x), class_B, reduction="none")


class BMTrainer(SyntheticTrainer[BMState, Update]):
    replayable = True
    keeps = (*SyntheticTrainer.keeps, *FROZEN)

    def __init__(self, ctx: ClientContext[BMState], method: FedBM) -> None:
        self.per_batch, self.concept_conditions = method.synthetic_per_batch, method.concept_conditions
        super().__init__(ctx)
        for name in FROZEN:
            if name in self.kept:
                self.model.get_buffer(name).copy_(self.kept[name])

    def loss(self, batch: Batch) -> Tensor:
        if self.source is None and not isinstance(self.model.head, ConceptHead):
            return super().loss(batch)  # neither of the method's halves: FedAvg's, bit for bit
        x, class_B, weight_B = batch.x, batch.y_BC.argmax(-1), batch.weight_BC.sum(-1)
        count = batch.denominator
        if self.source is not None:
            x_synthetic, class_S = self.draw()
            x, class_B = torch.cat([x, x_synthetic]), torch.cat([class_B, class_S])
            weight_B = torch.cat([weight_B, torch.ones_like(class_S, dtype=weight_B.dtype)])
            count = count + len(class_S)
        return (weight_B * row_loss(self.model, x, class_B)).sum() / count

    def update(self) -> Update:
        return Update(without_frozen(weights_of(self.model)))


@dataclass(frozen=True, kw_only=True)
class FedBM(GeneratorMethod[BMState, Update]):
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
            not (self.lambda_div >= 0 and self.lambda_dis >= 0)
            or min(self.synthetic_per_batch, self.generator_every, self.generator_steps) < 1
        ):
            raise ValueError(
                "method: lambda_div and lambda_dis must be at least 0; synthetic_per_batch, generator_every and"
                " generator_steps at least 1"
            )
        if self.generator_batch < 2:
            raise ValueError(f"method.generator_batch = {self.generator_batch}: must be at least 2")

    @property
    def generates(self) -> bool:
        return self.cgde

    @property
    def sends_client_messages(self) -> bool:
        return self.lkcc or self.cgde

    @property
    def training(self) -> GeneratorTraining:
        loss = prediction_loss if self.generator_loss == "cross_entropy" else row_loss
        return GeneratorTraining(
            loss, self.lambda_div, self.lambda_dis, self.generator_steps, self.generator_batch, self.generator_lr
        )

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
        return BMState(weights, generator, torch.zeros((), dtype=torch.int64), never_I, concepts_CMD)

    def broadcast(self, state: BMState, ctx: ServerContext) -> BMState:
        sent = super().broadcast(state, ctx)
        return replace(sent, weights=without_frozen(state.weights), concepts_CMD=torch.zeros(0))

    def concepts(self, state: BMState, classes: int) -> Tensor:
        return state.concepts_CMD

    def client_message(self, state: BMState, card: Card) -> Tensors:
        """Return at first contact the frozen classifier, then each new generator; with the first, the concepts."""
        seen, message = int(state.seen_version_I[card.client]), super().client_message(state, card)
        if message and seen <= 0:
            message[CONCEPTS] = state.concepts_CMD
        return (frozen_part(state.weights) if seen < 0 else {}) | message

    def trainer(self, ctx: ClientContext[BMState]) -> BMTrainer:
        return BMTrainer(ctx, self)

    def contribution(self, result: ClientResult[Update]) -> Contribution:
        return Contribution({"weights": Term(result.update.weights, self.client_weight(result.card))})

    def merge(self, state: BMState, means: Means, ctx: ServerContext) -> BMState:
        return self.after_round(replace(state, weights=means["weights"] | frozen_part(state.weights)), means, ctx)


def without_frozen(weights: Tensors) -> Tensors:
    """Return the weights that are trained and averaged."""
    return {name: value for name, value in weights.items() if name not in FROZEN}


def frozen_part(weights: Tensors) -> Tensors:
    """Return the weights that never change, in their order; none without the frozen classifier."""
    return {name: weights[name] for name in FROZEN if name in weights}


def frozen_classifier(concepts_CMD: Tensor, kind: FrozenKind, tau: float, rng: torch.Generator) -> Tensors:
    """Return the frozen classifier: mean [C, D] and variance [C, D] of the concepts' prompts, and tau. ``mean`` has no
    variances, ``random`` unit rows that say nothing.
    """
    mean_CD, variance_CD = concepts_CMD.mean(1), torch.zeros_like(concepts_CMD[:, 0])
    if kind == "random":
        mean_CD = F.normalize(torch.randn(mean_CD.shape, generator=rng), dim=-1)
    if kind == "distribution" and concepts_CMD.shape[1] > 1:
        variance_CD = concepts_CMD.var(1)
    return dict(zip(FROZEN, (mean_CD, variance_CD, torch.tensor(tau)), strict=True))
