"""Parts that Anchor does without, each added to it: what other methods have, as methods for ``anchor_ablation``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from anchorfl.pipeline.algorithm.contract import ClientContext, HeadSpec, ServerContext
from anchorfl.pipeline.algorithm.control_variates import ControlledTrainer
from anchorfl.pipeline.algorithm.exact_sums import Means
from anchorfl.pipeline.algorithm.pseudo_labels import anchor_scores, pseudo_annotate
from anchorfl.pipeline.algorithm.spreadout import gradient, nearest_rows, slope
from anchorfl.pipeline.methods.anchor import Anchor, AnchorState, ExpectingTrainer
from anchorfl.pipeline.methods.fedalign import CLASS_EMBEDDINGS, FedAlign
from anchorfl.pipeline.methods.fedetf import FedETF
from anchorfl.tasks.contract import ClientData


class FrozenTrainer(ExpectingTrainer):
    def correct(self) -> None:
        super().correct()
        self.model.get_parameter(CLASS_EMBEDDINGS).grad.zero_()


@dataclass(frozen=True, kw_only=True)
class Frozen(Anchor):
    """Class embeddings stay as they start."""

    name = "anchor-frozen"

    def trainer(self, ctx: ClientContext[AnchorState]) -> FrozenTrainer:
        return FrozenTrainer(ctx, self)


@dataclass(frozen=True, kw_only=True)
class Simplex(Anchor):
    """Classes are the columns of a simplex, as FedETF's: no class embeddings."""

    name = "anchor-simplex"

    @property
    def head(self) -> HeadSpec:
        return FedETF().head


@dataclass(frozen=True, kw_only=True)
class Spread(Anchor):
    """The server pushes all class embeddings apart after every round, as FedAwS's does."""

    name = "anchor-spread"

    rate: float = 0.1
    """Length of the step, times the mean gradient of a pair's squared distance."""

    def merge(self, state: AnchorState, means: Means, ctx: ServerContext) -> AnchorState:
        merged = super().merge(state, means, ctx)
        rows_CD = F.normalize(merged.weights[CLASS_EMBEDDINGS], dim=-1)
        index_CK, cosine_CK, after_C = nearest_rows(rows_CD, len(rows_CD) - 1)
        step_CD = gradient(rows_CD, index_CK, slope("neg_d2", cosine_CK, after_C, nu=0.0)) / index_CK.shape[1]
        weights = merged.weights | {CLASS_EMBEDDINGS: rows_CD - self.rate * step_CD}
        return replace(merged, weights=weights)


class SureTrainer(ExpectingTrainer):
    def __init__(self, ctx: ClientContext[AnchorState], method: Sure) -> None:
        super().__init__(ctx, method)
        if self.single:
            self.weight_NC = method.expected * self.open_NC


@dataclass(frozen=True, kw_only=True)
class Sure(Anchor):
    """A row with one label is drawn to its expected label however sure that is."""

    name = "anchor-sure"

    def trainer(self, ctx: ClientContext[AnchorState]) -> SureTrainer:
        return SureTrainer(ctx, self)


class PseudoTrainer(ExpectingTrainer):
    def data(self) -> ClientData:
        ctx = self.ctx
        score_NC = anchor_scores("confidence", self.model.head, ctx.infer(self.model, ctx.data), ctx.objective)
        rows, _ = pseudo_annotate(
            ctx.data, score_NC, ctx.card.identified_C, ctx.objective, FedAlign().thresholds(allowed_C=None)
        )
        return rows


@dataclass(frozen=True, kw_only=True)
class Pseudo(Anchor):
    """FedAlign's pseudo-labels, by percentiles of the sent model's confidence; ``expected = 0`` puts them in the place
    of expected labels.
    """

    name = "anchor-pseudo"

    def trainer(self, ctx: ClientContext[AnchorState]) -> PseudoTrainer:
        return PseudoTrainer(ctx, self)


class GrowingTrainer(ExpectingTrainer):
    def __init__(self, ctx: ClientContext[AnchorState], method: Growing) -> None:
        super().__init__(ctx, method)
        share = min(1.0, ctx.round / method.rounds)
        self.weight_NC = share * self.weight_NC


@dataclass(frozen=True, kw_only=True)
class Growing(Anchor):
    """The weight of expected labels grows in a straight line from round 1 on."""

    name = "anchor-growing"

    rounds: int = 10
    """Rounds after which it has its full weight."""

    def trainer(self, ctx: ClientContext[AnchorState]) -> GrowingTrainer:
        return GrowingTrainer(ctx, self)


class FullTrainer(ExpectingTrainer):
    correction = ControlledTrainer.correction


@dataclass(frozen=True, kw_only=True)
class Full(Anchor):
    """The encoder's gradients are corrected in full at every client, in its first round, too (there by c alone)."""

    name = "anchor-full"

    def trainer(self, ctx: ClientContext[AnchorState]) -> FullTrainer:
        return FullTrainer(ctx, self)


@dataclass(frozen=True, kw_only=True)
class Controlled(Anchor):
    """The gradients of all weights are corrected as far as the encoder's are, and with several labels a row, too."""

    name = "anchor-controlled"

    def begin(self, ctx: ServerContext) -> AnchorState:
        state = super().begin(ctx)
        zeros = {name: torch.zeros_like(p) for name, p in ctx.model.named_parameters()}
        return AnchorState(state.weights, zeros, state.missing)


@dataclass(frozen=True, kw_only=True)
class ControlledInFull(Controlled, Full):
    """The gradients of all weights are corrected in full, with several labels a row, too, as SCAFFOLD's are."""

    name = "anchor-controlled-in-full"
