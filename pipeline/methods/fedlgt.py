"""FedLGT (Liu et al., AAAI 2024): classes are tokens of their names, which attend to a row and to each other; in
training some labels are shown, and the others are predicted from them.

Facts, and where paper and code differ: docs/methods/fedlgt.md. Suffixes: N rows of the client, B rows of a micro-batch,
C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anchorfl.models.heads import in_pieces
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
from anchorfl.tasks.contract import Batch

NAMES = "head.names"
"""Name of the frozen vectors of the class names in the model's weights."""


class GuidedTrainer(AveragingTrainer):
    """A client half that draws which labels are shown."""

    def __init__(self, ctx: ClientContext[ServerState], method: FedLGT) -> None:
        super().__init__(ctx)
        self.most = method.most_shown(ctx.data.y_NC.shape[1])
        z_ND, head = ctx.infer(self.model, ctx.data), self.model.head.eval()  # as the encoder there, without dropout
        with torch.no_grad():
            probability_NC = in_pieces(head, z_ND).sigmoid()
        head.train()
        self.unsure_NC = (probability_NC - 0.5).abs() <= method.margin

    def loss(self, batch: Batch) -> Tensor:
        state_BC = self.states(batch)
        hidden = replace(batch, weight_BC=batch.weight_BC * (state_BC == 0))
        return self.ctx.objective.loss(self.model.head(self.model.encoder(batch.x), state_BC), hidden)

    def states(self, batch: Batch) -> Tensor:
        """Return the labels that are shown, 1 or -1, else 0 [B, C]: of each row a random number of random ones, among
        them none that is not known, and none of which the model that was sent is unsure.
        """
        rows, classes = batch.y_BC.shape
        count_B1 = torch.randint(self.most + 1, (rows, 1), generator=self.ctx.rng)
        place_BC = torch.rand(rows, classes, generator=self.ctx.rng).argsort(-1).argsort(-1)
        shown_BC = (place_BC < count_B1).to(batch.y_BC.device) & (batch.known_BC != 0)
        shown_BC = shown_BC & ~self.unsure_NC[batch.index_B]
        out_BC: Tensor = (2 * batch.y_BC - 1) * shown_BC
        return out_BC


@dataclass(frozen=True, kw_only=True)
class FedLGT(Averaging):
    """Client: cross-entropy of the labels that are not shown. Server: FedAvg's mean; the names stay."""

    name = "fedlgt"
    supports = Supports(kinds=("multi",), stack=False)  # clients draw what is shown

    layers: int = 3
    """Layers of self-attention over a row and the classes, >= 1."""
    shown: float = 0.75
    """Largest share of a row's labels that is shown in training, in [0, 1]; 0: none is."""
    margin: float = 0.02
    """A label is never shown where the probability that the model that was sent gives it is so near to 1/2, in [0, 0.5]
    (client-aware masked label embedding); 0: only where it is 1/2."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"method.layers = {self.layers}: must be at least 1")
        if not (0 <= self.shown <= 1 and 0 <= self.margin <= 0.5):
            raise ValueError(
                f"method.shown = {self.shown} must be in [0, 1], method.margin = {self.margin} in [0, 0.5]"
            )

    def most_shown(self, classes: int) -> int:
        """Return how many labels of a row are shown at most."""
        return int(self.shown * classes + 1e-9)  # 0.29 of 100 are 29

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="guided", parts=self.layers)

    def trainer(self, ctx: ClientContext[ServerState]) -> GuidedTrainer:
        return GuidedTrainer(ctx, self)

    def contribution(self, result: ClientResult[Update]) -> Contribution:
        trained = {name: value for name, value in result.update.weights.items() if name != NAMES}
        return Contribution({"weights": Term(trained, self.client_weight(result.card))})

    def merge(self, state: ServerState, means: Means, ctx: ServerContext) -> ServerState:
        return ServerState({**state.weights, **means["weights"]})
