"""Strata: what partitions are made of: primary classes, whole-number shares, stratified hold-out, named generators.

Shape suffixes: N rows, C classes, K strata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.columns import Bools, Ints
from tasks.contract import InputError

Labels = Sequence[npt.NDArray[np.integer[Any]]] | Bools
"""Positive classes of rows: one array of class indices per row, or bool [N, C]."""


def generator(seed: int, *purpose: str) -> np.random.Generator:
    """The random generator of one purpose within a partition."""
    name = hashlib.sha256(repr((seed, "partition", *purpose)).encode()).digest()
    return np.random.default_rng(int.from_bytes(name[:8], "big"))


def positives(labels: Labels, classes: int) -> Bools:
    """Bool [N, C] of positive classes, from such a matrix or from one array of class indices per row."""
    if isinstance(labels, np.ndarray) and labels.ndim == 2:
        if labels.shape[1] != classes:
            msg = f"labels have {labels.shape[1]} columns, but there are {classes} classes"
            raise ValueError(msg)
        return labels.astype(np.bool_)
    y_NC = np.zeros((len(labels), classes), dtype=np.bool_)
    for row, classes_of_row in enumerate(labels):
        y_NC[row, classes_of_row] = True
    return y_NC


def primary_class(y_NC: Bools) -> Ints:
    """The rarest positive class of every row (the first of equals), -1 for a row without any: int64 [N]."""
    classes = y_NC.shape[1]
    rank_C = np.empty(classes, dtype=np.int64)
    order_C = np.argsort(y_NC.sum(0), kind="stable")
    rank_C[order_C] = np.arange(classes)
    best_N = np.where(y_NC, rank_C, classes).min(1, initial=classes)
    primary_N: Ints = np.append(order_C, -1)[best_N]
    return primary_N


def stratified_holdout(labels_N: Ints, row_ids: Ints, share: float, rng: np.random.Generator) -> Ints:
    """Ascending ids of ``round(share * N)`` rows, each class in proportion, each class keeping at least one row.

    labels_N: (primary) class of every row. Raises InputError where so many cannot be taken.
    """
    if not 0 <= share < 1:
        msg = f"[task] validation = {share} must lie in [0, 1)"
        raise InputError(msg)
    _, code_N, count_K = np.unique(labels_N, return_inverse=True, return_counts=True)
    total = round(share * len(labels_N))
    if total > (count_K - 1).sum():
        msg = (
            f"[task] validation = {share} takes {total} of {len(labels_N)} rows, but each of {len(count_K)} classes "
            f"must keep one for training; use at most {(count_K - 1).sum() / len(labels_N):.3f}"
        )
        raise InputError(msg)
    take_K = largest_remainder(share * count_K, total, count_K - 1)
    order_N = rng.permutation(len(labels_N))
    order_N = order_N[np.argsort(code_N[order_N], kind="stable")]
    rank_N = np.arange(len(order_N)) - np.repeat(np.cumsum(count_K) - count_K, count_K)
    return np.sort(np.asarray(row_ids, dtype=np.int64)[order_N[rank_N < np.repeat(take_K, count_K)]])


def largest_remainder(share_K: npt.NDArray[np.floating[Any]], total: int, room_K: Ints | None = None) -> Ints:
    """Whole numbers that add to ``total``, near ``share_K``, at most ``room_K``: floors, then the largest remainders.

    Equal remainders go to the lower index. Raises ValueError where the room is too small.
    """
    room_K = np.full(len(share_K), total) if room_K is None else room_K
    if room_K.sum() < total:
        msg = f"{total} do not fit into a room of {room_K.sum()}"
        raise ValueError(msg)
    share_K = share_K * (1 - 1e-12)  # rounding must not lift the floors above the total
    count_K: Ints = np.minimum(np.floor(share_K).astype(np.int64), room_K)
    order_K = np.argsort(-(share_K - np.floor(share_K)), kind="stable")
    while (missing := total - int(count_K.sum())) > 0:
        count_K[order_K[count_K[order_K] < room_K[order_K]][:missing]] += 1
    return count_K
