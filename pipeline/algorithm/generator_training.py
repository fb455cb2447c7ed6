"""FedBM's generator: its training at the server, and its images at the clients of any method that is made for it.

Shape suffixes: C classes, M prompts, D width of the concepts, B images, S synthetic images, I clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.models.augment import augment
from anchorfl.models.classifier import Classifier
from anchorfl.models.generator import Generator, batch_norm_layers, conditions, diversity, noise, watch_batch_norm
from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientTrainer,
    Method,
    ServerContext,
    ServerState,
    Tensors,
    Update,
)
from anchorfl.pipeline.algorithm.exact_sums import Means
from anchorfl.pipeline.algorithm.optimizers import Adam
from anchorfl.pipeline.algorithm.parameters import below, prefixed, weights_of
from anchorfl.tasks.contract import Batch, Card, ClientData
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.scaling import Scaling

RowLoss = Callable[[Classifier, Tensor, Tensor], Tensor]
"""(classifier, images, classes [B]) -> loss of each image [B]."""
SHAPE = "shape"
"""Name of the images' shape beside the generator's weights."""
CONCEPTS, GENERATOR = "concepts", "generator."
"""Name of the concepts, and prefix of the generator, in a client's message and memory."""
BETAS = (0.5, 0.999)
"""Betas of the generator's Adam (FedBM's reference code)."""


@dataclass(frozen=True)
class ImageSource:
    """A source of synthetic images with their classes."""

    generator: Generator
    """The generator, in evaluation mode but for its own training."""
    concepts_CMD: Tensor
    """Prompts of every class, from which conditions are drawn."""
    concept_conditions: bool
    """False: conditions are drawn from a standard normal."""
    scaling: Scaling
    """Map from images of the data to a network's input."""

    def labels(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw classes, uniform and independent: int64 [B]."""
        class_B = torch.randint(len(self.concepts_CMD), (count,), generator=rng, device=rng.device)
        return class_B.to(self.concepts_CMD.device)

    def conditions(self, class_B: Tensor, rng: torch.Generator) -> Tensor:
        """Draw a condition for each class of the batch [B, D]."""
        if self.concept_conditions:
            return conditions(self.concepts_CMD, class_B, rng)
        return noise(self.concepts_CMD.shape[2], class_B, rng, self.concepts_CMD)

    def prepared(self, x_B: Tensor, rng: torch.Generator) -> Tensor:
        """Return images in [0, 1] as a classifier takes them: cropped, flipped, normalized.

        The room of the crop is the reference's share of the side, 4 of 128 pixels, and at least one: a black frame of
        4 around 28 pixels would tell a generated image from a real one.
        """
        return self.scaling.unit(augment(x_B, rng, max(1, x_B.shape[-1] // 32)))

    @torch.no_grad()
    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw images as a classifier takes them, and their classes. The generator must be in evaluation mode."""
        class_B = self.labels(count, rng)
        return self.prepared(self.generator(self.conditions(class_B, rng)), rng), class_B


def first_generator(ctx: ServerContext, width: int, measures: bool) -> Tensors:
    """Return the generator before its first training: its weights, and the shape of its images (``SHAPE``).

    width: of its conditions; measures: it will be compared with BatchNorm's running statistics. InputError where it
    cannot be.
    """
    spec = ctx.spec
    assert spec is not None
    if ctx.objective.kind != "single":
        raise InputError("the generator makes images of one class each, and this task is multi-label: do without it")
    if spec.kind != "image":
        raise InputError(
            f"the generator makes images, the input is of kind {spec.kind!r}: do without it (method.cgde = false, or"
            " method.synthetic_per_batch = 0)"
        )
    if measures and not batch_norm_layers(ctx.model):
        raise InputError(
            "the generator is compared with BatchNorm's running statistics, and this network has none: set model.norm"
            " to 'batch' (residual networks), or method.lambda_dis to 0 where the method has it"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(ctx.rng.get_state())
            generator = Generator(width, spec.shape)
    except ValueError as error:
        raise InputError(f"the generator: {error}") from error
    return weights_of(generator) | {SHAPE: torch.tensor(spec.shape)}


def image_source(values: Tensors, concepts_CMD: Tensor, concept_conditions: bool, scaling: Scaling) -> ImageSource:
    """Return the source of images by the generator of these tensors (``first_generator``), in evaluation mode."""
    generator = Generator(concepts_CMD.shape[2], tuple(values[SHAPE].tolist()))
    generator.load_state_dict({k: v for k, v in values.items() if k != SHAPE})
    device = concepts_CMD.device
    return ImageSource(generator.to(device).eval(), concepts_CMD, concept_conditions, scaling.to(device))


@dataclass(frozen=True)
class GeneratorTraining:
    """Options of one training of the generator."""

    loss: RowLoss
    """Loss of the images that the classifier sees."""
    div: float = 1.0
    """Weight of L_div, >= 0."""
    dis: float = 0.1
    """Weight of L_dis, >= 0."""
    steps: int = 100
    """Steps of Adam."""
    batch: int = 64
    """Images of a step."""
    lr: float = 3e-4
    """Rate of Adam."""


def train_generator(
    source: ImageSource, classifier: Classifier, training: GeneratorTraining, rng: torch.Generator
) -> list[float]:
    """Train the generator in place against a classifier that stays as it is (FedBM, eq. 6 to 8); return the loss of
    every step. Adam is a new one each time; weights and running statistics go on from where they were.
    """
    classifier.eval().requires_grad_(False)
    source.generator.train()
    adam = Adam(source.generator.parameters(), lr=training.lr, betas=BETAS)
    losses = []
    for _ in range(training.steps):
        class_B = source.labels(training.batch, rng)
        z_BD = source.conditions(class_B, rng)
        x_B = source.generator(z_BD)
        with watch_batch_norm(classifier.encoder) as seen:
            loss = training.loss(classifier, source.prepared(x_B, rng), class_B).mean()
        if training.dis:
            loss = loss + training.dis * seen.total()
        if training.div:
            loss = loss + training.div * diversity(z_BD, x_B, class_B, len(source.concepts_CMD))
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(float(loss.detach()))
    source.generator.eval()
    classifier.requires_grad_(True)
    return losses


def retrain(
    values: Tensors,
    weights: Tensors,
    concepts_CMD: Tensor,
    concept_conditions: bool,
    training: GeneratorTraining,
    ctx: ServerContext,
) -> Tensors:
    """Return the generator after one more training against the classifier with ``weights``."""
    classifier = ctx.workspace
    assert classifier is not None
    assert ctx.spec is not None
    classifier.load_state_dict(weights)
    device = next(classifier.parameters()).device
    on_device, concepts_CMD = {name: value.to(device) for name, value in values.items()}, concepts_CMD.to(device)
    source = image_source(on_device, concepts_CMD, concept_conditions, ctx.spec.scaling())
    train_generator(source, classifier, training, ctx.rng)
    return values | {name: value.cpu() for name, value in weights_of(source.generator).items()}


def prediction_loss(model: Classifier, x: Tensor, class_B: Tensor) -> Tensor:
    """Return the cross-entropy of every row [B] of the model's prediction, whatever its head (eq. 6)."""
    return F.cross_entropy(model(x), class_B, reduction="none")


CONDITION = 64
"""Width of conditions without a language model."""


def random_concepts(classes: int, like: Tensor) -> Tensor:
    """Return what conditions are drawn from without a language model [C, 25, D]: a random vector for each class and,
    around it, 25 in place of prompts. Everybody draws the same, so nobody sends them.
    """
    rng = torch.Generator().manual_seed(0)
    class_CMD = torch.randn(classes, 1, CONDITION, generator=rng)
    return (class_CMD + 0.5 * torch.randn(classes, 25, CONDITION, generator=rng)).to(like)


@dataclass(frozen=True)
class GeneratorState(ServerState):
    """The server's state with a generator, which goes to each client by itself."""

    generator: Tensors
    """Weights of the generator, and the shape of its images; empty without one."""
    version: Tensor
    """int64, no dimension: trainings of the generator so far."""
    seen_version_I: Tensor
    """int64: version of the generator that a client was last sent, 0: none yet; -1: the client was sent nothing."""


def first_fields(ctx: ServerContext, width: int, measures: bool) -> dict[str, Any]:
    """Return the fields of ``GeneratorState`` before the first training, as ``first_generator`` makes it."""
    version, seen_version_I = torch.zeros((), dtype=torch.int64), torch.full((len(ctx.cards),), -1)
    return {"generator": first_generator(ctx, width, measures), "version": version, "seen_version_I": seen_version_I}


S = TypeVar("S", bound=ServerState)
U = TypeVar("U", bound=Update)


class GeneratorMethod(Method[S, U]):
    """Server half of a method that may have a generator: its state is a ``GeneratorState`` then."""

    synthetic_per_batch: int
    """Generated images that join a mini-batch."""
    generator_every: int
    """The generator is trained after every so many rounds."""
    concept_conditions: bool = True
    """Conditions are drawn from the concepts; false: from a standard normal."""

    @property
    def generates(self) -> bool:
        """True where there is a generator."""
        return self.synthetic_per_batch > 0

    @property
    def training(self) -> GeneratorTraining:
        """Options of a training of the generator."""
        return GeneratorTraining(prediction_loss)

    @property
    def stackable(self) -> bool:
        return super().stackable and not self.generates  # clients draw images of their own

    @property
    def sends_client_messages(self) -> bool:
        return self.generates

    def concepts(self, state: S, classes: int) -> Tensor:
        """Return what conditions are drawn from at the server [C, M, D]; clients are sent it, or draw the same."""
        return random_concepts(classes, torch.zeros(0))

    def broadcast(self, state: S, ctx: ServerContext) -> S:
        """Return the state without the generator."""
        if not isinstance(state, GeneratorState):
            return state
        nothing = torch.zeros(0)
        return replace(state, generator={}, version=nothing, seen_version_I=nothing)

    def client_message(self, state: S, card: Card) -> Tensors:
        """Return the generator, where it is new to the client."""
        assert isinstance(state, GeneratorState)
        is_new = int(state.version) > max(int(state.seen_version_I[card.client]), 0)
        return prefixed(GENERATOR, state.generator) if is_new else {}

    def peak_state(self, state: S, rounds: int) -> tuple[S, int]:
        if not self.generates or self.generator_every >= rounds:  # the generator is never trained
            return state, 1
        assert isinstance(state, GeneratorState)
        return replace(state, version=torch.ones_like(state.version)), self.generator_every

    def notice(self, rounds: int) -> str:
        if not self.generates or self.generator_every < rounds:
            return super().notice(rounds)
        return (
            f"the generator makes no image in {rounds} rounds: it is first trained after method.generator_every ="
            f" {self.generator_every}"
        )

    def after_round(self, state: S, means: Means, ctx: ServerContext) -> S:
        """Return the state with what clients have seen, and in its rounds with a generator that was trained anew,
        against ``state.weights``; as it is where it has no generator.
        """
        if not isinstance(state, GeneratorState):
            return state
        seen_version_I = state.seen_version_I.clone()
        seen_version_I[list(means.clients)] = state.version
        state = replace(state, seen_version_I=seen_version_I)
        # after the last round nobody would see what it learns
        if not self.generates or ctx.round % self.generator_every or ctx.round == ctx.rounds:
            return state
        concepts_CMD = self.concepts(state, len(ctx.cards[0].count_C))
        generator = retrain(state.generator, state.weights, concepts_CMD, self.concept_conditions, self.training, ctx)
        return replace(state, generator=generator, version=state.version + 1)


class SyntheticTrainer(ClientTrainer[S, U]):
    """Client half whose mini-batches are joined by synthetic images, once the server has trained its generator."""

    keeps: tuple[str, ...] = (CONCEPTS, GENERATOR)
    """Prefixes of what it keeps of its messages."""
    concept_conditions = True
    per_batch = 0
    """Images that join a mini-batch."""

    def __init__(self, ctx: ClientContext[S]) -> None:
        super().__init__(ctx)
        self.kept = {k: v for k, v in ctx.memory.items() if k.startswith(self.keeps)} | ctx.client_message
        self.source = self._source() if any(k.startswith(GENERATOR) for k in self.kept) else None
        if self.source is not None:
            self.replayable = False  # its images are drawn by a generator of the CPU

    def _source(self) -> ImageSource:
        data, concepts_CMD = self.ctx.data, self.kept.get(CONCEPTS)
        if concepts_CMD is None:
            concepts_CMD = random_concepts(data.y_NC.shape[1], data.y_NC)
        return image_source(below(GENERATOR, self.kept), concepts_CMD, self.concept_conditions, data.scaling)

    def active(self, data: ClientData) -> Tensor:
        if self.source is None:
            return super().active(data)
        # synthetic images join every mini-batch, also one without a labeled row
        return torch.ones(len(data), dtype=torch.bool, device=data.y_NC.device)

    def loss(self, batch: Batch) -> Tensor:
        """Return ``rows_loss`` of the rows and cross-entropy of the images, over the number of both."""
        if self.source is None:
            return self.rows_loss(self.model(batch.x), batch)
        x_S, class_S = self.draw()
        logits_BC, logits_SC = self.model(torch.cat([batch.x, x_S])).split([len(batch.x), len(x_S)])
        total = self.rows_loss(logits_BC, batch) * batch.denominator
        return (total + F.cross_entropy(logits_SC, class_S, reduction="sum")) / (batch.denominator + len(class_S))

    def rows_loss(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the rows' losses over ``batch.denominator``."""
        return self.ctx.objective.loss(logits_BC, batch)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw the images that join a mini-batch, and their classes."""
        assert self.source is not None
        return self.source.draw(self.per_batch, self.ctx.rng)

    def memory(self) -> Tensors:
        return super().memory() | self.kept
