"""FedBM's generator at work: what both sides know of it, how the server trains it, what a client draws from it.

Shape suffixes: C classes, M prompts, D width of the concepts, B images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from models.augment import augment
from models.classifier import Classifier
from models.generator import Generator, conditions, diversity, noise, normalisations, watched
from pipeline.blocks import weights_of
from pipeline.contract import ServerSide, Tensors
from pipeline.optimizers import Adam
from tasks.contract import InputError
from tasks.scaling import Scaling

RowLoss = Callable[[Classifier, Tensor, Tensor], Tensor]
"""(classifier, images, classes [B]) -> loss of each image [B]."""
SHAPE = "shape"
"""Of the images, beside the generator's weights."""
BETAS = (0.5, 0.999)
"""Of the generator's Adam (FedBM's reference code)."""


@dataclass(frozen=True)
class Source:
    """Where images come from. concepts_CMD: what conditions are drawn from; named: false draws them from a standard
    normal; scaling: how images of the data become a network's input.
    """

    generator: Generator
    concepts_CMD: Tensor
    named: bool
    scaling: Scaling

    def labels(self, count: int, rng: torch.Generator) -> Tensor:
        """Classes, uniform and independent: int64 [B]."""
        class_B = torch.randint(len(self.concepts_CMD), (count,), generator=rng, device=rng.device)
        return class_B.to(self.concepts_CMD.device)

    def conditions(self, class_B: Tensor, rng: torch.Generator) -> Tensor:
        """One draw for each class of the batch [B, D]."""
        if self.named:
            return conditions(self.concepts_CMD, class_B, rng)
        return noise(self.concepts_CMD.shape[2], class_B, rng, self.concepts_CMD)

    def prepared(self, x_B: Tensor, rng: torch.Generator) -> Tensor:
        """Images in [0, 1] as a classifier takes them: cropped, flipped, normalised. The room of the crop is the
        reference's share of the side, 4 of 128 pixels, and at least one: a black frame of 4 around 28 pixels would tell
        a generated image from a real one.
        """
        return self.scaling.unit(augment(x_B, rng, max(1, x_B.shape[-1] // 32)))

    @torch.no_grad()
    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images as a classifier takes them, and their classes. The generator must be in evaluation mode."""
        class_B = self.labels(count, rng)
        return self.prepared(self.generator(self.conditions(class_B, rng)), rng), class_B


def first_generator(side: ServerSide, measures: bool) -> Tensors:
    """The generator before its first training: its weights, and the shape of its images. measures: whether it will be
    compared with BatchNorm's running statistics. InputError where it cannot be.
    """
    spec, concepts_CMD = side.spec, side.concepts_CMD
    assert spec is not None
    assert concepts_CMD is not None
    if spec.kind != "image":
        raise InputError(
            f"fedbm's generator makes images, the input is of kind {spec.kind!r}: set method.cgde to False"
        )
    if measures and not normalisations(side.model):
        raise InputError(
            "method.lambda_dis compares with BatchNorm's running statistics, and this network has none: set it to 0, or"
            " model.norm to 'batch' (residual networks)"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(side.rng.get_state())
            generator = Generator(concepts_CMD.shape[2], spec.shape)
    except ValueError as error:
        raise InputError(f"fedbm: {error}") from error
    return weights_of(generator) | {SHAPE: torch.tensor(spec.shape)}


def source_of(values: Tensors, concepts_CMD: Tensor, named: bool, scaling: Scaling) -> Source:
    """The generator of ``first_generator``'s tensors, in evaluation mode, on their device."""
    generator = Generator(concepts_CMD.shape[2], tuple(values[SHAPE].tolist()))
    generator.load_state_dict({k: v for k, v in values.items() if k != SHAPE})
    device = concepts_CMD.device
    return Source(generator.to(device).eval(), concepts_CMD, named, scaling.to(device))


@dataclass(frozen=True)
class Lesson:
    """How the generator is trained. loss: of images that the classifier sees; div, dis: weights of L_div and L_dis."""

    loss: RowLoss
    div: float
    dis: float
    steps: int
    batch: int
    lr: float


def taught(source: Source, classifier: Classifier, lesson: Lesson, rng: torch.Generator) -> list[float]:
    """Train the generator in place against a classifier that stays as it is (FedBM, eq. 6 to 8); the loss of every
    step. Adam is a new one each time; weights and running statistics go on from where they were.
    """
    classifier.eval().requires_grad_(False)
    source.generator.train()
    adam = Adam(source.generator.parameters(), lr=lesson.lr, betas=BETAS)
    losses = []
    for _ in range(lesson.steps):
        class_B = source.labels(lesson.batch, rng)
        z_BD = source.conditions(class_B, rng)
        x_B = source.generator(z_BD)
        with watched(classifier.encoder) as seen:
            loss = lesson.loss(classifier, source.prepared(x_B, rng), class_B).mean()
        if lesson.dis:
            loss = loss + lesson.dis * seen.total()
        if lesson.div:
            loss = loss + lesson.div * diversity(z_BD, x_B, class_B, len(source.concepts_CMD))
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(float(loss.detach()))
    source.generator.eval()
    classifier.requires_grad_(True)
    return losses


def retrained(
    values: Tensors, weights: Tensors, concepts_CMD: Tensor, named: bool, lesson: Lesson, side: ServerSide
) -> Tensors:
    """The generator after one more training against the classifier with ``weights``."""
    classifier = side.workspace
    assert classifier is not None
    assert side.spec is not None
    classifier.load_state_dict(weights)
    device = next(classifier.parameters()).device
    source = source_of(
        {k: v.to(device) for k, v in values.items()}, concepts_CMD.to(device), named, side.spec.scaling()
    )
    taught(source, classifier, lesson, side.rng)
    return values | {name: value.cpu() for name, value in weights_of(source.generator).items()}
