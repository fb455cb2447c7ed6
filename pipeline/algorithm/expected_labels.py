"""What is expected of rows without a label: how many labels are missing, which ones these would be, and their weight.

Shape suffixes: N rows of a client, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anchorfl.tasks.contract import Card, ClientData, Objective


def missing_share(cards: Sequence[Card]) -> Tensor:
    """Return the share of the labels of identified classes that are missing [], float64; 0 where nobody identifies
    some class.

    A class's share is taken to be that among the rows of the clients that identify it. What these shares leave, where
    it is more than twice an upper bound of its standard error, is of rows whose labels are missing.
    """
    count_C, rows_C = identified_rows(cards)
    share_C = count_C / rows_C.clamp(min=1)
    left, error = (1 - share_C.sum()).clamp(min=0), (share_C * (1 - share_C) / rows_C.clamp(min=1)).sum().sqrt()
    return left * ((left > 2 * error) & (rows_C > 0).all())


def identified_rows(cards: Sequence[Card]) -> tuple[Tensor, Tensor]:
    """Return each class's rows with its label, and all rows, of the clients that identify it; [C] each, float64."""
    count_C, rows_C = (torch.zeros(len(cards[0].count_C), dtype=torch.float64) for _ in range(2))
    for card in cards:
        rows_C += card.identified_C * card.num_examples
        count_C += card.identified_C * card.count_C
    return count_C, rows_C


def expectation(logits_NC: Tensor, data: ClientData, odds_C: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """Return the expected labels [N, C], and 1 where they stand for labels that are not known, else 0 [N, C].

    Single-label: of a row without a label, the softmax times ``odds_C``, the probability that a row of the class has
    none; a row that can be nothing is left out. Multi-label: of every label that is not known, its probability.
    """
    if objective.kind == "multi":
        return logits_NC.sigmoid(), (data.known_NC == 0).to(logits_NC)
    open_N = (data.known_NC == 0).all(-1) & odds_C.any()
    target_NC = possible(logits_NC, odds_C).softmax(-1)
    return target_NC, open_N.to(logits_NC)[:, None].expand_as(target_NC)


def weight(target_NC: Tensor, open_NC: Tensor, data: ClientData, missing: Tensor, objective: Objective) -> Tensor:
    """Return the weight of every expected label's squared distance [N, C]. missing: share of labels that are, [].

    Single-label: the less, the surer the model is, which would confirm itself. Multi-label: the distance is of a
    label's two values, of C in the mean, and a client's expected labels count together no more than its known ones.
    """
    if objective.kind == "multi":
        known = (data.known_NC.sum() / open_NC.sum().clamp(min=1)).clamp(max=1)
        return open_NC * known * 2 / open_NC.shape[1]
    return open_NC * (1 - (1 - missing) * target_NC.square().sum(-1, keepdim=True))


def possible(logits_NC: Tensor, odds_C: Tensor) -> Tensor:
    """Return the logits of a row's class, given that it has no label; as they are, where every row would have one."""
    return logits_NC + torch.where(odds_C.any(), odds_C, 1.0).log()
