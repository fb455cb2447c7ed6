"""FedAvg on positive labels (FedALC's baseline): every client pulls, nothing spreads the class rows out.

Facts and readings: docs/methods/fedaws.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from anchorfl.pipeline.algorithm.class_embeddings import OneClass


@dataclass(frozen=True, kw_only=True)
class FedAvgPositive(OneClass):
    """FedALC with lambda = 0: the class rows drift together. ``class_embedding_lr = 0`` is FedAvg-fixed: random unit
    rows that never change (FedAwS's second baseline).
    """

    name = "fedavg-positive"
