"""FLAG (Chang et al., arXiv 2302.13571): clients weigh by their share of every label's occurrences.

Facts and readings: docs/methods/flag.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anchorfl.pipeline.algorithm.class_embeddings import OneClass


@dataclass(frozen=True, kw_only=True)
class Flag(OneClass):
    """Weight of client k in the mean of theta: sum over classes of q_c n_kc / sum_j n_jc; a class row is the mean by
    n_kc / sum_j n_jc. A class that lies with one client has the share 1: the weight is q_c, the row the client's.
    """

    name = "flag"

    class_embedding_lr: float = 0.0
    """Rate of a client's step on its row; 0: random unit rows that never change."""
    label_weights: Literal["occurrence", "uniform"] = "occurrence"
    """q_c: share of class c in all occurrences of labels, or 1 / C, which is plain averaging here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting != "uniform":
            raise ValueError("method.weighting has no effect on FLAG: leave it out, and set method.label_weights")

    def client_weights(self, rows_I: Tensor) -> Tensor:
        return rows_I.double() if self.label_weights == "occurrence" else torch.ones(len(rows_I), dtype=torch.float64)
