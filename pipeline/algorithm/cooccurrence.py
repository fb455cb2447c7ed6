"""Co-occurrence of labels: what FedALC's server keeps of the label sets that it collects before round 1.

Shape suffixes: C classes, K neighbours, M ordered pairs of classes that occur together, R classes of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelCooccurrence:
    """Numbers of instances that carry one class, or two; only pairs that occur are held."""

    pair_key_M: Tensor
    """int64, ascending: u * C + v of every ordered pair of two classes that some instance carries both of."""
    pair_count_M: Tensor
    """int64: instances that carry both."""
    class_count_C: Tensor
    """int64: instances of each class."""
    with_others_C: Tensor
    """int64: sum over the other classes of the instances that carry both."""
    instances: Tensor
    """int64 [1]: number of instances."""

    @classmethod
    def empty(cls) -> LabelCooccurrence:
        """Return the co-occurrence of a method that collects no labels: empty tensors, which cost nothing."""
        return cls(*(torch.zeros(0, dtype=torch.int64) for _ in range(5)))

    @classmethod
    def from_counts(cls, count_CC: Any, instances: int) -> LabelCooccurrence:
        """Read a SciPy CSR matrix of counts [C, C], which has the instances of each class on its diagonal."""
        entries = count_CC.tocoo()
        other_M = entries.row != entries.col
        row_M, col_M, count_M = entries.row[other_M].astype(np.int64), entries.col[other_M], entries.data[other_M]
        class_count_C = count_CC.diagonal().astype(np.int64)
        classes = len(class_count_C)
        values = (
            row_M * classes + col_M,
            count_M.astype(np.int64),
            class_count_C,
            np.bincount(row_M, count_M, classes).astype(np.int64),
            np.array([instances], dtype=np.int64),
        )
        return cls(*(torch.from_numpy(np.ascontiguousarray(value)) for value in values))

    def counts_of_pairs(self, index_CK: Tensor) -> Tensor:
        """Return the instances that carry a class and its neighbour, int64 [C, K]. index_CK: neighbours by number."""
        classes = len(self.class_count_C)
        key_CK = torch.arange(len(index_CK), device=index_CK.device)[:, None] * classes + index_CK
        if not len(self.pair_key_M):
            return torch.zeros_like(index_CK)
        position_CK = torch.searchsorted(self.pair_key_M, key_CK).clamp(max=len(self.pair_key_M) - 1)
        return torch.where(self.pair_key_M[position_CK] == key_CK, self.pair_count_M[position_CK], 0)

    def counts_of_rows(self, block: slice) -> Tensor:
        """Return the instances that carry a class of a block and any other, float64 [R, C]; 0 on the diagonal."""
        classes = len(self.class_count_C)
        ends = torch.tensor([block.start * classes, block.stop * classes])
        pairs = slice(*torch.searchsorted(self.pair_key_M, ends).tolist())
        count_RC = torch.zeros((block.stop - block.start) * classes, dtype=torch.float64)
        count_RC[self.pair_key_M[pairs] - block.start * classes] = self.pair_count_M[pairs].double()
        return count_RC.view(-1, classes)
