"""What the clients' cards say of the classes: their shares, and what these leave.

Shape suffix: C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anchorfl.tasks.contract import Card


def shares_left(cards: Sequence[Card]) -> tuple[Tensor, Tensor]:
    """Return the share of a client's rows that each class has which nobody identifies, 0 for the others [C], and the
    share of the labels of identified classes that are missing []; float64.

    A class's share is taken to be that among the rows of the clients that identify it. What these shares leave is of
    the classes that nobody identifies, in equal parts; where there are none, and it is more than twice its standard
    error, it is of rows whose labels are missing.
    """
    count_C, rows_C = (torch.zeros(len(cards[0].count_C), dtype=torch.float64) for _ in range(2))
    for card in cards:
        rows_C += card.identified_C * card.num_examples
        count_C += card.identified_C * card.count_C
    share_C = count_C / rows_C.clamp(min=1)
    left, error = (1 - share_C.sum()).clamp(min=0), (share_C * (1 - share_C) / rows_C.clamp(min=1)).sum().sqrt()
    unseen_C = (rows_C == 0).to(rows_C)
    missing = left * (left > 2 * error) * (1 - unseen_C.amax())
    return unseen_C * (left / unseen_C.sum().clamp(min=1)), missing
