"""Parts that Anchor does without, each added to it: what other methods have, as methods for ``anchor_ablation``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import ClientContext, HeadSpec, ServerContext, Supports, Tensors
from anchorfl.pipeline.algorithm.exact_sums import Means
from anchorfl.pipeline.algorithm.generator_training import (
    GENERATOR,
    GeneratorTraining,
    first_generator,
    image_source,
    prediction_loss,
    retrain,
)
from anchorfl.pipeline.algorithm.parameters import below, prefixed
from anchorfl.pipeline.algorithm.pseudo_labels import anchor_scores, pseudo_annotate
from anchorfl.pipeline.algorithm.spreadout import gradient, nearest_rows, slope
from anchorfl.pipeline.methods.anchor import Anchor, AnchorState, ExpectingTrainer
from anchorfl.pipeline.methods.fedalign import CLASS_EMBEDDINGS, FedAlign
from anchorfl.pipeline.methods.fedbm import FedBM
from anchorfl.pipeline.methods.fedetf import FedETF
from anchorfl.tasks.contract import Batch, Card, ClientData


class FrozenTrainer(ExpectingTrainer):
    def correct(self) -> None:
        super().correct()
        self.model.get_parameter(CLASS_EMBEDDINGS).grad.zero_()


@dataclass(frozen=True, kw_only=True)
class Frozen(Anchor):
    """Class embeddings stay as they start."""

    name = "anchor-frozen"

    def trainer(self, ctx: ClientContext[AnchorState]) -> FrozenTrainer:
        return FrozenTrainer(ctx, self)


@dataclass(frozen=True, kw_only=True)
class Simplex(Anchor):
    """Classes are the columns of a simplex, as FedETF's: no class embeddings."""

    name = "anchor-simplex"

    @property
    def head(self) -> HeadSpec:
        return FedETF().head


@dataclass(frozen=True, kw_only=True)
class Spread(Anchor):
    """The server pushes all class embeddings apart after every round, as FedAwS's does."""

    name = "anchor-spread"

    rate: float = 0.1
    """Length of the step, times the mean gradient of a pair's squared distance."""

    def merge(self, state: AnchorState, means: Means, ctx: ServerContext) -> AnchorState:
        merged = super().merge(state, means, ctx)
        rows_CD = F.normalize(merged.weights[CLASS_EMBEDDINGS], dim=-1)
        index_CK, cosine_CK, after_C = nearest_rows(rows_CD, len(rows_CD) - 1)
        step_CD = gradient(rows_CD, index_CK, slope("neg_d2", cosine_CK, after_C, nu=0.0)) / index_CK.shape[1]
        weights = merged.weights | {CLASS_EMBEDDINGS: rows_CD - self.rate * step_CD}
        return AnchorState(weights, merged.control, merged.missing)


class SureTrainer(ExpectingTrainer):
    def __init__(self, ctx: ClientContext[AnchorState], method: Sure) -> None:
        super().__init__(ctx, method)
        if self.single:
            self.weight_NC = method.expected * self.open_NC


@dataclass(frozen=True, kw_only=True)
class Sure(Anchor):
    """A row with one label is drawn to its expected label however sure that is."""

    name = "anchor-sure"

    def trainer(self, ctx: ClientContext[AnchorState]) -> SureTrainer:
        return SureTrainer(ctx, self)


class PseudoTrainer(ExpectingTrainer):
    def data(self) -> ClientData:
        ctx = self.ctx
        score_NC = anchor_scores("confidence", self.model.head, ctx.infer(self.model, ctx.data), ctx.objective)
        rows, _ = pseudo_annotate(
            ctx.data, score_NC, ctx.card.identified_C, ctx.objective, FedAlign().thresholds(allowed_C=None)
        )
        return rows


@dataclass(frozen=True, kw_only=True)
class Pseudo(Anchor):
    """FedAlign's pseudo-labels, by percentiles of the sent model's confidence; ``expected = 0`` puts them in the place
    of expected labels.
    """

    name = "anchor-pseudo"

    def trainer(self, ctx: ClientContext[AnchorState]) -> PseudoTrainer:
        return PseudoTrainer(ctx, self)


class GrowingTrainer(ExpectingTrainer):
    def __init__(self, ctx: ClientContext[AnchorState], method: Growing) -> None:
        super().__init__(ctx, method)
        share = min(1.0, ctx.round / method.rounds)
        self.weight_NC = share * self.weight_NC


@dataclass(frozen=True, kw_only=True)
class Growing(Anchor):
    """The weight of expected labels grows in a straight line from round 1 on."""

    name = "anchor-growing"

    rounds: int = 10
    """Rounds after which it has its full weight."""

    def trainer(self, ctx: ClientContext[AnchorState]) -> GrowingTrainer:
        return GrowingTrainer(ctx, self)


@dataclass(frozen=True, kw_only=True)
class Controlled(Anchor):
    """Gradients are corrected by control variates where a row has several labels, too."""

    name = "anchor-controlled"

    def begin(self, ctx: ServerContext) -> AnchorState:
        state = super().begin(ctx)
        zeros = {name: torch.zeros_like(p) for name, p in ctx.model.named_parameters()}
        return AnchorState(state.weights, zeros, state.missing)


CONDITION = 64
"""Width of the generator's conditions."""


def random_concepts(classes: int, like: Tensor) -> Tensor:
    """Return what FedBM's conditions are drawn from without a language model [C, 25, D]: a random vector for each class
    and, around it, 25 in place of prompts. Everybody draws the same, so nobody sends them.
    """
    rng = torch.Generator().manual_seed(0)
    class_CMD = torch.randn(classes, 1, CONDITION, generator=rng)
    return (class_CMD + 0.5 * torch.randn(classes, 25, CONDITION, generator=rng)).to(like)


@dataclass(frozen=True)
class GeneratingState(AnchorState):
    """The server's state; the generator goes to each client alone, as FedBM's does."""

    generator: Tensors
    """Weights of the generator, and the shape of its images."""
    version: Tensor
    """int64, no dimension: trainings of the generator so far."""
    seen_version_I: Tensor
    """int64: version of the generator that a client was last sent, 0: none yet."""


class GeneratingTrainer(ExpectingTrainer):
    def __init__(self, ctx: ClientContext[AnchorState], method: Generating) -> None:
        self.kept = {k: v for k, v in ctx.memory.items() if k.startswith(GENERATOR)} | ctx.client_message
        super().__init__(ctx, method)
        self.per_batch = method.synthetic_per_batch
        concepts_CMD = random_concepts(len(ctx.card.count_C), ctx.data.y_NC)
        generator = below(GENERATOR, self.kept)
        self.source = image_source(generator, concepts_CMD, True, ctx.data.scaling) if generator else None
        self.replayable = self.source is None  # its images are drawn by a generator of the CPU

    def active(self, data: ClientData) -> Tensor:
        return super().active(data) | (self.source is not None)

    def loss(self, batch: Batch) -> Tensor:
        """Return Anchor's loss of the rows and cross-entropy of as many images as a mini-batch takes, over the number
        of both. Every row has a label here: what is expected, and what is certain, of the others is left out.
        """
        if self.source is None:
            return super().loss(batch)
        x_S, class_S = self.source.draw(self.per_batch, self.ctx.rng)
        real_BC, synthetic_SC = self.model(torch.cat([batch.x, x_S])).split([len(batch.x), len(x_S)])
        rows = self.ctx.objective.loss(real_BC + self.prior_C, batch) * batch.denominator
        return (rows + F.cross_entropy(synthetic_SC, class_S, reduction="sum")) / (batch.denominator + len(class_S))

    def memory(self) -> Tensors:
        return super().memory() | self.kept


@dataclass(frozen=True, kw_only=True)
class Generating(Anchor):
    """Images of FedBM's generator, with its defaults and random concepts, join every mini-batch. For clients all of
    whose rows have labels.
    """

    name = "anchor-generating"
    supports = Supports(kinds=("single",), stack=False)

    synthetic_per_batch: int = FedBM.synthetic_per_batch
    """Generated images that join a mini-batch."""
    generator_every: int = FedBM.generator_every
    """The generator is trained after every so many rounds."""

    def begin(self, ctx: ServerContext) -> GeneratingState:
        state, generator = super().begin(ctx), first_generator(ctx, CONDITION, measures=True)
        zero, never_I = torch.zeros((), dtype=torch.int64), torch.zeros(len(ctx.cards), dtype=torch.int64)
        return GeneratingState(state.weights, state.control, state.missing, generator, zero, never_I)

    def broadcast(self, state: AnchorState, ctx: ServerContext) -> AnchorState:
        nothing = torch.zeros(0)
        return GeneratingState(state.weights, state.control, state.missing, {}, nothing, nothing)

    def client_message(self, state: AnchorState, card: Card) -> Tensors:
        assert isinstance(state, GeneratingState)
        is_new = state.version > state.seen_version_I[card.client]
        return prefixed(GENERATOR, state.generator) if is_new else {}

    def trainer(self, ctx: ClientContext[AnchorState]) -> GeneratingTrainer:
        return GeneratingTrainer(ctx, self)

    def merge(self, state: AnchorState, means: Means, ctx: ServerContext) -> GeneratingState:
        assert isinstance(state, GeneratingState)
        merged, seen_version_I = super().merge(state, means, ctx), state.seen_version_I.clone()
        seen_version_I[list(means.clients)] = state.version
        state = replace(state, weights=merged.weights, control=merged.control, seen_version_I=seen_version_I)
        if ctx.round % self.generator_every or ctx.round == ctx.rounds:
            return state
        own = FedBM()
        training = GeneratorTraining(
            prediction_loss, own.lambda_div, own.lambda_dis, own.generator_steps, own.generator_batch, own.generator_lr
        )
        concepts_CMD = random_concepts(len(ctx.cards[0].count_C), torch.zeros(0))
        generator = retrain(state.generator, state.weights, concepts_CMD, True, training, ctx)
        return replace(state, generator=generator, version=state.version + 1)
