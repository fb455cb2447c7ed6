"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1: control variates that correct the drift of clients.

Facts, and where paper and codes differ: docs/methods/scaffold.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.aggregation import mean_of
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
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.tasks.contract import Batch

CONTROL = "control."
"""Prefix of the client's control variate in its memory."""


@dataclass(frozen=True)
class ControlState(ServerState):
    control: Tensors  # c: the server's estimate of the mean gradient, by name of the parameter


@dataclass(frozen=True)
class ControlUpdate(Update):
    control: Tensors  # change of the client's own control variate c_i


class ScaffoldTrainer(ClientTrainer[ControlState, ControlUpdate]):
    def __init__(self, ctx: ClientContext[ControlState]) -> None:
        super().__init__(ctx)
        self.own = {n: ctx.memory.get(CONTROL + n, torch.zeros_like(p)) for n, p in self.model.named_parameters()}
        self.total = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
        self.steps = 0

    def gradients(self, micro_batches: Iterable[Batch]) -> Tensor:
        loss = super().gradients(micro_batches)
        self.steps += 1
        for name, p in self.model.named_parameters():
            assert p.grad is not None  # ``ClientTrainer`` starts with zeros
            self.total[name] += p.grad
            p.grad += self.ctx.state.control[name] - self.own[name]
        return loss

    def next_control(self) -> Tensors:
        """c_i after the round. Plain SGD: option II, from the way gone. Else the mean of the raw gradients, which is
        what option II gives with plain SGD and no longer gives with Adam, momentum or weight decay.
        """
        o, state = self.ctx.optimizer, self.ctx.state
        if o.name != "sgd" or o.momentum or o.weight_decay:
            return {name: total / self.steps for name, total in self.total.items()}
        way = self.steps * o.lr
        now = {n: p.detach() for n, p in self.model.named_parameters()}
        return {n: own - state.control[n] + (state.weights[n] - now[n]) / way for n, own in self.own.items()}

    def update(self) -> ControlUpdate:
        change = {name: value - self.own[name] for name, value in self.next_control().items()}
        return ControlUpdate(weights_of(self.model), change)

    def memory(self) -> Tensors:
        return super().memory() | {CONTROL + name: value for name, value in self.next_control().items()}


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method[ControlState, ControlUpdate]):
    """Client: every gradient is corrected by c - c_i. Server: x moves by server_lr times the mean way that the clients
    went, c by the sum of the changes of c_i divided by the number of ALL clients; so c stays the mean of all c_i.
    """

    name = "scaffold"
    # c is the mean of the clients' c_i, which any other aggregation would part from it
    supports = Supports(robust=())

    server_lr: float = 1.0
    """Global step size eta_g, > 0."""
    weighting: Literal["samples", "uniform"] = "uniform"
    """What counts in both means: clients (paper; the least mean of the clients' losses is sought), or samples (that of
    the samples' losses, as in FedAvg)."""

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise ValueError(f"method.server_lr = {self.server_lr}: must be above 0")

    def begin(self, ctx: ServerContext) -> ControlState:
        zeros = {name: torch.zeros_like(p) for name, p in ctx.model.named_parameters()}
        return ControlState(weights_of(ctx.model), zeros)

    def trainer(self, ctx: ClientContext[ControlState]) -> ScaffoldTrainer:
        return ScaffoldTrainer(ctx)

    def aggregate(
        self, state: ControlState, results: Sequence[ClientResult[ControlUpdate]], ctx: ServerContext
    ) -> ControlState:
        by_samples = self.weighting == "samples"
        weight_of = [r.card.num_examples if by_samples else 1 for r in results]
        weights = mean_of([r.update.weights for r in results], weight_of)
        if self.server_lr != 1:
            for name in state.control:
                weights[name] = torch.lerp(state.weights[name], weights[name], self.server_lr)
        change = mean_of([r.update.control for r in results], weight_of)
        share = sum(weight_of) / sum(c.num_examples if by_samples else 1 for c in ctx.cards)
        return ControlState(weights, {name: c + share * change[name] for name, c in state.control.items()})
