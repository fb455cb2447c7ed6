"""FedALC-fixed (arXiv 2404.15598): class rows by label correlation before round 1, which then never change.

Facts and readings: docs/methods/fedalc.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from anchorfl.pipeline.algorithm.class_embeddings import OneClass
from anchorfl.pipeline.algorithm.contract import Parts, ServerContext
from anchorfl.pipeline.algorithm.cooccurrence import LabelCooccurrence
from anchorfl.pipeline.algorithm.label_collection import LabelMessage, Matching, collect_labels, label_message
from anchorfl.pipeline.algorithm.spreadout import fixed_gradient
from anchorfl.tasks.contract import Card


@dataclass(frozen=True, kw_only=True)
class FedALCFixed(OneClass):
    """Before round 1, clients send digests of their instances; the server moves random rows by gradient descent on
    eq. 12: together what occurs together, apart what does not. A client gets its row once, and trains theta alone.
    """

    name = "fedalc-fixed"
    sends_initial_message = True

    class_embedding_lr: float = 0.0
    """Rows are fixed: must be 0."""
    alpha: float = 1.0
    """alpha of eq. 12: weight of the pull between classes that occur together, >= 0."""
    beta: float = 1.0
    """beta of eq. 12: weight of the push, >= 0."""
    nu: float = 1.0
    """Distance beyond which nothing is pushed, in (0, 2]."""
    steps: int = 1000
    """Largest number of steps T' on the rows, those that are taken back included."""
    lr: float = 10.0
    """First size of a step, on the mean over all pairs times the number of classes; halved where the value rises."""
    tolerance: float = 1e-5
    """Stop where a step lowers the value by a smaller part of it."""
    matching: Matching = "hmac"
    """Names of instances: keyed digests, or ``sha256``, which hides nothing that can be guessed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_embedding_lr:
            raise ValueError("method.class_embedding_lr: fedalc-fixed does not move rows; use fedalc")
        if not (self.alpha >= 0 and self.beta >= 0 and 0 < self.nu <= 2):
            raise ValueError("method: alpha and beta must be at least 0, nu in (0, 2]")
        if self.steps < 0 or not (self.lr > 0 and self.tolerance >= 0):
            raise ValueError("method: steps and tolerance must be at least 0, lr above 0")

    def notice(self, rounds: int) -> str:
        return "no DP guarantee: fedalc-fixed adds no noise"

    def initial_message(self, card: Card, parts: Parts, key: bytes) -> LabelMessage:
        return label_message(parts, self.matching, key if self.matching == "hmac" else b"")

    def initial_statistics(self, ctx: ServerContext) -> LabelCooccurrence:
        return collect_labels(ctx.initial_messages, ctx.cards)

    def first_rows(self, rows_CD: Tensor, cooccurrence: LabelCooccurrence, ctx: ServerContext) -> Tensor:
        rate, weights = self.lr * len(rows_CD), (self.alpha, self.beta, self.nu)
        value, total_CD = fixed_gradient(rows_CD, cooccurrence, *weights)
        for _ in range(self.steps):
            tried_CD = self.unit(rows_CD - rate * total_CD)
            now, total_there_CD = fixed_gradient(tried_CD, cooccurrence, *weights)
            if now > value:
                rate /= 2
                continue
            gained = value - now
            rows_CD, value, total_CD = tried_CD, now, total_there_CD
            if gained <= self.tolerance * value:
                break
        return rows_CD
