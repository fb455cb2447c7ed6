"""FedBM's generator: its training at the server, and its images at the clients.

Shape suffixes: C classes, M prompts, D width of the concepts, B images, S synthetic images, I clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.models.augment import augment
from anchorfl.models.classifier import Classifier
from anchorfl.models.generator import Generator, batch_norm_layers, conditions, diversity, noise, watch_batch_norm
from anchorfl.models.heads import ConceptHead
from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientTrainer,
    ServerContext,
    ServerState,
    Tensors,
    Update,
)
from anchorfl.pipeline.algorithm.optimizers import Adam
from anchorfl.pipeline.algorithm.parameters import below, weights_of
from anchorfl.tasks.contract import Batch, ClientData
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.scaling import Scaling

RowLoss = Callable[[Classifier, Tensor, Tensor], Tensor]
"""(classifier, images, classes [B]) -> loss of each image [B]."""
SHAPE = "shape"
"""Name of the images' shape beside the generator's weights."""
CONCEPTS, GENERATOR = "concepts", "generator."
"""Name of the concepts, and prefix of the generator, in a client's message and memory."""
FROZEN = ("head.mean", "head.variance", "head.tau")
"""Names of the frozen classifier in the model's weights, and in a client's message and memory."""
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
    if spec.kind != "image":
        raise InputError(
            f"fedbm's generator makes images, the input is of kind {spec.kind!r}: set method.cgde to False"
        )
    if measures and not batch_norm_layers(ctx.model):
        raise InputError(
            "method.lambda_dis compares with BatchNorm's running statistics, and this network has none: set it to 0, or"
            " model.norm to 'batch' (residual networks)"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(ctx.rng.get_state())
            generator = Generator(width, spec.shape)
    except ValueError as error:
        raise InputError(f"fedbm: {error}") from error
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
    div: float
    """Weight of L_div, >= 0."""
    dis: float
    """Weight of L_dis, >= 0."""
    steps: int
    """Steps of Adam."""
    batch: int
    """Images of a step."""
    lr: float
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


FrozenKind = Literal["distribution", "mean", "random"]
"""Origin of the frozen classifier: mean and variance of the concepts, their mean alone, or random unit rows."""


@dataclass(frozen=True)
class BMState(ServerState):
    """The server's state; ``weights``: the classifier's, frozen ones included."""

    concepts_CMD: Tensor
    """Concepts of the classes, by the language model; empty where the method does without."""
    generator: Tensors
    """Weights of the generator, and the shape of its images; empty without one."""
    version: Tensor
    """int64, no dimension: trainings of the generator so far."""
    seen_version_I: Tensor
    """int64: version of the generator that a client was last sent, 0: none yet; -1: the client was sent nothing."""


@dataclass(frozen=True)
class SyntheticOptions:
    """Options of the synthetic images at a client."""

    per_batch: int
    """Images that join a mini-batch."""
    concept_conditions: bool
    """Draw their conditions from the concept embeddings; false: from a standard normal."""


def row_loss(model: Classifier, x: Tensor, class_B: Tensor) -> Tensor:
    """Return the loss of every row [B] against the frozen classifier (its bound, eq. 4), or a linear one."""
    if isinstance(model.head, ConceptHead):
        return model.head.bound(model.encoder(x), class_B)
    return F.cross_entropy(model(x), class_B, reduction="none")


def prediction_loss(model: Classifier, x: Tensor, class_B: Tensor) -> Tensor:
    """Return the cross-entropy of every row [B] of the model's prediction, whatever its head (eq. 6)."""
    return F.cross_entropy(model(x), class_B, reduction="none")


class BMTrainer(ClientTrainer[BMState, Update]):
    """A client whose mini-batches are joined by synthetic images, once the server has trained its generator."""

    def __init__(self, ctx: ClientContext[BMState], synthetic: SyntheticOptions) -> None:
        self.synthetic = synthetic
        before = {k: v for k, v in ctx.memory.items() if k.startswith((CONCEPTS, GENERATOR, *FROZEN))}
        self.kept = before | ctx.client_message
        for name in FROZEN:
            if name in self.kept:
                ctx.model.get_buffer(name).copy_(self.kept[name])
        super().__init__(ctx)
        self.source = self._source() if any(k.startswith(GENERATOR) for k in self.kept) else None
        self.replayable = self.source is None  # its images are drawn by a generator of the CPU

    def _source(self) -> ImageSource:
        generator, concepts_CMD = below(GENERATOR, self.kept), self.kept[CONCEPTS]
        return image_source(generator, concepts_CMD, self.synthetic.concept_conditions, self.ctx.data.scaling)

    def active(self, data: ClientData) -> Tensor:
        if self.source is None:
            return super().active(data)
        # synthetic images join every mini-batch, also one without a labeled row
        return torch.ones(len(data), dtype=torch.bool, device=data.y_NC.device)

    def loss(self, batch: Batch) -> Tensor:
        if self.source is None and not isinstance(self.model.head, ConceptHead):
            return super().loss(batch)  # neither of the method's halves: FedAvg's, bit for bit
        x, class_B, weight_B = batch.x, batch.y_BC.argmax(-1), batch.weight_BC.sum(-1)
        count = batch.denominator
        if self.source is not None:
            x_synthetic, class_S = self.source.draw(self.synthetic.per_batch, self.ctx.rng)
            x, class_B = torch.cat([x, x_synthetic]), torch.cat([class_B, class_S])
            weight_B = torch.cat([weight_B, torch.ones_like(class_S, dtype=weight_B.dtype)])
            count = count + len(class_S)
        return (weight_B * row_loss(self.model, x, class_B)).sum() / count

    def update(self) -> Update:
        return Update(without_frozen(weights_of(self.model)))

    def memory(self) -> Tensors:
        return super().memory() | self.kept


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
