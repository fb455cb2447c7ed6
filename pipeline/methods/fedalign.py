"""FedAlign (Zhang et al., KDD 2023): data and label encoder trained in turn, anchors label locally-unaware classes.

Facts, and where paper and reference code differ: docs/methods/fedalign.md. Suffixes: N rows of the client, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import (
    ClientContext,
    ClientResult,
    ClientTrainer,
    HeadSpec,
    Method,
    ServerContext,
    ServerState,
    Tensors,
    Update,
)
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term
from anchorfl.pipeline.algorithm.optimizers import make
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.algorithm.pseudo_labels import Thresholds, anchor_scores, pseudo_annotate
from anchorfl.tasks.contract import Batch, ClientData

CLASS_EMBEDDINGS = "head.table"
"""Name of the class embeddings in the model's weights."""


@dataclass(frozen=True)
class AlignState(ServerState):
    score_C: Tensor
    """The server's validation F1 per class, which gates pseudo-positives; empty without a gate."""


@dataclass(frozen=True)
class AlignUpdate(Update):
    pseudo_C: Tensor
    """bool: classes that got a pseudo-positive; empty unless ``aggregate_pseudo``."""


class AlignTrainer(ClientTrainer[AlignState, AlignUpdate]):
    replayable = True
    phase: tuple[str, ...] = ("theta", "omega")
    """Turns that a step takes."""

    def __init__(self, ctx: ClientContext[AlignState], method: FedAlign) -> None:
        self.method, self.refresh = method, method.refresh
        self.pseudo_C = torch.zeros_like(ctx.card.identified_C)
        super().__init__(ctx)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        ctx, method = self.ctx, self.method
        theta = make(ctx.optimizer, self.model.encoder.parameters(), method.data_lr, ctx.round)
        omega = make(ctx.optimizer, self.model.head.parameters(), method.label_lr, ctx.round)
        return {"theta": theta, "omega": omega}

    def data(self) -> ClientData:
        method, ctx = self.method, self.ctx
        if not method.alignment:
            return ctx.data
        kind = method.anchor_score if method.semantic else "confidence"
        score_NC = anchor_scores(kind, self.model.head, ctx.infer(self.model, ctx.data), ctx.objective)
        allowed_C = None if method.positive_f1_gate is None else ctx.state.score_C > method.positive_f1_gate
        thresholds = method.thresholds(allowed_C)
        rows, got_C = pseudo_annotate(ctx.data, score_NC, ctx.card.identified_C, ctx.objective, thresholds)
        self.pseudo_C = self.pseudo_C | got_C
        return rows

    def epochs(self, count: int) -> Iterator[str]:
        if self.method.alternating and self.method.alternate_every == "epoch":
            # one annotation for both passes of an epoch
            passes: tuple[tuple[str, Literal["round", "epoch"]], ...] = (
                ("omega", self.method.refresh),
                ("theta", "round"),
            )
            for turn, self.refresh in passes * count:
                self.phase = (turn,)
                yield turn
        else:
            yield from [""] * count

    def step(self, micro_batches: Sequence[Batch]) -> Tensor:
        if not self.method.alternating:
            return super().step(micro_batches)
        for turn in self.phase:
            freeze = self.model.head if turn == "theta" else self.model.encoder
            freeze.requires_grad_(False)
            loss = self.gradients(micro_batches)
            freeze.requires_grad_(True)
            self.optimizers[turn].step()
        return loss

    def update(self) -> AlignUpdate:
        return AlignUpdate(weights_of(self.model), self.pseudo_C if self.method.aggregate_pseudo else self.pseudo_C[:0])


@dataclass(frozen=True, kw_only=True)
class FedAlign(Method[AlignState, AlignUpdate]):
    """Client: label by anchors, then train theta and omega in turn. Server: mean of theta, omega class by class.

    Omega is a vector per class, or a language model with adapters (``class_embeddings.lora_rank``), whose adapters are
    averaged like theta.
    """

    name = "fedalign"
    unused: ClassVar[Mapping[str, str]] = {"optimizer.lr": "method.data_lr and method.label_lr"}

    q1: float = 99.0
    """Percentile of SIMILARITY above which a row is positive for a locally-unaware class, in (0, 100)."""
    q2: float = 50.0
    """Percentile of similarity below which it is negative; q2 <= q1."""
    alpha: float = 1.0
    """Weight of the alignment loss L' (preprint; KDD version and reference code: 1), >= 0."""
    data_lr: float = 0.001
    """Learning rate of the data encoder theta."""
    label_lr: float = 0.005
    """Learning rate of the label encoder omega (ExtraSensory: 0.001)."""
    anchor_score: Literal["cosine", "dot"] = "cosine"
    """Similarity of a row and an anchor; dot: reference; multi-label, with thresholds on their side of 0.5."""
    positive_f1_gate: float | None = None
    """A class gets positives only where its validation F1 exceeds this (reference, multi-label: 0.75; paper: none)."""
    refresh: Literal["round", "epoch"] = "round"
    """Annotate before training (text, reference) or before each epoch (Alg. 1)."""
    aggregate_pseudo: bool = False
    """Average row c also over clients that pseudo-annotated c; false: those that identify it (paper, reference).
    Without effect where class_embeddings.lora_rank makes omega a language model, which has no rows."""
    skip_unlabeled_clients: bool = True
    """Leave clients without a labeled row out of the mean of theta (reference)."""
    alignment: bool = True
    """False: "w/o AL" of Table 3, no pseudo-annotation."""
    semantic: bool = True
    """False: "w/o SE", class embeddings start from random vectors, and annotation is by predicted confidence."""
    alternating: bool = True
    """False: "w/o AT", both encoders updated in one step."""
    alternate_every: Literal["step", "epoch"] = "step"
    """The encoders take turns in each mini-batch, theta first (equations 6 and 7, reference); or, as the preprint's
    Algorithm 1, in each local epoch omega takes all mini-batches, then theta does."""
    own_mean: bool = False
    """L' is the mean over the rows that have a pseudo-label (equation 10); false: over all rows (reference)."""
    unit_classes: bool = True
    """Single-label: class representations have length 1 in the logits (reference); false: as they are (equation 4)."""

    def __post_init__(self) -> None:
        self.thresholds(None)  # checks q1, q2 and alpha
        if not (self.data_lr > 0 and self.label_lr > 0):
            raise ValueError(f"method.data_lr = {self.data_lr}, method.label_lr = {self.label_lr}: must be above 0")

    @property
    def phases(self) -> str:
        by_epochs = self.alternating and self.alternate_every == "epoch"
        return "method.alternate_every = 'epoch'" if by_epochs else ""

    def thresholds(self, allowed_C: Tensor | None) -> Thresholds:
        """Return the rule of pseudo-annotation. allowed_C: classes that may get positives; None: all."""
        clamp = None if self.anchor_score != "dot" else (0.5 if self.semantic else 0.0)  # a confidence of 0.5
        return Thresholds(self.q1, self.q2, self.alpha, clamp=clamp, allowed_C=allowed_C, own_mean=self.own_mean)

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="label", semantic=self.semantic, unit=self.unit_classes)

    def begin(self, ctx: ServerContext) -> AlignState:
        classes = 0 if self.positive_f1_gate is None else len(ctx.cards[0].identified_C)
        return AlignState(weights_of(ctx.model), torch.zeros(classes))

    def broadcast(self, state: AlignState, ctx: ServerContext) -> AlignState:
        return state if self.positive_f1_gate is None else replace(state, score_C=ctx.validate(state.weights))

    def trainer(self, ctx: ClientContext[AlignState]) -> AlignTrainer:
        return AlignTrainer(ctx, self)

    def contribution(self, result: ClientResult[AlignUpdate]) -> Contribution:
        weights, theta = result.update.weights, without_rows(result.update.weights)
        counts = not self.skip_unlabeled_clients or bool(result.card.count_C.any())
        terms = {"theta": Term(theta, int(counts)), "unlabeled": Term(theta, int(not counts))}
        if CLASS_EMBEDDINGS in weights:  # a language model has no row of a class alone: all classes move its adapters
            rows = {CLASS_EMBEDDINGS: weights[CLASS_EMBEDDINGS]}
            terms["rows"] = Term(rows, self.classes_of(result).double())
        return Contribution(terms)

    def merge(self, state: AlignState, means: Means, ctx: ServerContext) -> AlignState:
        theta = means.values.get("theta") or means["unlabeled"]  # where no client of the round has a labeled row
        rows = means.rows("rows", state.weights) if CLASS_EMBEDDINGS in state.weights else {}
        return replace(state, weights={**state.weights, **theta, **rows})

    def classes_of(self, result: ClientResult[AlignUpdate]) -> Tensor:
        """Return the classes whose embeddings a client's update counts for, bool [C]."""
        identified_C = result.card.identified_C
        return identified_C | (result.update.pseudo_C != 0) if self.aggregate_pseudo else identified_C


def without_rows(weights: Tensors) -> Tensors:
    """Return all weights but the class embeddings."""
    return {name: value for name, value in weights.items() if name != CLASS_EMBEDDINGS}
