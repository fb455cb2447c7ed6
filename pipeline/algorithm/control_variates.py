"""Control variates, which correct the drift of clients: SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1.

A client's c_i is its mean gradient in its last round, the server's c the mean of all c_i; a gradient g becomes
g - c_i + c. Facts, and where paper and codes differ: docs/methods/scaffold.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from anchorfl.pipeline.algorithm.contract import ClientContext, ClientTrainer, ServerState, Tensors, Update
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.parameters import below, prefixed, weights_of

CONTROL = "control."
"""Prefix of the client's control variate in its memory."""


@dataclass(frozen=True)
class ControlState(ServerState):
    """The server's state, all of which is sent."""

    control: Tensors
    """c: the server's estimate of the mean gradient, by name of the parameter; empty: gradients are not corrected."""


@dataclass(frozen=True)
class ControlUpdate(Update):
    """A client's weights, and how its c_i moved."""

    control: Tensors
    """Change of the client's own control variate c_i; empty where c is."""


S = TypeVar("S", bound=ControlState)


class ControlledTrainer(ClientTrainer[S, ControlUpdate]):
    """A client half whose gradients are corrected by c - c_i."""

    replayable = True

    def __init__(self, ctx: ClientContext[S]) -> None:
        super().__init__(ctx)
        self.total = {n: torch.zeros_like(p) for n, p in self.model.named_parameters() if n in ctx.state.control}
        self.control = {name: zero.clone() for name, zero in self.total.items()} | below(CONTROL, ctx.memory)

    def correct(self) -> None:
        """Make every gradient g - c_i + c."""
        if not self.total:
            return
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
        """Return the weights, and the change of c_i."""
        change = {name: value - self.control[name] for name, value in self.next_control().items()}
        return ControlUpdate(weights_of(self.model), change)

    def memory(self) -> Tensors:
        """Return the optimizers' state, and c_i."""
        return super().memory() | prefixed(CONTROL, self.next_control())


def contribution_of(update: ControlUpdate, weight: float) -> Contribution:
    """Return what the server takes in of an update: weights, and the change of c_i where there is one."""
    control = {"control": Term(update.control, weight)} if update.control else {}
    return Contribution({"weights": Term(update.weights, weight)} | control)


def control_after(control: Tensors, means: Means, total_weight: float) -> Tensors:
    """Return c after a round: it moves by the sum of the changes of c_i over the weight of ALL clients, and so stays
    the mean of all c_i.
    """
    if not control:
        return control
    share = float(means.weight["control"]) / total_weight
    return {name: c + share * means["control"][name] for name, c in control.items()}
