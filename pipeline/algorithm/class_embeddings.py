"""Class embeddings at one client per class: the common part of FedAwS, FedALC and their baselines.

A client has rows of one class and trains the encoder theta and that class's unit row with the one term that it can
compute (arXiv 2404.15598, eq. 14): ``max(0, margin - cos(g_theta(x), w_y))^2``. The server takes the mean of theta,
stacks the rows, and moves them, method by method. A client never sees the row of another class.

Shape suffixes: B rows of data, P pairs of a row of data and one of its classes, C classes, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfl.models.heads import unit
from anchorfl.pipeline.algorithm.aggregation import Weighting
from anchorfl.pipeline.algorithm.contract import (
    BatchedRound,
    ClientContext,
    ClientResult,
    ClientTrainer,
    HeadSpec,
    Method,
    ServerContext,
    ServerState,
    Supports,
    Tensors,
    Update,
)
from anchorfl.pipeline.algorithm.cooccurrence import LabelCooccurrence
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.optimizers import SGD, Adam, make, restore, state_of
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.algorithm.spreadout import Regularizer, gradient, nearest_rows, slope
from anchorfl.tasks.contract import Batch, Card

CLASS_ROWS = "head.rows"
"""Name of the class rows in the model's weights."""
THETA = "theta"
"""Prefix of the state of theta's optimizers: a client's, and the server's."""
ROWS = "rows"
"""Prefix of the state of the server's optimizer of rows."""
ROW = "row"
"""Name of one row: in the message to its client, in the client's memory and among its optimizers."""


@dataclass(frozen=True)
class RowsState(ServerState):
    """The server's state; ``weights``: theta and all rows. Clients get theta alone."""

    moments: Tensors
    """State of the server's optimizers: of theta, and of the rows."""
    sent_C: Tensor
    """bool: classes whose client has its row, where rows never change."""
    cooccurrence: LabelCooccurrence
    """Label counts out of the clients' messages before round 1; empty where the method collects none."""


@dataclass(frozen=True)
class RowUpdate(Update):
    """A client's update; ``weights``: theta."""

    row_D: Tensor
    """The client's row; empty where rows are fixed."""


def class_of(card: Card) -> int:
    """Return the one class that a client identifies."""
    return int(card.identified_C.nonzero())


def positive_loss(z_PD: Tensor, row_PD: Tensor, margin: float, parts: int) -> Tensor:
    """Return ``max(0, margin - cos)^2`` of every pair [P], over all parts (one, except FedMLH). Rows are unit."""
    product_PD = unit(z_PD, parts) * row_PD
    cosine_PR = product_PD.view(len(product_PD), parts, -1).sum(-1)
    return F.relu(margin - cosine_PR).square().sum(-1)


class RowTrainer(ClientTrainer[RowsState, RowUpdate]):
    """A client that trains theta and one row. The row comes in every round, or once where rows are fixed."""

    replayable = True

    def __init__(self, ctx: ClientContext[RowsState], method: OneClass) -> None:
        self.method = method
        self.fixed = not method.class_embedding_lr
        row_D = ctx.client_message.get(ROW, ctx.memory.get(ROW))
        if row_D is None:
            raise ValueError("the client was sent no row of its class")
        self.row_D = nn.Parameter(row_D.clone(), requires_grad=not self.fixed)
        super().__init__(ctx)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        # without the rows of the head, which this client is never sent
        theta = make(self.ctx.optimizer, [p for name, p in self.model.named_parameters() if name != CLASS_ROWS])
        if self.fixed:
            return {THETA: theta}
        return {THETA: theta, ROW: SGD([self.row_D], lr=self.method.row_rate(self.ctx.round))}

    def loss(self, batch: Batch) -> Tensor:
        z_BD = self.model.encoder(batch.x)
        loss_B = positive_loss(z_BD, self.row_D.expand(len(z_BD), -1), self.method.margin, self.method.head.parts)
        return loss_B.sum() / batch.denominator

    def step(self, micro_batches: Sequence[Batch]) -> Tensor:
        self.row_D.grad = None
        loss = super().step(micro_batches)
        if not self.fixed:
            with torch.no_grad():
                self.row_D.copy_(self.method.unit(self.row_D))
        return loss

    def update(self) -> RowUpdate:
        row_D = self.row_D.detach()
        return RowUpdate(theta_of(weights_of(self.model)), row_D.new_zeros(0) if self.fixed else row_D.clone())

    def memory(self) -> Tensors:
        return super().memory() | ({ROW: self.row_D.detach().clone()} if self.fixed else {})


@dataclass(frozen=True, kw_only=True)
class OneClass(Method[RowsState, RowUpdate]):
    """A method for one client per class, whose server leaves the rows as the clients sent them; a subclass may move
    them (``update_class_rows``).
    """

    supports = Supports(one_class=True, stack=False)  # thousands of them are one pass (``batched_round``)

    margin: float = 0.9
    """Cosine above which a row has no loss (FedALC, eq. 14)."""
    weighting: Weighting = "uniform"
    """Weight of a client in the mean of theta: 1 / C (FedALC, Algorithm 1, line 19), or its rows (eq. 5)."""
    class_embedding_lr: float = 0.1
    """Rate of a client's step on its row (FedALC: the .1 of theta); 0: rows are fixed, and sent once."""
    server: Literal["average", "adam"] = "average"
    """The new theta: the mean, or a step of bias-corrected Adam towards it (Reddi et al., ICLR 2021)."""
    server_lr: float = 0.001
    """Rate of the server's Adam."""
    server_lr_decay: float = 1.0
    """Factor on ``server_lr`` after every round, in (0, 1]."""
    class_embedding_lr_decay: float = 1.0
    """Factor on ``class_embedding_lr`` and on the regularizer's step after every round, in (0, 1]: rows that go on
    moving while theta comes to rest leave it behind."""
    server_eps: float = 1e-8
    """Added to the root of its second moment, in units of a client's step."""

    def __post_init__(self) -> None:
        if not 0 < self.margin <= 1:
            raise ValueError(f"method.margin = {self.margin}: must be in (0, 1]")
        if not self.class_embedding_lr >= 0 or not self.server_lr > 0 or not self.server_eps > 0:
            raise ValueError("method: class_embedding_lr must be at least 0, server_lr and server_eps above 0")
        for name in ("server_lr_decay", "class_embedding_lr_decay"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"method.{name} = {getattr(self, name)}: must be in (0, 1]")

    def lr_factor(self, round_: int) -> float:
        """Return the factor on the rows' rates in a round: ``class_embedding_lr_decay ** (round - 1)``."""
        return self.class_embedding_lr_decay ** max(0, round_ - 1)

    def row_rate(self, round_: int) -> float:
        """Return the rate of a client's step on its row in a round."""
        return self.class_embedding_lr * self.lr_factor(round_)

    def update_class_rows(self, rows_CD: Tensor, state: RowsState, ctx: ServerContext) -> tuple[Tensor, Tensors]:
        """Return the rows after a round, from those that the clients sent, and the moments of the server's optimizer
        of rows: the regularizer's step. Without one: the rows as they are.
        """
        return rows_CD, {}

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="cosine")

    @property
    def sends_own(self) -> bool:
        """True where rows of the head are trained: a client's row is no sum with others."""
        return self.class_embedding_lr > 0

    def first_rows(self, rows_CD: Tensor, cooccurrence: LabelCooccurrence, ctx: ServerContext) -> Tensor:
        """Return the rows before round 1, from random unit ones."""
        return rows_CD

    def initial_statistics(self, ctx: ServerContext) -> LabelCooccurrence:
        """Return what is kept of the clients' messages before round 1."""
        return LabelCooccurrence.empty()

    def begin(self, ctx: ServerContext) -> RowsState:
        weights, cooccurrence = weights_of(ctx.model), self.initial_statistics(ctx)
        weights[CLASS_ROWS] = self.first_rows(weights[CLASS_ROWS], cooccurrence, ctx)
        sent_C = torch.zeros(len(weights[CLASS_ROWS]), dtype=torch.bool)
        state = RowsState(weights, {}, sent_C, cooccurrence)
        return replace(state, moments=self._first_moments(state, ctx))

    def broadcast(self, state: RowsState, ctx: ServerContext) -> RowsState:
        return RowsState(theta_of(state.weights), {}, torch.zeros(0, dtype=torch.bool), LabelCooccurrence.empty())

    def client_message(self, state: RowsState, card: Card) -> Tensors:
        c = class_of(card)
        return {} if bool(state.sent_C[c]) else {ROW: state.weights[CLASS_ROWS][c].clone()}

    def client_message_bytes(self, state: RowsState, class_I: Tensor) -> int:
        """Return the bytes of the messages to these classes' clients, without making thousands of them."""
        row_D = state.weights[CLASS_ROWS][0]
        return int((~state.sent_C[class_I]).sum()) * row_D.numel() * row_D.element_size()

    def trainer(self, ctx: ClientContext[RowsState]) -> RowTrainer:
        return RowTrainer(ctx, self)

    def contribution(self, result: ClientResult[RowUpdate]) -> Contribution:
        own = {ROW: result.update.row_D} if self.sends_own else {}
        return Contribution({"weights": Term(result.update.weights, self.client_weight(result.card))}, own)

    def merge(self, state: RowsState, means: Means, ctx: ServerContext) -> RowsState:
        answered_C, rows_CD = torch.zeros_like(state.sent_C), state.weights[CLASS_ROWS].clone()
        for client in means.clients:
            class_ = class_of(ctx.cards[client])
            answered_C[class_] = True
            if self.class_embedding_lr:
                rows_CD[class_] = means.own[client][ROW]
        return self.finish_round(state, means["weights"] | {CLASS_ROWS: rows_CD}, answered_C, ctx)

    def batched_round(self) -> BatchedRound[RowsState]:
        return BatchedRound(
            self._pair_loss, self.client_weights, self.row_rate, self.unit, self.client_message_bytes, self.finish_round
        )

    def finish_round(self, state: RowsState, weights: Tensors, answered_C: Tensor, ctx: ServerContext) -> RowsState:
        """Return the state after a round, from the mean of theta and the rows that came back."""
        theta, moments = self._server_step(state, theta_of(weights), ctx)
        rows_CD, moments_of_rows = self.update_class_rows(weights[CLASS_ROWS], state, ctx)
        sent_C = state.sent_C if self.class_embedding_lr else state.sent_C | answered_C
        return replace(state, weights=theta | {CLASS_ROWS: rows_CD}, moments=moments | moments_of_rows, sent_C=sent_C)

    def _pair_loss(self, z_PD: Tensor, row_PD: Tensor) -> Tensor:
        return positive_loss(z_PD, row_PD, self.margin, self.head.parts)

    def unit(self, rows_CD: Tensor) -> Tensor:
        """Return rows brought back to length 1."""
        return unit(rows_CD, self.head.parts)

    def _server_step(self, state: RowsState, mean: Tensors, ctx: ServerContext) -> tuple[Tensors, Tensors]:
        """Return theta and the moments after a round, from the mean of the clients' theta."""
        if self.server == "average":
            return mean, state.moments
        names = [name for name, _ in ctx.model.named_parameters() if name != CLASS_ROWS]
        before = {name: nn.Parameter(state.weights[name].clone()) for name in names}
        for name, p in before.items():
            p.grad = state.weights[name] - mean[name]
        rate = self.server_lr * self.server_lr_decay ** max(0, ctx.round - 1)
        adam = Adam(before.values(), lr=rate, eps=self.server_eps)
        restore(adam, THETA, state.moments)
        adam.step()
        return mean | {name: p.detach() for name, p in before.items()}, state_of(adam, THETA)

    def _first_moments(self, state: RowsState, ctx: ServerContext) -> Tensors:
        """Return moments of zero: a state has the same tensors in every round."""
        _, moments = self._server_step(state, theta_of(state.weights), ctx)
        return {name: torch.zeros_like(value) for name, value in moments.items()}


@dataclass(frozen=True, kw_only=True)
class Spreadout(OneClass):
    """A method whose server moves every row and its K nearest apart, by one step per round."""

    lambda_: float = 10.0
    """Weight of the regularizer, >= 0; 0 is FedAvg on positive labels."""
    eta_s: float = 1e-4
    """Step of the server, which lambda_ multiplies (FedALC, section V: 1e-4)."""
    neighbours: int = 5
    """K: nearest rows that are pushed (FedALC: 5 for Bibtex, 10 for EURLex-4K, 50 for the larger sets)."""
    regularizer: Regularizer = "neg_d2"
    """Term of a pair: ``neg_d2``: -d^2 (FedAwS, eq. 7); ``hinge_adaptive``: max(0, nu - d)^2, nu the distance of the
    (K+1)-th nearest (FedALC, eq. 11); ``hinge_const``: nu as given (FedAwS, eq. 6)."""
    nu: float = 1.0
    """Distance beyond which ``hinge_const`` does not push, in (0, 2]."""
    spread_optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer of the server's step on rows. ``adam``: at the rate ``eta_s``, which lambda_ does not change."""
    spread_steps: int = 1
    """Steps into which a round's is divided, each at its part of the rate; the neighbours are found before each."""
    spread_cap: float = 0.0
    """Largest length of a row's change in a step, >= 0; 0: no bound. Rows have length 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.lambda_ >= 0 and self.eta_s > 0):
            raise ValueError("method: lambda_ must be at least 0, eta_s above 0")
        if self.lambda_ and not self.class_embedding_lr:
            raise ValueError(
                f"method.class_embedding_lr = 0 fixes class rows, and method.lambda_ = {self.lambda_:g} moves them: set"
                " method.lambda_ to 0, too"
            )
        if self.neighbours < 1 or not 0 < self.nu <= 2:
            raise ValueError("method: neighbours must be at least 1, nu in (0, 2]")
        if self.spread_steps < 1 or not self.spread_cap >= 0:
            raise ValueError("method: spread_steps must be at least 1, spread_cap at least 0")

    def pair_weights(self, index_CK: Tensor, cooccurrence: LabelCooccurrence) -> Tensor:
        """Return the weight of every pair, [C, K]."""
        return torch.ones(index_CK.shape)

    def direction(self, rows_CD: Tensor, index_CK: Tensor, slope_CK: Tensor, ctx: ServerContext) -> Tensor:
        """Return the gradient [C, D] of the regularizer."""
        return gradient(rows_CD, index_CK, slope_CK)

    def update_class_rows(self, rows_CD: Tensor, state: RowsState, ctx: ServerContext) -> tuple[Tensor, Tensors]:
        moments = {k: v for k, v in state.moments.items() if k.partition(".")[0] == ROWS}
        if not self.lambda_:
            return rows_CD, moments
        for _ in range(self.spread_steps):
            index_CK, cosine_CK, after_C = nearest_rows(rows_CD, self.neighbours)
            weight_CK = self.pair_weights(index_CK, state.cooccurrence)
            slope_CK = weight_CK * slope(self.regularizer, cosine_CK, after_C, self.nu)
            direction_CD = self.direction(rows_CD, index_CK, slope_CK, ctx)
            change_CD, moments = self._spread_step(rows_CD, direction_CD, moments, ctx)
            rows_CD = self.unit(rows_CD + change_CD)
        return rows_CD, moments

    def _spread_step(
        self, rows_CD: Tensor, direction_CD: Tensor, moments: Tensors, ctx: ServerContext
    ) -> tuple[Tensor, Tensors]:
        """Return the change [C, D] of the rows in one step, and the moments after it."""
        factor = self.lr_factor(ctx.round) / self.spread_steps
        if self.spread_optimizer == "sgd":
            change_CD = -(self.lambda_ * self.eta_s * factor) * direction_CD
        else:
            rows = nn.Parameter(rows_CD.clone())
            rows.grad = self.lambda_ * direction_CD
            adam = Adam([rows], lr=self.eta_s * factor)
            restore(adam, ROWS, moments)
            adam.step()
            change_CD, moments = rows.detach() - rows_CD, state_of(adam, ROWS)
        if self.spread_cap:
            length_C1 = change_CD.norm(dim=1, keepdim=True)
            change_CD = change_CD * (self.spread_cap / length_C1.clamp(min=self.spread_cap))
        return change_CD, moments

    def _first_moments(self, state: RowsState, ctx: ServerContext) -> Tensors:
        rows_CD = state.weights[CLASS_ROWS]
        _, moments = self._spread_step(rows_CD, torch.zeros_like(rows_CD), {}, ctx)
        return super()._first_moments(state, ctx) | {name: torch.zeros_like(value) for name, value in moments.items()}


def theta_of(weights: Tensors) -> Tensors:
    """Return all weights but the rows."""
    return {name: value for name, value in weights.items() if name != CLASS_ROWS}
