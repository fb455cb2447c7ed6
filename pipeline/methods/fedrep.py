"""FedRep (Collins et al., ICML 2021): clients share a body, and each has a head of its own.

The body is the encoder with its buffers, the head what turns representations into logits. Facts, and where paper and
codes differ: docs/methods/fedrep.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.algorithm.aggregation import Weighting
from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientResult,
    ClientTrainer,
    Method,
    ServerContext,
    ServerState,
    Tensors,
    Update,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.optimizers import make
from anchorfl.pipeline.algorithm.parameters import PERSONAL, below, prefixed, weights_of
from anchorfl.tasks.contract import Batch

HEAD = "head."
"""Prefix of the head in the model's weights."""


@dataclass(frozen=True)
class RepUpdate(Update):
    """A client's update; ``weights``: the body."""

    head: Tensors
    """The head, for the server's score alone: never sent on, and empty where clients are scored."""


class RepTrainer(ClientTrainer[ServerState, RepUpdate]):
    """A client that trains its head on a fixed body, then the body under the fixed head. Each has an optimizer of its
    own, so that neither momentum nor weight decay moves the fixed one.
    """

    replayable = True
    phase: str

    def __init__(self, ctx: ClientContext[ServerState], method: FedRep) -> None:
        super().__init__(ctx)
        self.method = method
        self.phase = "head"
        self.model.load_state_dict(ctx.state.weights | below(PERSONAL, ctx.memory))

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        parts = {"head": self.model.head, "body": self.model.encoder}
        return {name: make(self.ctx.optimizer, part.parameters()) for name, part in parts.items()}

    def epochs(self, count: int) -> Iterator[str]:
        for phase, epochs in (("head", self.method.head_epochs), ("body", count)):
            self.phase = phase
            self.model.head.requires_grad_(phase == "head")
            self.model.encoder.requires_grad_(phase == "body")
            yield from [phase] * epochs

    def step(self, micro_batches: Sequence[Batch]) -> Tensor:
        loss = self.gradients(micro_batches)
        self.optimizers[self.phase].step()
        return loss

    def update(self) -> RepUpdate:
        body, head = split_head(weights_of(self.model))
        return RepUpdate(body, head if self.method.evaluate_on == "server" else {})

    def memory(self) -> Tensors:
        return super().memory() | prefixed(PERSONAL, split_head(weights_of(self.model))[1])


@dataclass(frozen=True, kw_only=True)
class FedRep(Method[ServerState, RepUpdate]):
    """Client: head_epochs epochs of its head, then federation.epochs of the body (Algorithm 1), which alone is shared.
    Server: FedAvg's mean of the bodies.
    """

    name = "fedrep"

    head_epochs: int = 10
    """Local epochs of the head, >= 0, before those of the body, which are federation.epochs (the authors' code: 10,
    then 1 or 5)."""
    weighting: Weighting = "samples"
    """Weight of a client in the mean: its number of samples, or 1 (paper)."""
    evaluate_on: Literal["server", "clients"] = "server"
    """``server``: the mean of the bodies with the mean of the participants' heads, which travel for that alone;
    ``clients``: the mean over all clients of the scores of body and own head, which then never leaves the client, and
    there is no model to save."""

    @property
    def phases(self) -> str:
        return f"method.head_epochs = {self.head_epochs}" if self.head_epochs else ""

    def __post_init__(self) -> None:
        if self.head_epochs < 0:
            raise ValueError(f"method.head_epochs = {self.head_epochs}: must be at least 0")

    def begin(self, ctx: ServerContext) -> ServerState:
        weights = weights_of(ctx.model)
        return ServerState(weights if self.evaluate_on == "server" else split_head(weights)[0])

    def broadcast(self, state: ServerState, ctx: ServerContext) -> ServerState:
        return ServerState(split_head(state.weights)[0])

    def first_memory(self, model: Classifier) -> Tensors:
        return prefixed(PERSONAL, split_head(weights_of(model))[1])

    def personal_model(self, model: Classifier, sent: ServerState, memory: Tensors) -> Classifier:
        model.load_state_dict(sent.weights | below(PERSONAL, memory))
        return model

    def trainer(self, ctx: ClientContext[ServerState]) -> RepTrainer:
        return RepTrainer(ctx, self)

    def contribution(self, result: ClientResult[RepUpdate]) -> Contribution:
        update = result.update
        # the body again: its tensors were held against those that were sent, and a head's name must not replace one
        weights = update.weights | update.head | update.weights
        return Contribution({"weights": Term(weights, self.client_weight(result.card))})

    def merge(self, state: ServerState, means: Means, ctx: ServerContext) -> ServerState:
        return ServerState(means["weights"])


def split_head(weights: Tensors) -> tuple[Tensors, Tensors]:
    """Return body and head."""
    head = {name: value for name, value in weights.items() if name.startswith(HEAD)}
    return {name: value for name, value in weights.items() if name not in head}, head
