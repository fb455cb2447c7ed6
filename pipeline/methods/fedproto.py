"""FedProto (Tan et al., AAAI 2022): clients share the mean representations of their classes, and no weights.

Facts, and where paper and codes differ: docs/methods/fedproto.md. Suffixes: B rows of a
micro-batch, C classes, K classes that the client has rows of, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.algorithm.class_means import NAME as MEANS
from anchorfl.pipeline.algorithm.class_means import class_means, means_term, with_means
from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientResult,
    ClientTrainer,
    Method,
    ServerContext,
    ServerState,
    Supports,
    Tensors,
    Update,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means
from anchorfl.pipeline.algorithm.parameters import PERSONAL, below, prefixed, weights_of
from anchorfl.tasks.contract import Batch


@dataclass(frozen=True)
class ProtoState(ServerState):
    """The server's state; ``weights``: none."""

    rows_CD: Tensor
    """Prototype of every class."""
    held_C: Tensor
    """bool: classes that have one; the others have zeros."""


@dataclass(frozen=True)
class ProtoUpdate(Update):
    """A client's update; ``weights``: none."""

    rows_KD: Tensor
    """Mean representation of the client's rows of a class."""
    held_C: Tensor
    """bool: the classes of ``rows_KD``, in order."""


class Nearest(nn.Module):
    """A head without parameters: minus the mean squared distance to each prototype, less the part all share."""

    def __init__(self, state: ProtoState) -> None:
        super().__init__()
        self.state = state

    def forward(self, z_BD: Tensor) -> Tensor:
        rows_CD = self.state.rows_CD
        logits_BC: Tensor = (2 * z_BD @ rows_CD.T - rows_CD.square().sum(-1)) / rows_CD.shape[1]
        # a class without a prototype comes last
        return logits_BC.masked_fill(~self.state.held_C, torch.finfo(logits_BC.dtype).min)


class ProtoTrainer(ClientTrainer[ProtoState, ProtoUpdate]):
    replayable = True

    def __init__(self, ctx: ClientContext[ProtoState], lambda_: float) -> None:
        super().__init__(ctx)
        self.lambda_ = lambda_
        self.model.load_state_dict(below(PERSONAL, ctx.memory))

    def loss(self, batch: Batch) -> Tensor:
        if not self.lambda_:
            return super().loss(batch)
        z_BD: Tensor = self.model.encoder(batch.x)
        rows_CD = self.ctx.state.rows_CD
        class_B = batch.y_BC.argmax(-1)
        counts_B = (batch.weight_BC != 0).any(-1) & self.ctx.state.held_C[class_B]
        gap_B = (z_BD - rows_CD[class_B]).square().mean(-1) * counts_B
        return self.ctx.objective.loss(self.model.head(z_BD), batch) + self.lambda_ * gap_B.sum() / batch.denominator

    def update(self) -> ProtoUpdate:
        return ProtoUpdate({}, *class_means(self.ctx, self.model))

    def memory(self) -> Tensors:
        return super().memory() | prefixed(PERSONAL, weights_of(self.model))


@dataclass(frozen=True, kw_only=True)
class FedProto(Method[ProtoState, ProtoUpdate]):
    """Client: lambda_ times the mean squared distance of a row's representation to its class's prototype is added to
    the loss. Server: a prototype is the mean over the clients that have the class. There is no global model.
    """

    name = "fedproto"
    averaged = ("rows_CD",)
    evaluate_on = "clients"
    # no tensor is sent whole: every prototype is of the clients that have its class
    supports = Supports(kinds=("single",), robust=())

    lambda_: float = 1.0
    """Weight of the distance, >= 0; 0: clients train alone (the authors' code: 1, on CIFAR-10 0.1)."""
    inference: Literal["classifier", "prototype"] = "classifier"
    """Classifier of a client's scores: its own, or the nearest prototype (paper)."""

    def __post_init__(self) -> None:
        if not self.lambda_ >= 0:
            raise ValueError(f"method.lambda_ = {self.lambda_}: must be at least 0")

    def begin(self, ctx: ServerContext) -> ProtoState:
        zeros_CD = torch.zeros_like(ctx.model.get_parameter("head.weight"))
        return ProtoState({}, zeros_CD, torch.zeros(len(zeros_CD), dtype=torch.bool))

    def first_memory(self, model: Classifier) -> Tensors:
        return prefixed(PERSONAL, weights_of(model))

    def personal_model(self, model: Classifier, sent: ProtoState, memory: Tensors) -> Classifier:
        model.load_state_dict(below(PERSONAL, memory))
        return model if self.inference == "classifier" else Classifier(model.encoder, Nearest(sent), model.masks)

    def trainer(self, ctx: ClientContext[ProtoState]) -> ProtoTrainer:
        return ProtoTrainer(ctx, self.lambda_)

    def contribution(self, result: ClientResult[ProtoUpdate]) -> Contribution:
        return Contribution({MEANS: means_term(result.update.rows_KD, result.update.held_C)})

    def merge(self, state: ProtoState, means: Means, ctx: ServerContext) -> ProtoState:
        return ProtoState({}, *with_means(state.rows_CD, state.held_C, means))
