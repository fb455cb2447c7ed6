"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1: control variates that correct the drift of clients.

Facts, and where paper and codes differ: docs/methods/scaffold.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anchorfl.pipeline.algorithm.aggregation import Weighting
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientResult, Method, ServerContext, Supports
from anchorfl.pipeline.algorithm.control_variates import (
    ControlledTrainer,
    ControlState,
    ControlUpdate,
    contribution_of,
    control_after,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means
from anchorfl.pipeline.algorithm.parameters import weights_of


class ScaffoldTrainer(ControlledTrainer[ControlState]):
    replayable = True


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
        return contribution_of(result.update, self.client_weight(result.card))

    def merge(self, state: ControlState, means: Means, ctx: ServerContext) -> ControlState:
        weights = means["weights"]
        if self.server_lr != 1:
            for name in state.control:
                weights[name] = torch.lerp(state.weights[name], weights[name], self.server_lr)
        return ControlState(weights, control_after(state.control, means, self.total_weight(ctx.cards)))
