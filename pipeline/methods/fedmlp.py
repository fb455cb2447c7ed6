"""FedMLP (Sun et al., MICCAI 2024): multi-label clients that annotate some classes each; prototypes tag rows in the
others, and the model that was sent teaches the rest.

Facts, and where paper and code differ: docs/methods/fedmlp.md. Suffixes: N rows of the client, C classes, D width, P
prototypes: of rows without class 0, without class 1, ..., then of those with class 0, ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.pipeline.algorithm.aggregation import Weighting
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
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.parameters import log_prior, weights_of
from anchorfl.tasks.contract import Batch, ClientData, Objective

TAGS = "tags"
"""Name of a client's tags in its memory, int8 [N, C]: 1 positive, -1 negative, 0 none."""
PROTOTYPES = "rows_PD"
"""Name of the prototypes in a contribution."""


@dataclass(frozen=True)
class TagState(ServerState):
    rows_PD: Tensor
    """Prototypes; empty where they are not sent."""
    held_P: Tensor
    """bool: prototypes that there are; the others are zeros."""


@dataclass(frozen=True)
class TagUpdate(Update):
    rows_PD: Tensor
    """Mean representations of the client's rows without and with each class, where it annotates the class; empty before
    the last round of the warm-up."""
    held_P: Tensor
    """bool: those that it has rows for."""


class TagTrainer(ClientTrainer[TagState, TagUpdate]):
    replayable = True

    def __init__(self, ctx: ClientContext[TagState], method: FedMLP) -> None:
        super().__init__(ctx)
        data, self.teacher = ctx.data, method.teacher if ctx.round > method.warm_up else 0.0
        self.makes_prototypes = ctx.round >= method.warm_up
        self.tags_NC = ctx.memory.get(TAGS, torch.zeros_like(data.y_NC, dtype=torch.int8))
        if ctx.round > method.warm_up:
            with torch.no_grad():
                z_ND = ctx.infer(self.model, data)
                self.sent_NC = self.model.head(z_ND).sigmoid()
            open_NC = (data.known_NC == 0) & (self.tags_NC == 0)
            self.tags_NC = self.tags_NC + new_tags(
                z_ND, ctx.state, open_NC, method.positive_share, method.negative_share
            )
            self.taught_NC = ((data.known_NC == 0) & (self.tags_NC == 0)).to(data.y_NC)
        rows = self.data()
        positive_C, negative_C = ((rows.known_NC * side_NC).sum(0) for side_NC in (rows.y_NC, 1 - rows.y_NC))
        self.prior_C = (log_prior(positive_C, method.tau) - log_prior(negative_C, method.tau)).to(data.y_NC)

    def data(self) -> ClientData:
        """Return the client's rows, with its tags in the place of labels."""
        return with_tags(self.ctx.data, self.tags_NC, self.ctx.objective)

    def active(self, data: ClientData) -> Tensor:
        active_N = super().active(data)
        return torch.logical_or(active_N, self.taught_NC.any(-1)) if self.teacher else active_N

    def loss(self, batch: Batch) -> Tensor:
        logits_BC: Tensor = self.model(batch.x)
        loss = self.ctx.objective.loss(logits_BC + self.prior_C, batch)
        if self.teacher:
            gap_BC = (logits_BC.sigmoid() - self.sent_NC[batch.index_B]).square() * self.taught_NC[batch.index_B]
            loss = loss + self.teacher * gap_BC.sum() / (batch.denominator * logits_BC.shape[-1])
        return loss

    def update(self) -> TagUpdate:
        data, weights = self.ctx.data, weights_of(self.model)
        if not self.makes_prototypes:
            return TagUpdate(weights, *no_prototypes(data))
        return TagUpdate(weights, *prototypes(self.ctx.infer(self.model, data), data))

    def memory(self) -> Tensors:
        return super().memory() | {TAGS: self.tags_NC}


def with_tags(data: ClientData, tags_NC: Tensor, objective: Objective) -> ClientData:
    """Return a client's rows with tags, int8 [N, C], in the place of labels."""
    tagged_NC = tags_NC != 0
    y_NC = torch.where(tagged_NC, (tags_NC > 0).to(data.y_NC), data.y_NC)
    known_NC = torch.where(tagged_NC, 1.0, data.known_NC)
    return replace(data, y_NC=y_NC, known_NC=known_NC, weight_NC=objective.weights(y_NC, known_NC))


def prototypes(z_ND: Tensor, data: ClientData) -> tuple[Tensor, Tensor]:
    """Return mean representations [P, D] of the rows that are known to be without each class, and with it; and which
    of them there are, bool [P].
    """
    in_NP = torch.cat([data.known_NC * (1 - data.y_NC), data.known_NC * data.y_NC], 1).double()
    rows_PD = in_NP.T @ z_ND.double() / in_NP.sum(0).clamp(min=1)[:, None]
    return rows_PD.to(z_ND.dtype), in_NP.any(0)


def no_prototypes(data: ClientData) -> tuple[Tensor, Tensor]:
    """Return what stands for prototypes while none are made."""
    return data.y_NC.new_zeros(0, 0), data.y_NC.new_zeros(0, dtype=torch.bool)


def new_tags(z_ND: Tensor, state: TagState, open_NC: Tensor, positive_share: float, negative_share: float) -> Tensor:
    """Return the tags that prototypes give in this round, int8 [N, C], among the open entries.

    s is the cosine with the negative prototype less that with the positive one. Of the entries with s < 0, the share
    ``positive_share`` with the least is positive; of those with s >= 0, ``negative_share`` with the most is negative;
    shares are rounded down.
    """
    negative_NC, positive_NC = (F.normalize(z_ND, dim=-1) @ F.normalize(state.rows_PD, dim=-1).T).double().chunk(2, 1)
    s_NC = negative_NC - positive_NC
    open_NC = open_NC & state.held_P.view(2, -1).all(0)
    tags_NC = torch.zeros_like(open_NC, dtype=torch.int8)
    for side_NC, share, tag in ((s_NC < 0, positive_share, 1), (s_NC >= 0, negative_share, -1)):
        among_NC = open_NC & side_NC
        rank_NC = s_NC.mul(tag).masked_fill(~among_NC, torch.inf).argsort(dim=0, stable=True).argsort(dim=0)
        count_C = (among_NC.sum(0).double() * share + 1e-9).floor()  # 0.29 of 100 are 29
        tags_NC += tag * (among_NC & (rank_NC < count_C)).to(torch.int8)
    return tags_NC


@dataclass(frozen=True, kw_only=True)
class FedMLP(Method[TagState, TagUpdate]):
    """Client: logits are adjusted by the client's class shares; after ``warm_up`` rounds prototypes tag some rows more
    in every round, and what is not tagged is held to the probabilities of the model that was sent. Server: FedAvg's,
    and the mean of prototypes over the clients that annotate a class.
    """

    name = "fedmlp"
    averaged = ("weights", PROTOTYPES)
    # prototypes are of the clients that annotate a class, and so never sent by all
    supports = Supports(kinds=("multi",), robust=())

    weighting: Weighting = "samples"
    """Weight of a client in the means: its number of samples (paper), or 1."""
    warm_up: int = 10
    """Rounds before the first tags, >= 1 (authors' code: 50 of 500)."""
    positive_share: float = 0.01
    """Share of a client's rows near the positive prototype that a round tags, in [0, 1] (authors' code: 0.01)."""
    negative_share: float = 0.005
    """Share of its rows near the negative prototype, in [0, 1] (authors' code: 0.005)."""
    teacher: float = 1.0
    """Weight of the squared distance to the probabilities of the model that was sent, >= 0."""
    tau: float = 1.0
    """Power of the class shares that adjust the logits in training, >= 0; 0: they are as they are."""

    def __post_init__(self) -> None:
        if self.warm_up < 1:
            raise ValueError(f"method.warm_up = {self.warm_up}: must be at least 1")
        if not (0 <= self.positive_share <= 1 and 0 <= self.negative_share <= 1):
            raise ValueError(
                f"method.positive_share = {self.positive_share}, method.negative_share = {self.negative_share}: must"
                " be in [0, 1]"
            )
        if not (self.teacher >= 0 and self.tau >= 0):
            raise ValueError(f"method.teacher = {self.teacher}, method.tau = {self.tau}: must be at least 0")

    def begin(self, ctx: ServerContext) -> TagState:
        rows_PD = torch.zeros_like(ctx.model.get_parameter("head.weight")).repeat(2, 1)
        return TagState(weights_of(ctx.model), rows_PD, torch.zeros(len(rows_PD), dtype=torch.bool))

    def broadcast(self, state: TagState, ctx: ServerContext) -> TagState:
        blank = replace(state, rows_PD=state.rows_PD[:0], held_P=state.held_P[:0])
        return state if ctx.round > self.warm_up else blank

    def trainer(self, ctx: ClientContext[TagState]) -> TagTrainer:
        return TagTrainer(ctx, self)

    def contribution(self, result: ClientResult[TagUpdate]) -> Contribution:
        update, weight = result.update, self.client_weight(result.card)
        terms = {"weights": Term(update.weights, weight)}
        if len(update.held_P):
            terms[PROTOTYPES] = Term({PROTOTYPES: update.rows_PD}, weight * (update.held_P != 0).double())
        return Contribution(terms)

    def largest_weights(self, rows_I: Tensor) -> dict[str, Tensor]:
        return super().largest_weights(rows_I) | {PROTOTYPES: self.client_weights(rows_I)}

    def merge(self, state: TagState, means: Means, ctx: ServerContext) -> TagState:
        rows_PD, held_P = state.rows_PD, state.held_P
        if ctx.round >= self.warm_up:
            rows_PD = means.rows(PROTOTYPES, {PROTOTYPES: rows_PD}).get(PROTOTYPES, rows_PD)
            held_P = held_P | (means.weight[PROTOTYPES] > 0)
        return TagState(means["weights"], rows_PD, held_P)

    def peak_state(self, state: TagState, rounds: int) -> tuple[TagState, int]:
        return state, min(self.warm_up + 1, rounds)

    def notice(self, rounds: int) -> str:
        if rounds > self.warm_up:
            return super().notice(rounds)
        return f"no prototype tags a row in {rounds} rounds: the first do after method.warm_up = {self.warm_up} rounds"
