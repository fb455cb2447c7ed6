"""What the clients' cards say of the classes' shares, and of labels that are missing.

Shape suffix: C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anchorfl.tasks.contract import Card


def missing_share(cards: Sequence[Card]) -> Tensor:
    """Return the share of the labels of identified classes that are missing [], float64; 0 where nobody identifies
    some class.

    A class's share is taken to be that among the rows of the clients that identify it. What these shares leave, where
    it is more than twice its standard error, is of rows whose labels are missing.
    """
    count_C, rows_C = (torch.zeros(len(cards[0].count_C), dtype=torch.float64) for _ in range(2))
    for card in cards:
        rows_C += card.identified_C * card.num_examples
        count_C += card.identified_C * card.count_C
    share_C = count_C / rows_C.clamp(min=1)
    left, error = (1 - share_C.sum()).clamp(min=0), (share_C * (1 - share_C) / rows_C.clamp(min=1)).sum().sqrt()
    return left * ((left > 2 * error) & (rows_C > 0).all())
