"""Mean representations of a client's classes, and of a class over the clients that have it (FedProto, FedTSP).

Shape suffixes: N rows of the client, C classes, K classes that it has rows of, D width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.algorithm.contract import ClientContext
from anchorfl.pipeline.algorithm.exact_sums import Means, Term

NAME = "rows_CD"
"""Name of the term, and of its tensor."""


def class_means(ctx: ClientContext[Any], model: Classifier) -> tuple[Tensor, Tensor]:
    """Return the mean representation of the client's labeled rows of each class that has some [K, D], and which classes
    these are (bool [C]); by the encoder in evaluation mode.
    """
    data = ctx.data
    z_ND, label_NC = ctx.infer(model, data), data.y_NC * data.known_NC
    count_C = label_NC.double().sum(0)
    held_C = count_C > 0
    rows_KD = (label_NC[:, held_C].double().T @ z_ND.double()) / count_C[held_C, None]
    return rows_KD.to(z_ND.dtype), held_C


def means_term(rows_KD: Tensor, held_C: Tensor) -> Term:
    """Return what the server takes in of them: a mean in which every client that has a class counts as one."""
    held_C = held_C != 0  # a client has a class or not, whatever it sends
    rows_CD = rows_KD.new_zeros(len(held_C), rows_KD.shape[1])
    rows_CD[held_C] = rows_KD
    return Term({NAME: rows_CD}, held_C.double())


def with_means(rows_CD: Tensor, held_C: Tensor, means: Means) -> tuple[Tensor, Tensor]:
    """Return the server's means after a round, and which classes have one; those that nobody had a row of stay."""
    before = {NAME: rows_CD}
    after = before | means.rows(NAME, before)
    return after[NAME], held_C | (means.weight[NAME] > 0)
