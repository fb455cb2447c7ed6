"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1: control variates that correct the drift of clients.

Facts, and where paper and codes differ: docs/methods/scaffold.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

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

CONTROL = "control."
"""Prefix of the client's control variate in its memory."""


@dataclass(frozen=True)
class ControlState(ServerState):
    control: Tensors
    """c: the server's estimate of the mean gradient, by name of the parameter."""


@dataclass(frozen=True)
class ControlUpdate(Update):
    control: Tensors
    """Change of the client's own control variate c_i."""


class ScaffoldTrainer(ClientTrainer[ControlState, ControlUpdate]):
    replayable = True

    def __init__(self, ctx: ClientContext[ControlState]) -> None:
        super().__init__(ctx)
        self.total = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self.control = {name: zero.clone() for name, zero in self.total.items()} | below(CONTROL, ctx.memory)

    def correct(self) -> None:
        for name, p in self.model.named_parameters():
            assert p.grad is not None  # ``ClientTrainer`` starts with zeros
            self.total[name] += p.grad
            p.grad += self.ctx.state.control[name] - self.control[name]

    def next_control(self) -> Tensors:
        """Return c_i after the round. Plain SGD: option II, from the way gone.

        Else the mean of the raw gradients, which is what option II gives with plain SGD and no longer gives with Adam,
        momentum or weight decay.
        """
        options, state = self.ctx.optimizer, self.ctx.state
        if options.name != "sgd" or options.momentum or options.weight_decay:
            return {name: total / self.steps for name, total in self.total.items()}
        way = self.steps * options.lr
        now = {n: p.detach() for n, p in self.model.named_parameters()}
        return {n: c_i - state.control[n] + (state.weights[n] - now[n]) / way for n, c_i in self.control.items()}

    def update(self) -> ControlUpdate:
        change = {name: value - self.control[name] for name, value in self.next_control().items()}
        return ControlUpdate(weights_of(self.model), change)

    def memory(self) -> Tensors:
        return super().memory() | prefixed(CONTROL, self.next_control())


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method[ControlState, ControlUpdate]):
    """Client: every gradient is corrected by c - c_i. Server: x moves by server_lr times the mean way that the clients
    went, c by the sum of the changes of c_i divided by the number of ALL clients; so c stays the mean of all c_i.
    """

    name = "scaffold"
    averaged = ("weights", "control")
    # c is the mean of the clients' c_i, which any other aggregation would part from it
    supports = Supports(robust=())

    server_lr: float = 1.0
    """Global step size eta_g, > 0."""
    weighting: Weighting = "uniform"
    """Terms of both means: clients (paper; the least mean of the clients' losses is sought), or samples (that of
    the samples' losses, as in FedAvg)."""

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise ValueError(f"method.server_lr = {self.server_lr}: must be above 0")

    def begin(self, ctx: ServerContext) -> ControlState:
        zeros = {name: torch.zeros_like(p) for name, p in ctx.model.named_parameters()}
        return ControlState(weights_of(ctx.model), zeros)

    def trainer(self, ctx: ClientContext[ControlState]) -> ScaffoldTrainer:
        return ScaffoldTrainer(ctx)

    def contribution(self, result: ClientResult[ControlUpdate]) -> Contribution:
        weight = self.client_weight(result.card)
        return Contribution(
            {"weights": Term(result.update.weights, weight), "control": Term(result.update.control, weight)}
        )

    def merge(self, state: ControlState, means: Means, ctx: ServerContext) -> ControlState:
        weights, change = means["weights"], means["control"]
        if self.server_lr != 1:
            for name in state.control:
                weights[name] = torch.lerp(state.weights[name], weights[name], self.server_lr)
        share = float(means.weight["control"]) / self.total_weight(ctx.cards)
        return ControlState(weights, {name: c + share * change[name] for name, c in state.control.items()})
