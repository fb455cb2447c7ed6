"""FedDyn (Acar et al., ICLR 2021), Algorithm 1: a client's loss is bent so that all clients agree where the mean of
their losses is least.

Facts, and where paper and codes differ: docs/methods/feddyn.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
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
from anchorfl.pipeline.algorithm.parameters import below, prefixed, weights_of

GRADIENT = "gradient."
"""Prefix of g_k in the client's memory."""


@dataclass(frozen=True)
class DynState(ServerState):
    """The server's state; ``weights``: the clients' mean, which is scored and saved. Clients do not start from it."""

    drift: Tensors
    """h, by name of the parameter; stays on the server."""


class DynTrainer(ClientTrainer[DynState, Update]):
    replayable = True

    def __init__(self, ctx: ClientContext[DynState], alpha: float) -> None:
        super().__init__(ctx)
        self.alpha = alpha
        zeros = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self.gradient = zeros | below(GRADIENT, ctx.memory)

    def gaps(self) -> Tensors:
        """Return the way y - x that every parameter has gone in this round."""
        return {name: p - self.ctx.state.weights[name] for name, p in self.model.named_parameters()}

    def penalty(self) -> Tensor:
        """Return alpha/2 |y - x|^2 - <g_k, y - x>: up to a constant, the two terms of eq. 1."""
        terms = [self.alpha / 2 * gap.pow(2).sum() - (self.gradient[n] * gap).sum() for n, gap in self.gaps().items()]
        return torch.stack(terms).sum()

    def update(self) -> Update:
        return Update(weights_of(self.model))

    def memory(self) -> Tensors:
        """Return g_k <- g_k - alpha (y - x): where the local loss is at its minimum, the gradient of F_k there."""
        gradient = {name: self.gradient[name] - self.alpha * gap.detach() for name, gap in self.gaps().items()}
        return super().memory() | prefixed(GRADIENT, gradient)


@dataclass(frozen=True, kw_only=True)
class FedDyn(Method[DynState, Update]):
    """Client: -<g_k, y> + alpha/2 |y - x|^2 is added to the loss of every step. Server: h <- h - alpha times the sum of
    y_k - x over the number of ALL clients; clients are sent x = mean y_k - h / alpha. Scored is mean y_k.
    """

    name = "feddyn"
    # h is the mean of the clients' g_k, which any other aggregation would part from it
    supports = Supports(robust=())

    alpha: float = 0.01
    """Weight of the pull, > 0 (authors: 0.1, 0.01, 0.001)."""
    weighting: Weighting = "uniform"
    """Terms of mean and sum: clients (paper; the least mean of the clients' losses is sought), or samples (that
    of the samples' losses, as in FedAvg)."""

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"method.alpha = {self.alpha}: must be above 0")

    def begin(self, ctx: ServerContext) -> DynState:
        zeros = {name: torch.zeros_like(p) for name, p in ctx.model.named_parameters()}
        return DynState(weights_of(ctx.model), zeros)

    def sent(self, state: DynState) -> Tensors:
        """Return x, which clients start from; buffers are those of the mean."""
        return state.weights | {name: state.weights[name] - h / self.alpha for name, h in state.drift.items()}

    def broadcast(self, state: DynState, ctx: ServerContext) -> DynState:
        return DynState(self.sent(state), {})

    def trainer(self, ctx: ClientContext[DynState]) -> DynTrainer:
        return DynTrainer(ctx, self.alpha)

    def contribution(self, result: ClientResult[Update]) -> Contribution:
        weights = result.update.weights
        terms = {"weights": Term(weights, self.client_weight(result.card))}
        if self.weighting == "uniform" and not all(value.is_floating_point() for value in weights.values()):
            # BatchNorm, which counts its batches; what it has seen is samples, whatever the mean of parameters is of
            terms["buffers"] = Term(weights, result.card.num_examples)
        return Contribution(terms)

    def largest_weights(self, rows_I: Tensor) -> dict[str, Tensor]:
        return super().largest_weights(rows_I) | {"buffers": rows_I.double()}

    def merge(self, state: DynState, means: Means, ctx: ServerContext) -> DynState:
        share = float(means.weight["weights"]) / self.total_weight(ctx.cards)
        mean, x = means["weights"], self.sent(state)
        drift = {name: h - self.alpha * share * (mean[name] - x[name]) for name, h in state.drift.items()}
        buffers = means.values.get("buffers", mean)
        return DynState(buffers | {name: mean[name] for name in drift}, drift)
