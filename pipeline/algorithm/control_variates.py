"""Control variates, which correct the drift of clients: SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1.

A client's c_i is its mean gradient in its last round, the server's c the mean of all c_i; a gradient g becomes
g - c_i + c, or by a part of that (``AgreeingTrainer``). Facts, and where paper and codes differ:
docs/methods/scaffold.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import ClientContext, ClientTrainer, ServerState, Tensors, Update
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.parameters import below, prefixed, weights_of

CONTROL = "control."
"""Prefix of the client's control variate in its memory."""
TINY = 1e-30
"""Stands for the square of a c_i of zeros."""


@dataclass(frozen=True)
class ControlState(ServerState):
    """The server's state, all of which is sent."""

    control: Tensors
    """c: the server's estimate of the mean gradient, by name of the parameter; others are not corrected."""


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
        """Make the gradients of which there is a c g - c_i + c."""
        if not self.total:
            return
        for name, p in self.model.named_parameters():
            if name in self.total:
                assert p.grad is not None  # ``ClientTrainer`` starts with zeros
                self.total[name] += p.grad
                p.grad += self.correction(name, p.grad)

    def correction(self, name: str, gradient: Tensor) -> Tensor:
        """Return what is added to a gradient of this parameter."""
        return self.ctx.state.control[name] - self.control[name]

    def next_control(self) -> Tensors:
        """Return c_i after the round. Plain SGD: option II, from the way gone.

        Else the mean of the raw gradients, which is what option II gives with plain SGD and no longer gives with Adam,
        momentum or weight decay.
        """
        options, state = self.ctx.optimizer, self.ctx.state
        if options.name != "sgd" or options.momentum or options.weight_decay:
            return self.mean_gradients()
        way = self.steps * options.lr
        now = {n: p.detach() for n, p in self.model.named_parameters()}
        return {n: c_i - state.control[n] + (state.weights[n] - now[n]) / way for n, c_i in self.control.items()}

    def mean_gradients(self) -> Tensors:
        """Return the mean of the round's gradients, before they were corrected."""
        return {name: total / self.steps for name, total in self.total.items()}

    def update(self) -> ControlUpdate:
        """Return the weights, and the change of c_i."""
        change = {name: value - self.control[name] for name, value in self.next_control().items()}
        return ControlUpdate(weights_of(self.model), change)

    def memory(self) -> Tensors:
        """Return the optimizers' state, and c_i."""
        return super().memory() | prefixed(CONTROL, self.next_control())


class AgreeingTrainer(ControlledTrainer[S]):
    """A client half that adds a (c - c_i) to a parameter's gradients, a in [0, 1].

    a is 0 where c_i is zero, as in the client's first round; else 1 after ``correct_in_full``; else the mean of
    <g, c_i> / <c_i, c_i>, the factor by which c_i leaves least of g, over the steps so far that have a gradient.
    """

    replayable = True

    def __init__(self, ctx: ClientContext[S]) -> None:
        super().__init__(ctx)
        self.power = {name: self._sum(name, c_i.square()).clamp(min=TINY) for name, c_i in self.control.items()}
        self.agreed = {name: torch.zeros_like(power) for name, power in self.power.items()}
        self.counted = {name: torch.zeros_like(power) for name, power in self.power.items()}
        self.least = {name: torch.zeros_like(power) for name, power in self.power.items()}

    def correct_in_full(self, where: Tensor) -> None:
        """Correct by all of c - c_i, whether gradients agree with c_i or not, where ``where``, [], is true."""
        self.least = {name: where.to(power) * (power > TINY) for name, power in self.power.items()}

    def correction(self, name: str, gradient: Tensor) -> Tensor:
        """Return a (c - c_i)."""
        agreed = self._sum(name, gradient * self.control[name]) / self.power[name]
        self.agreed[name] += agreed
        self.counted[name] += agreed != 0  # a step without a gradient, or of another client of a stack, is none
        share = (self.agreed[name] / self.counted[name].clamp(min=1)).clamp(0, 1)
        return torch.maximum(share, self.least[name]) * super().correction(name, gradient)

    def next_control(self) -> Tensors:
        """Return c_i after the round: option II takes all of the correction out of the way gone, a (c - c_i) or not."""
        return self.mean_gradients()

    def _sum(self, name: str, value: Tensor) -> Tensor:
        """Return the sum over a parameter's elements, with axes of 1 in their place; clients of a stack stay apart."""
        axes = tuple(range(-self.ctx.state.control[name].dim(), 0))
        return value.sum(axes, keepdim=True) if axes else value


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
