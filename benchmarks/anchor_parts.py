"""Parts that Anchor does without, each added to it: what other methods have, as methods for ``anchor_ablation``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientResult,
    HeadSpec,
    Parts,
    ServerContext,
    Supports,
    Tensors,
)
from anchorfl.pipeline.algorithm.control_variates import ControlledTrainer, ControlUpdate
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.expected_labels import identified_rows
from anchorfl.pipeline.algorithm.label_collection import LabelMessage
from anchorfl.pipeline.algorithm.parameters import log_prior
from anchorfl.pipeline.algorithm.pseudo_labels import anchor_scores, pseudo_annotate
from anchorfl.pipeline.algorithm.spreadout import gradient, nearest_rows, slope
from anchorfl.pipeline.methods.anchor import Anchor, AnchorState, ExpectingTrainer
from anchorfl.pipeline.methods.fedalc import FedALC
from anchorfl.pipeline.methods.fedalign import CLASS_EMBEDDINGS, FedAlign
from anchorfl.pipeline.methods.feddyn import DynTrainer, FedDyn
from anchorfl.pipeline.methods.fedetf import FedETF
from anchorfl.pipeline.methods.fedmlp import (
    TAGS,
    FedMLP,
    TagState,
    TagUpdate,
    new_tags,
    no_prototypes,
    prototypes,
    with_tags,
)
from anchorfl.tasks.contract import Card, ClientData


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


@dataclass(frozen=True)
class PulledState(AnchorState):
    first_CD: Tensor
    """The class embeddings before round 1."""


@dataclass(frozen=True, kw_only=True)
class Pulled(Anchor):
    """The server pulls the class embeddings back to where they started, after every round."""

    name = "anchor-pulled"

    pull: float = 0.5
    """Share of the way back."""

    def begin(self, ctx: ServerContext) -> PulledState:
        state = super().begin(ctx)
        return PulledState(**vars(state), first_CD=state.weights[CLASS_EMBEDDINGS].clone())

    def merge(self, state: PulledState, means: Means, ctx: ServerContext) -> PulledState:
        merged = super().merge(state, means, ctx)
        rows_CD = torch.lerp(merged.weights[CLASS_EMBEDDINGS], state.first_CD, self.pull)
        return replace(merged, weights=merged.weights | {CLASS_EMBEDDINGS: rows_CD})


@dataclass(frozen=True, kw_only=True)
class Slow(Anchor):
    """The server moves the class embeddings by a part of the way to the clients' mean, in every round."""

    name = "anchor-slow"

    share: float = 0.1
    """Part of the way."""

    def merge(self, state: AnchorState, means: Means, ctx: ServerContext) -> AnchorState:
        merged = super().merge(state, means, ctx)
        rows_CD = torch.lerp(state.weights[CLASS_EMBEDDINGS], merged.weights[CLASS_EMBEDDINGS], self.share)
        return replace(merged, weights=merged.weights | {CLASS_EMBEDDINGS: rows_CD})


@dataclass(frozen=True, kw_only=True)
class Adapted(Anchor):
    """Class embeddings as FedAlign's, without a bias: with ``class_embeddings.lora_rank``, what a text encoder makes of
    the names in every step, of which adapters and a layer are trained.
    """

    name = "anchor-adapted"

    @property
    def head(self) -> HeadSpec:
        return FedAlign().head


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
        slope_CK = self.pair_weights(index_CK, state) * slope("neg_d2", cosine_CK, after_C, nu=0.0)
        step_CD = gradient(rows_CD, index_CK, slope_CK) / index_CK.shape[1]
        weights = merged.weights | {CLASS_EMBEDDINGS: rows_CD - self.rate * step_CD}
        return replace(merged, weights=weights)

    def pair_weights(self, index_CK: Tensor, state: AnchorState) -> Tensor:
        """Return the weight of every pair, [C, K]."""
        return torch.ones(index_CK.shape)


@dataclass(frozen=True)
class ApartState(AnchorState):
    apart_CC: Tensor
    """How seldom a class comes with another one (FedALC, equations 9 and 10), with a mean of 1 in every row."""


@dataclass(frozen=True, kw_only=True)
class SpreadApart(Spread):
    """The less, the more often two classes occur together, which the server learns as FedALC's does."""

    name = "anchor-spread-apart"
    supports = Supports(one_class=True)
    sends_initial_message = True

    def initial_message(self, card: Card, parts: Parts, key: bytes) -> LabelMessage:
        return FedALC().initial_message(card, parts, key)

    def begin(self, ctx: ServerContext) -> ApartState:
        state, classes = super().begin(ctx), len(ctx.cards[0].identified_C)
        other_CK = torch.arange(classes).expand(classes, -1)[~torch.eye(classes).bool()].view(classes, -1)
        apart_CK = FedALC().pair_weights(other_CK, FedALC().initial_statistics(ctx))
        return ApartState(**vars(state), apart_CC=torch.zeros(classes, classes).scatter(1, other_CK, apart_CK))

    def pair_weights(self, index_CK: Tensor, state: ApartState) -> Tensor:
        return state.apart_CC.gather(1, index_CK)


class SureTrainer(ExpectingTrainer):
    def __init__(self, ctx: ClientContext[AnchorState], method: Sure) -> None:
        super().__init__(ctx, method)
        self.weight_NC = method.expected * self.open_NC * (1 if self.single else 2 / self.open_NC.shape[1])


@dataclass(frozen=True, kw_only=True)
class Sure(Anchor):
    """A row with one label is drawn to its expected label however sure that is; with several labels a row, expected
    ones weigh what they do however few are known.
    """

    name = "anchor-sure"

    def trainer(self, ctx: ClientContext[AnchorState]) -> SureTrainer:
        return SureTrainer(ctx, self)


class PseudoTrainer(ExpectingTrainer):
    rule = FedAlign().thresholds(allowed_C=None)

    def data(self) -> ClientData:
        ctx = self.ctx
        score_NC = anchor_scores("confidence", self.model.head, ctx.infer(self.model, ctx.data), ctx.objective)
        return self.annotated(score_NC)

    def annotated(self, score_NC: Tensor) -> ClientData:
        """Return the rows with pseudo-labels."""
        ctx = self.ctx
        return pseudo_annotate(ctx.data, score_NC, ctx.card.identified_C, ctx.objective, self.rule)[0]


@dataclass(frozen=True, kw_only=True)
class Pseudo(Anchor):
    """FedAlign's pseudo-labels, by percentiles of the sent model's confidence; ``expected = 0`` puts them in the place
    of expected labels.
    """

    name = "anchor-pseudo"

    def trainer(self, ctx: ClientContext[AnchorState]) -> PseudoTrainer:
        return PseudoTrainer(ctx, self)


class OwnMeanTrainer(PseudoTrainer):
    rule = FedAlign(own_mean=True).thresholds(allowed_C=None)


@dataclass(frozen=True, kw_only=True)
class OwnMean(Anchor):
    """FedAlign's pseudo-labels, whose loss is a mean over the rows that have one (its equation 10)."""

    name = "anchor-own-mean"

    def trainer(self, ctx: ClientContext[AnchorState]) -> OwnMeanTrainer:
        return OwnMeanTrainer(ctx, self)


@dataclass(frozen=True)
class TaggedState(AnchorState, TagState):
    """The server's state with FedMLP's prototypes."""


@dataclass(frozen=True)
class TaggedUpdate(ControlUpdate, TagUpdate):
    """A client's update with its prototypes."""


class TaggedTrainer(ExpectingTrainer):
    def __init__(self, ctx: ClientContext[TaggedState], method: Tagged) -> None:
        data, rule = ctx.data, method.rule
        self.given, self.makes_prototypes = data, ctx.round >= rule.warm_up
        self.tags_NC = ctx.memory.get(TAGS, torch.zeros_like(data.y_NC, dtype=torch.int8))
        if ctx.round > rule.warm_up:
            open_NC = (data.known_NC == 0) & (self.tags_NC == 0)
            with torch.no_grad():
                z_ND = ctx.infer(ctx.model, data)
            made_NC = new_tags(z_ND, ctx.state, open_NC, rule.positive_share, rule.negative_share)
            self.tags_NC = self.tags_NC + made_NC
        super().__init__(replace(ctx, data=with_tags(data, self.tags_NC, ctx.objective)), method)

    def update(self) -> TaggedUpdate:
        rows_PD, held_P = no_prototypes(self.given)
        if self.makes_prototypes:
            rows_PD, held_P = prototypes(self.ctx.infer(self.model, self.given), self.given)
        return TaggedUpdate(**vars(super().update()), rows_PD=rows_PD, held_P=held_P)

    def memory(self) -> Tensors:
        return super().memory() | {TAGS: self.tags_NC}


@dataclass(frozen=True, kw_only=True)
class Tagged(Anchor):
    """After ``warm_up`` rounds prototypes tag rows in every round, as FedMLP's do; what is not tagged is expected.

    Ten times FedMLP's default shares, which are less than a row of clients with a hundred.
    """

    name = "anchor-tagged"
    supports = Supports(kinds=("multi",))

    warm_up: int = FedMLP.warm_up
    """Rounds before the first tags."""
    positive_share: float = 10 * FedMLP.positive_share
    """Share of a client's rows near the positive prototype that a round tags."""
    negative_share: float = 10 * FedMLP.negative_share
    """Share of its rows near the negative prototype."""

    @property
    def rule(self) -> FedMLP:
        return FedMLP(
            warm_up=self.warm_up, positive_share=self.positive_share, negative_share=self.negative_share,
            weighting=self.weighting,
        )  # fmt: skip

    def begin(self, ctx: ServerContext) -> TaggedState:
        rows_PD = torch.zeros_like(ctx.model.head.classes()).repeat(2, 1)
        held_P = torch.zeros(len(rows_PD), dtype=torch.bool)
        return TaggedState(**vars(super().begin(ctx)), rows_PD=rows_PD, held_P=held_P)

    def trainer(self, ctx: ClientContext[TaggedState]) -> TaggedTrainer:
        return TaggedTrainer(ctx, self)

    def contribution(self, result: ClientResult[TaggedUpdate]) -> Contribution:
        return Contribution({**self.rule.contribution(result).terms, **super().contribution(result).terms})

    def merge(self, state: TaggedState, means: Means, ctx: ServerContext) -> TaggedState:
        tagging = self.rule.merge(state, means, ctx)
        return replace(super().merge(state, means, ctx), rows_PD=tagging.rows_PD, held_P=tagging.held_P)


class AdjustedTrainer(ExpectingTrainer):
    def __init__(self, ctx: ClientContext[AnchorState], method: Adjusted) -> None:
        super().__init__(ctx, method)
        sides = (ctx.data.y_NC, 1 - ctx.data.y_NC)
        positive_C, negative_C = ((ctx.data.known_NC * side_NC).sum(0) for side_NC in sides)
        prior_C = log_prior(positive_C, method.tau) - log_prior(negative_C, method.tau)
        self.prior_C = prior_C.to(ctx.data.y_NC)


@dataclass(frozen=True, kw_only=True)
class Adjusted(Anchor):
    """Several labels a row: the client's known positives and negatives of a class adjust its logits in the labels'
    loss, as FedMLP's do.
    """

    name = "anchor-adjusted"
    supports = Supports(kinds=("multi",))

    tau: float = FedMLP.tau
    """Power of the shares."""

    def trainer(self, ctx: ClientContext[AnchorState]) -> AdjustedTrainer:
        return AdjustedTrainer(ctx, self)


@dataclass(frozen=True)
class SharesState(AnchorState):
    share_C: Tensor
    """Estimated share of each class: its share of the rows of the clients that identify it."""


class ByShareTrainer(PseudoTrainer):
    def annotated(self, score_NC: Tensor) -> ClientData:
        ctx, data = self.ctx, self.ctx.data
        y_NC, known_NC = data.y_NC.clone(), data.known_NC.clone()
        for c in (~ctx.card.identified_C).nonzero().flatten().tolist():
            others_C = torch.ones_like(ctx.card.identified_C)
            others_C[c] = False
            q1 = min(max(100 * (1 - float(ctx.state.share_C[c])), self.rule.q2), self.rule.q1)
            rows, _ = pseudo_annotate(data, score_NC, others_C, ctx.objective, replace(self.rule, q1=q1))
            y_NC[:, c], known_NC[:, c] = rows.y_NC[:, c], rows.known_NC[:, c]
        weight_NC = ctx.objective.weights(y_NC, known_NC, torch.ones_like(y_NC))
        return replace(data, y_NC=y_NC, known_NC=known_NC, weight_NC=weight_NC)


@dataclass(frozen=True, kw_only=True)
class ByShare(Anchor):
    """FedAlign's pseudo-labels, with a percentile q1 for each class that leaves above it as many rows as its share."""

    name = "anchor-by-share"

    def begin(self, ctx: ServerContext) -> SharesState:
        count_C, rows_C = identified_rows(ctx.cards)
        return SharesState(**vars(super().begin(ctx)), share_C=count_C / rows_C.clamp(min=1))

    def trainer(self, ctx: ClientContext[AnchorState]) -> ByShareTrainer:
        return ByShareTrainer(ctx, self)


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


@dataclass(frozen=True, kw_only=True)
class RowsOfKnowing(Anchor):
    """A class's embedding and bias are means over the clients that identify it, as FedAlign's (its Algorithm 1)."""

    name = "anchor-rows-of-knowing"

    def contribution(self, result: ClientResult[ControlUpdate]) -> Contribution:
        out, card = super().contribution(result), result.card
        rows = {name: result.update.weights[name] for name in (CLASS_EMBEDDINGS, "head.bias")}
        weight_C = self.client_weight(card) * card.identified_C.double()
        return Contribution({**out.terms, "rows": Term(rows, weight_C)})

    def merge(self, state: AnchorState, means: Means, ctx: ServerContext) -> AnchorState:
        merged = super().merge(state, means, ctx)
        return replace(merged, weights=merged.weights | means.rows("rows", state.weights))


class AgreeingOnlyTrainer(ExpectingTrainer):
    def correct_in_full(self, where: Tensor) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class AgreeingOnly(Anchor):
    """The encoder's gradients are corrected as far as they agree at every client."""

    name = "anchor-agreeing-only"

    def trainer(self, ctx: ClientContext[AnchorState]) -> AgreeingOnlyTrainer:
        return AgreeingOnlyTrainer(ctx, self)


class FullTrainer(ExpectingTrainer):
    correction = ControlledTrainer.correction


@dataclass(frozen=True, kw_only=True)
class Full(Anchor):
    """The encoder's gradients are corrected in full at every client, in its first round, too (there by c alone)."""

    name = "anchor-full"

    def trainer(self, ctx: ClientContext[AnchorState]) -> FullTrainer:
        return FullTrainer(ctx, self)


@dataclass(frozen=True)
class BentState(AnchorState):
    drift: Tensors
    """FedDyn's h; stays on the server."""


class PenaltyTrainer(DynTrainer):
    def __init__(self, ctx: ClientContext[BentState]) -> None:
        super().__init__(ctx, FedDyn().alpha)


class BentTrainer(ExpectingTrainer, PenaltyTrainer):
    def __init__(self, ctx: ClientContext[BentState], method: Bent) -> None:
        super().__init__(ctx, method)
        self.alpha = method.alpha


@dataclass(frozen=True, kw_only=True)
class Bent(Anchor):
    """FedDyn's correction of the loss, and of the weights that clients start from, in the place of control variates."""

    name = "anchor-bent"

    control_variates: bool = False
    alpha: float = FedDyn.alpha
    """Weight of the pull."""

    def begin(self, ctx: ServerContext) -> BentState:
        drift = {name: torch.zeros_like(p) for name, p in ctx.model.named_parameters()}
        return BentState(**vars(super().begin(ctx)), drift=drift)

    def broadcast(self, state: BentState, ctx: ServerContext) -> BentState:
        return replace(state, weights=FedDyn(alpha=self.alpha).sent(state), drift={})

    def trainer(self, ctx: ClientContext[BentState]) -> BentTrainer:
        return BentTrainer(ctx, self)

    def merge(self, state: BentState, means: Means, ctx: ServerContext) -> BentState:
        share, sent = (
            float(means.weight["weights"]) / self.total_weight(ctx.cards),
            FedDyn(alpha=self.alpha).sent(state),
        )
        moved = {name: means["weights"][name] - sent[name] for name in state.drift}
        drift = {name: h - self.alpha * share * moved[name] for name, h in state.drift.items()}
        return replace(super().merge(state, means, ctx), drift=drift)


@dataclass(frozen=True, kw_only=True)
class Controlled(Anchor):
    """The gradients of all weights are corrected as far as the encoder's are."""

    name = "anchor-controlled"

    def begin(self, ctx: ServerContext) -> AnchorState:
        state = super().begin(ctx)
        zeros = {name: torch.zeros_like(p) for name, p in ctx.model.named_parameters()}
        return AnchorState(state.weights, zeros, state.missing)


@dataclass(frozen=True, kw_only=True)
class ControlledInFull(Controlled, Full):
    """The gradients of all weights are corrected in full, as SCAFFOLD's are."""

    name = "anchor-controlled-in-full"
