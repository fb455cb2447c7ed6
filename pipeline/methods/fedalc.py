"""FedALC (arXiv 2404.15598): class rows spread out the less, the more often their classes occur together.

Facts and readings: docs/methods/fedalc.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.class_embeddings import Spreading
from anchorfl.pipeline.algorithm.contract import Parts, ServerContext, Tensors
from anchorfl.pipeline.algorithm.differential_privacy import PrivacyOptions, Terms, describe, noisy_sum
from anchorfl.pipeline.algorithm.label_collection import Matching, Shared, cooccurrence, merge, share
from anchorfl.pipeline.algorithm.spreadout import BLOCK, counts_at, gradient, kept_counts, terms
from anchorfl.tasks.contract import Card


@dataclass(frozen=True, kw_only=True)
class FedALC(Spreading):
    """Client: as in FedAwS. Before round 1, clients send digests of their instances, from which the server learns which
    classes occur together. Server: one step per round that pushes every class row and its K nearest apart (eq. 11),
    weighted by how seldom the neighbour accompanies the class (eq. 9, 10).
    """

    name = "fedalc"
    sends_initial_message = True

    weights: Literal["mined", "gamma", "sigma"] = "mined"
    """Weight of a pair: ``mined``: gamma over the K neighbours, times K, so that their mean is 1; ``gamma``: over all
    classes (eq. 10); ``sigma``: share of the instances with the one class and not the other (eq. 9)."""
    matching: Matching = "hmac"
    """How instances are named: keyed digests, or ``sha256``, which hides nothing that can be guessed."""
    dp_noise: float = 0.0
    """Differential privacy of the label correlations: deviation of the noise on the server's step, in units of dp_clip;
    0: none (docs/label-collection.md)."""
    dp_clip: float = 1.0
    """Largest norm of a class's part of the step."""
    dp_delta: float = 1e-5
    """Delta of the guarantee."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.privacy()

    def privacy(self) -> PrivacyOptions:
        """ValueError on bad options."""
        return PrivacyOptions(noise=self.dp_noise, clip=self.dp_clip, delta=self.dp_delta)

    def notice(self, rounds: int) -> str:
        return describe(self.privacy(), rounds)

    def initial_message(self, card: Card, parts: Parts, key: bytes) -> Shared:
        return share(parts, self.matching, key if self.matching == "hmac" else b"")

    def keep(self, ctx: ServerContext) -> Tensors:
        labels = merge(ctx.initial_messages, len(ctx.cards[0].identified_C))
        return kept_counts(cooccurrence(labels), len(labels))

    def pair_weights(self, index_CK: Tensor, known: Tensors) -> Tensor:
        """omega; a class that never occurs without its neighbours pushes none of them."""
        own_C, instances = known["own"].double(), known["instances"].double()
        sigma_CK = (own_C[:, None] - counts_at(known, index_CK, len(own_C))) / instances
        if self.weights == "sigma":
            return sigma_CK.float()
        scale_C1 = sigma_CK.mean(1, keepdim=True)
        if self.weights == "gamma":
            scale_C1 = (((len(own_C) - 1) * own_C - known["with_others"].double()) / instances)[:, None]
        return torch.where(scale_C1 > 0, sigma_CK / scale_C1, 0.0).float()

    def direction(self, rows_CD: Tensor, index_CK: Tensor, slope_CK: Tensor, ctx: ServerContext) -> Tensor:
        if not self.dp_noise:
            return gradient(rows_CD, index_CK, slope_CK)
        blocks = (slice(start, start + BLOCK) for start in range(0, len(rows_CD), BLOCK))
        every = (Terms(*terms(rows_CD, index_CK, slope_CK, block)) for block in blocks)
        return noisy_sum(every, len(rows_CD), clip=self.dp_clip, noise=self.dp_noise, generator=ctx.rng)
