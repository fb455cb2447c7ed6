"""FedMLH (arXiv 2110.12292): labels hashed to buckets by several functions, with a network for each.

Facts and readings: docs/methods/fedmlh.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.class_embeddings import OneClass
from anchorfl.pipeline.algorithm.contract import HeadSpec, ServerContext
from anchorfl.pipeline.algorithm.cooccurrence import LabelCooccurrence
from anchorfl.pipeline.algorithm.seeds import seed_for


@dataclass(frozen=True, kw_only=True)
class FedMLH(OneClass):
    """R networks; class c belongs to bucket h_r(c) of each, which has a random unit row that never changes. The loss of
    a client is the sum over the networks, the score of a class the mean of its cosines. The adaptation to positive
    labels: the paper's binary cross-entropy would have no negatives.
    """

    name = "fedmlh"

    hash_tables: int = 4
    """R: hash functions, and networks."""
    buckets: int = 50
    """Buckets of each; classes that share all R of them are tied."""
    class_embedding_lr: float = 0.0
    """Rows are fixed: must be 0, since classes of one bucket share theirs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hash_tables < 1 or self.buckets < 1:
            raise ValueError("method: hash_tables and buckets must be at least 1")
        if self.class_embedding_lr:
            raise ValueError("method.class_embedding_lr: fedmlh does not move rows: set it to 0")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(kind="cosine", parts=self.hash_tables)

    def bucket(self, part: int, class_: int) -> int:
        """Return h_r(c), the same in every run."""
        return seed_for("fedmlh", part, class_) % self.buckets

    def first_rows(self, rows_CD: Tensor, cooccurrence: LabelCooccurrence, ctx: ServerContext) -> Tensor:
        drawn_HD = torch.randn(self.buckets, rows_CD.shape[1], generator=ctx.rng).to(rows_CD)
        rows_HRD = self.unit(drawn_HD).view(self.buckets, self.hash_tables, -1)
        of_CR = torch.tensor([[self.bucket(r, c) for r in range(self.hash_tables)] for c in range(len(rows_CD))])
        return rows_HRD[of_CR, torch.arange(self.hash_tables)].flatten(1)
