"""FedALC (arXiv 2404.15598): class rows spread out the less, the more often their classes occur together.

Facts and readings: docs/methods/fedalc.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.class_embeddings import Spreadout
from anchorfl.pipeline.algorithm.contract import Parts, ServerContext
from anchorfl.pipeline.algorithm.cooccurrence import LabelCooccurrence
from anchorfl.pipeline.algorithm.differential_privacy import PrivacyOptions, Terms, noisy_sum, privacy_notice
from anchorfl.pipeline.algorithm.label_collection import LabelMessage, Matching, collect_labels, label_message
from anchorfl.pipeline.algorithm.spreadout import ROWS_PER_BLOCK, gradient, terms
from anchorfl.tasks.contract import Card


@dataclass(frozen=True, kw_only=True)
class FedALC(Spreadout):
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
    """Names of instances: keyed digests, or ``sha256``, which hides nothing that can be guessed."""
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
        if self.dp_noise and self.spread_steps > 1:
            raise ValueError(
                "method.spread_steps: the privacy of dp_noise is counted for one step a round: set it to 1"
            )

    def privacy(self) -> PrivacyOptions:
        """Return the options of differential privacy. ValueError where they are bad."""
        return PrivacyOptions(noise=self.dp_noise, clip=self.dp_clip, delta=self.dp_delta)

    def notice(self, rounds: int) -> str:
        return privacy_notice(self.privacy(), rounds)

    def initial_message(self, card: Card, parts: Parts, key: bytes) -> LabelMessage:
        return label_message(parts, self.matching, key if self.matching == "hmac" else b"")

    def initial_statistics(self, ctx: ServerContext) -> LabelCooccurrence:
        return collect_labels(ctx.initial_messages, ctx.cards)

    def pair_weights(self, index_CK: Tensor, cooccurrence: LabelCooccurrence) -> Tensor:
        """Return omega [C, K]; a class that never occurs without its neighbours pushes none of them."""
        count_C, instances = cooccurrence.class_count_C.double(), cooccurrence.instances.double()
        sigma_CK = (count_C[:, None] - cooccurrence.counts_of_pairs(index_CK)) / instances
        if self.weights == "sigma":
            return sigma_CK.float()
        scale_C1 = sigma_CK.mean(1, keepdim=True)
        if self.weights == "gamma":
            without_C = (len(count_C) - 1) * count_C - cooccurrence.with_others_C.double()
            scale_C1 = (without_C / instances)[:, None]
        return torch.where(scale_C1 > 0, sigma_CK / scale_C1, 0.0).float()

    def direction(self, rows_CD: Tensor, index_CK: Tensor, slope_CK: Tensor, ctx: ServerContext) -> Tensor:
        if not self.dp_noise:
            return gradient(rows_CD, index_CK, slope_CK)
        blocks = (slice(start, start + ROWS_PER_BLOCK) for start in range(0, len(rows_CD), ROWS_PER_BLOCK))
        every = (Terms(*terms(rows_CD, index_CK, slope_CK, block)) for block in blocks)
        return noisy_sum(every, len(rows_CD), clip=self.dp_clip, noise=self.dp_noise, generator=ctx.noise_rng)
