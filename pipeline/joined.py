"""FedBM's client: mini-batches of a client's rows, joined with images that the server's generator makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from models.classifier import Classifier
from models.heads import ConceptHead
from pipeline.blocks import weights_of
from pipeline.contract import ClientSide, Global, Local, Tensors, Update
from pipeline.generation import Source, source_of
from tasks.contract import Batch, ClientData

FROZEN = ("head.mean", "head.variance", "head.tau")
Frozen = Literal["distribution", "mean", "random"]
"""Where the frozen classifier comes from."""
CONCEPTS, GENERATOR = "concepts", "generator."


@dataclass(frozen=True)
class BMGlobal(Global):
    """weights: the classifier's, frozen ones included; concepts_CMD: of the language model; generator: its weights;
    version: how often it was trained; has_I: 1 + the version that a client has, 0 where it has nothing yet.
    """

    concepts_CMD: Tensor
    generator: Tensors
    version: Tensor
    has_I: Tensor


@dataclass(frozen=True)
class Part:
    """What a client needs of the method. generated: images that join a mini-batch; named: whether their conditions are
    drawn from the concept embeddings.
    """

    generated: int
    named: bool


def row_loss(model: Classifier, x: Tensor, class_B: Tensor) -> Tensor:
    """Loss of every row [B] against the frozen classifier (its bound, eq. 4), or a linear one."""
    if isinstance(model.head, ConceptHead):
        return model.head.bound(model.encoder(x), class_B)
    return F.cross_entropy(model(x), class_B, reduction="none")


class BMLocal(Local[BMGlobal, Update]):
    """Trains on its mini-batches joined with generated images, once the server has trained its generator."""

    def __init__(self, side: ClientSide[BMGlobal], part: Part) -> None:
        self.part = part
        own = {k: v for k, v in side.memory.items() if k.startswith((CONCEPTS, GENERATOR, *FROZEN))}
        self.kept = own | side.letter
        for name in FROZEN:
            if name in self.kept:
                side.model.get_buffer(name).copy_(self.kept[name])
        super().__init__(side)
        self.source = self._source() if any(k.startswith(GENERATOR) for k in self.kept) else None

    def _source(self) -> Source:
        values = {k.removeprefix(GENERATOR): v for k, v in self.kept.items() if k.startswith(GENERATOR)}
        return source_of(values, self.kept[CONCEPTS], self.part.named, self.side.data.scaling)

    def active(self, data: ClientData) -> Tensor:
        if self.source is None:
            return super().active(data)
        # generated images join every mini-batch, also one without a labelled row
        return torch.ones(len(data), dtype=torch.bool, device=data.y_NC.device)

    def loss(self, batch: Batch) -> Tensor:
        if self.source is None and not isinstance(self.model.head, ConceptHead):
            return super().loss(batch)  # neither of the method's halves: FedAvg's, bit for bit
        x, class_B, weight_B = batch.x, batch.y_BC.argmax(-1), batch.weight_BC.sum(-1)
        count = batch.denominator
        if self.source is not None:
            made, of_B = self.source.draw(self.part.generated, self.side.rng)
            x, class_B = torch.cat([x, made]), torch.cat([class_B, of_B])
            weight_B, count = torch.cat([weight_B, torch.ones_like(of_B, dtype=weight_B.dtype)]), count + len(of_B)
        return (weight_B * row_loss(self.model, x, class_B)).sum() / count

    def update(self) -> Update:
        return Update(trained(weights_of(self.model)))

    def memory(self) -> Tensors:
        return super().memory() | self.kept


def trained(weights: Tensors) -> Tensors:
    """All but what never changes."""
    return {name: value for name, value in weights.items() if name not in FROZEN}


def frozen(concepts_CMD: Tensor, kind: Frozen, tau: float, rng: torch.Generator) -> Tensors:
    """What never changes of the classifier: mean [C, D] and variance [C, D] of the concepts' prompts, and tau. ``mean``
    has no variances, ``random`` unit rows that say nothing.
    """
    mean_CD, variance_CD = concepts_CMD.mean(1), torch.zeros_like(concepts_CMD[:, 0])
    if kind == "random":
        mean_CD = F.normalize(torch.randn(mean_CD.shape, generator=rng), dim=-1)
    if kind == "distribution" and concepts_CMD.shape[1] > 1:
        variance_CD = concepts_CMD.var(1)
    return dict(zip(FROZEN, (mean_CD, variance_CD, torch.tensor(tau)), strict=True))
