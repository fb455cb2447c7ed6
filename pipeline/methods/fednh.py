"""FedNH (Dai et al., AAAI 2023): class prototypes on the unit sphere, spread out at first, which the server moves
slowly to where the clients' samples lie.

Facts, and where paper and code differ: docs/methods/fednh.md. Shape suffixes: N rows, C classes, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import (
    Averaging,
    AveragingTrainer,
    ClientContext,
    ClientResult,
    HeadSpec,
    ServerContext,
    ServerState,
    Supports,
    Update,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term

PROTOTYPES = "head.rows"
"""Name of the prototypes in the model's weights."""


class PrototypeTrainer(AveragingTrainer):
    """A client whose prototypes are a buffer of the head: no gradient and no optimizer reaches them."""

    replayable = True

    def local_rows(self) -> Tensor:
        """Return per class the mean direction of the client's labeled rows, by the trained encoder in evaluation mode,
        at length 1 [C, D]; zeros where it has none.
        """
        data = self.ctx.data
        u_ND = F.normalize(self.ctx.infer(self.model, data), dim=-1)
        # A mean and its sum have one direction, so the counts are the server's business.
        return F.normalize((data.known_NC * data.y_NC).T @ u_ND, dim=-1)

    def update(self) -> Update:
        """Return the weights, with the client's own prototypes in the place of those that it was sent."""
        sent = super().update()
        return Update(sent.weights | {PROTOTYPES: self.local_rows()})


@dataclass(frozen=True, kw_only=True)
class FedNH(Averaging):
    """Client: cross-entropy of a trained scale times cosines with fixed prototypes; then where its own classes lie.
    Server: FedAvg's mean of encoder and scale; prototypes move by 1 - rho towards the mean over samples.
    """

    name = "fednh"
    # a client's prototypes are no step from those sent, so none can be measured
    supports = Supports(kinds=("single",), robust=("median", "trimmed_mean"))

    rho: float = 0.9
    """Part of a prototype that stays in a round, in [0, 1]; 1: they never move."""
    first_scale: float = 20.0
    """First value of the scale, > 0 (authors' code: 20 for residual networks, 1 for a small CNN)."""

    def __post_init__(self) -> None:
        if not (0 <= self.rho <= 1 and self.first_scale > 0):
            raise ValueError(
                f"method.rho = {self.rho} must be in [0, 1], method.first_scale = {self.first_scale} above 0"
            )

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="prototype", first_scale=self.first_scale)

    def trainer(self, ctx: ClientContext[ServerState]) -> PrototypeTrainer:
        return PrototypeTrainer(ctx)

    def contribution(self, result: ClientResult[Update]) -> Contribution:
        theta = {name: value for name, value in result.update.weights.items() if name != PROTOTYPES}
        rows = {PROTOTYPES: result.update.weights[PROTOTYPES]}
        weight, count_C = self.client_weight(result.card), result.card.count_C.double()
        return Contribution({"weights": Term(theta, weight), "prototypes": Term(rows, count_C)})

    def largest_weights(self, rows_I: Tensor) -> dict[str, Tensor]:
        return super().largest_weights(rows_I) | {"prototypes": rows_I.double()}

    def merge(self, state: ServerState, means: Means, ctx: ServerContext) -> ServerState:
        mean_CD = means.values.get("prototypes", state.weights)[PROTOTYPES]
        rows_CD = self.smoothed(state.weights[PROTOTYPES], mean_CD, means.weight["prototypes"] > 0)
        return ServerState({**state.weights, **means["weights"], PROTOTYPES: rows_CD})

    def smoothed(self, rows_CD: Tensor, mean_CD: Tensor, has_C: Tensor) -> Tensor:
        """Return the prototypes after a round, of length 1. One stays, to the bit, where nobody has a sample of its
        class (has_C, bool). mean_CD: the clients' prototypes, over samples.
        """
        if self.rho == 1:
            return rows_CD  # bringing them back to length 1 would round them
        mean_CD = F.normalize(mean_CD.double(), dim=-1)
        moved_CD = F.normalize(self.rho * rows_CD.double() + (1 - self.rho) * mean_CD, dim=-1).to(rows_CD.dtype)
        return torch.where(has_C[:, None] & mean_CD.any(-1, keepdim=True), moved_CD, rows_CD)
