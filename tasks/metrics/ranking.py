"""Scores of rankings: P@k, nDCG@k, PSP@k and mean average precision, from scores and sparse labels, chunk by chunk.

- A row ranks the classes by their scores, the largest first; of equal scores the class with the lower index comes
  first. There is no threshold.
- P@k: hits among the k first over k, as a mean over ALL rows. It is always divided by k: a row with fewer than k
  labels cannot reach 1, one without any counts 0, and ranks beyond the last class (k > C) are misses.
- nDCG@k: the sum of 1 / log2(rank + 1) over the hits among the k first, over the largest sum that the row's labels
  allow (its min(k, labels) first ranks), as a mean over ALL rows; a row without a label counts 0.
- PSP@k: the sum of 1 / propensity over the hits among the k first of every row, over the largest sum that the labels
  allow, both summed over all rows before they are divided (normalized as in the Extreme Classification Repository).
- mAP: the mean over the classes with a positive row of their average precision over the rows, which is the area under
  precision and recall in steps, equal scores one threshold (scikit-learn's ``average_precision_score``).
- A label that is not known is neither a hit nor ranked: its class comes last in the row, and for mAP the row is not
  among the class's rows.

All but mAP need a row's scores only once. mAP needs all scores of a class together, so they are kept, class by class,
up to ``KEPT`` of them (0.5 GiB in float32: FLAIR's 43,960 x 1,628 and EURLex's 3,809 x 3,993 fit, AmazonCat's
306,782 x 13,330 do not); above that it is left out and a note says so. Sums over rows are exact before they are rounded
(``math.fsum``), so that neither the order of the rows nor the size of the chunks changes a figure.

Measured beside a library in docs/why-by-hand.md.

Shape suffixes: N rows of a split, B rows of a chunk, C classes, P positives, K the first ranks of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.scores import CUTS, MAP, NDCG_AT, P_AT, PSP_AT, Floats, Scores

KEPT = 2**27
"""Scores that are kept for mAP at most."""
PER_CLASS = 1000
"""Up to so many classes the average precision of every class is part of the result."""
Array = npt.NDArray[Any]


def propensities(count_C: Ints, rows: int, a: float = 0.55, b: float = 1.5) -> Floats:
    """Return the probability that a label is recorded where it is true: Jain, Prabhu and Varma (KDD 2016).

    p_c = 1 / (1 + (ln N - 1) (b + 1)^a / (N_c + b)^a), with N = ``rows``, the training rows, and N_c = ``count_C``,
    those with class c. Below three rows, where ln N - 1 is negative, every p is 1.
    """
    factor = max(0.0, math.log(max(1, rows)) - 1) * (b + 1) ** a
    return np.asarray(1 / (1 + factor * (count_C + b) ** -a), dtype=np.float64)


def top_classes(score_BC: Array, count: int) -> Ints:
    """Return the classes with the largest scores, best first, of equals the lower index first: int64 [B, min(count,
    C)].

    ``torch.topk`` and ``numpy.argpartition`` leave open which of several equal scores they take.
    """
    rows, classes = score_BC.shape
    count = min(count, classes)
    least_B1 = np.partition(score_BC, classes - count, axis=1)[:, classes - count, None]
    taken_BC, equal_BC = score_BC > least_B1, score_BC == least_B1
    free_B = count - taken_BC.sum(1)
    crowded = np.flatnonzero(equal_BC.sum(1) > free_B)  # more equal scores than ranks: the first of them
    equal_BC[crowded] &= np.cumsum(equal_BC[crowded], axis=1, dtype=np.int32) <= free_B[crowded, None]
    class_BK = np.flatnonzero(taken_BC | equal_BC).reshape(rows, count) % classes
    order_BK = np.argsort(-np.take_along_axis(score_BC, class_BK, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(class_BK, order_BK, axis=1), dtype=np.int64)


class Ranking:
    """The scores of a split as its rows come in.

    rows: N; classes: C; propensity_C: for PSP@k, which is left out without them; kept: as ``KEPT``.
    """

    def __init__(self, rows: int, classes: int, propensity_C: Floats | None = None, kept: int = KEPT) -> None:
        self.rows, self.classes = rows, classes
        self.gain_C = None if propensity_C is None else 1 / propensity_C
        self.keeps = rows * classes <= kept
        self.done = 0
        self.unlabeled = 0
        self._hits = np.zeros(len(CUTS), dtype=np.int64)
        self._ndcg: list[Floats] = []
        self._gained: list[Floats] = []
        self._best: list[Floats] = []
        self._score_CN: Array | None = None
        self._row_P: list[Ints] = []
        self._class_P: list[npt.NDArray[np.int32]] = []

    def add(self, score_BC: Array, labels: Labels, known_BC: Bools | None = None) -> None:
        """Take the next rows. known_BC: which of their labels are known; None: all.

        Raises ValueError on shapes that do not fit, InputError where a score is not finite.
        """
        stop = self.done + len(score_BC)
        if score_BC.shape != (len(labels), self.classes) or labels.classes != self.classes or stop > self.rows:
            msg = f"scores {score_BC.shape} for {len(labels)} rows of {labels.classes} classes, after {self.done} of"
            raise ValueError(f"{msg} {self.rows} rows of {self.classes} classes")
        if not np.isfinite(score_BC).all():
            row = self.done + int(np.flatnonzero(~np.isfinite(score_BC).all(1))[0])
            raise InputError(f"row {row} has a score that is not finite: the model diverged; lower optimizer.lr")
        if known_BC is not None:
            score_BC = np.where(known_BC, score_BC, score_BC.dtype.type(-np.inf))
            labels = labels.where(known_BC[labels.row_P, labels.class_P])
        self._rank(score_BC, labels)
        if self.keeps:
            self._keep(score_BC, labels, stop)
        self.done = stop

    def _rank(self, score_BC: Array, labels: Labels) -> None:
        """Count the hits among the first ranks of these rows."""
        top_BK = top_classes(score_BC, max(CUTS))
        key_P = labels.row_P * self.classes + labels.class_P
        hit_BK = np.isin(np.arange(len(labels))[:, None] * self.classes + top_BK, key_P)
        self.unlabeled += int((labels.length_N == 0).sum())
        self._hits += [int(hit_BK[:, :k].sum()) for k in CUTS]
        self._ndcg.append(_ndcg(hit_BK, labels.length_N))
        if self.gain_C is not None:
            self._gained.append(hit_BK * self.gain_C[top_BK])
            self._best.append(_best(self.gain_C, labels))

    def _keep(self, score_BC: Array, labels: Labels, stop: int) -> None:
        if self._score_CN is None:
            self._score_CN = np.empty((self.classes, self.rows), dtype=score_BC.dtype)
        self._score_CN[:, self.done : stop] = score_BC.T
        self._row_P.append(labels.row_P + self.done)
        self._class_P.append(labels.class_P)

    def scores(self) -> Scores:
        """Return the figures, when all rows are there. Raises ValueError where some are not."""
        if self.done != self.rows:
            raise ValueError(f"{self.done} of {self.rows} rows were added")
        rows = max(1, self.rows)
        values = {m.name: int(n) / (k * rows) for m, k, n in zip(P_AT, CUTS, self._hits, strict=True)}
        ndcg_NK = _stacked(self._ndcg, len(CUTS))
        values |= {m.name: math.fsum(ndcg_N) / rows for m, ndcg_N in zip(NDCG_AT, ndcg_NK.T, strict=True)}
        if self.gain_C is not None:
            count = min(max(CUTS), self.classes)
            gained_NK, best_NK = _stacked(self._gained, count), _stacked(self._best, max(CUTS))
            values |= {m.name: _share(gained_NK[:, :k], best_NK[:, :k]) for m, k in zip(PSP_AT, CUTS, strict=True)}
        per_class: dict[str, Floats] = {}
        if self.keeps:
            precision_C, supported_C = self._average_precision()
            values[MAP.name] = math.fsum(precision_C) / max(1, int(supported_C.sum()))
            if self.classes <= PER_CLASS:
                per_class["average_precision"] = precision_C
        return Scores("ranking", values, per_class, {"rows_without_label": float(self.unlabeled)}, self._notes())

    def _average_precision(self) -> tuple[Floats, Bools]:
        """Return the average precision of every class, 0 of one without a positive row, and which have one."""
        precision_C, supported_C = np.zeros(self.classes), np.zeros(self.classes, dtype=np.bool_)
        if self._score_CN is None:  # no rows
            return precision_C, supported_C
        row_P, class_P = np.concatenate(self._row_P), np.concatenate(self._class_P)
        order_P = np.argsort(class_P, kind="stable")
        first_C = np.searchsorted(class_P[order_P], np.arange(self.classes + 1))
        supported_C = np.diff(first_C) > 0
        for class_ in np.flatnonzero(supported_C):
            score_N = self._score_CN[class_]
            precision_C[class_] = average_precision(score_N, row_P[order_P[first_C[class_] : first_C[class_ + 1]]])
        return precision_C, supported_C

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.unlabeled:
            notes.append(f"{self.unlabeled} of {self.rows} rows have no known label; each counts 0 in P@k and nDCG@k")
        if self.gain_C is None:
            notes.append("PSP@k is left out: it needs the class counts of the training rows")
        if not self.keeps:
            notes.append(f"mAP is left out: it would have to hold {self.rows} x {self.classes} scores")
        return tuple(notes)


def average_precision(score_N: Array, positives: Ints) -> float:
    """Return the mean over the positive rows of the share of positives among the rows that score no less.

    positives: at least one row. The mean is the sum over thresholds of precision times the gain in recall.
    """
    score_P, sorted_N = np.sort(score_N[positives]), np.sort(score_N)
    hits_P = len(score_P) - np.searchsorted(score_P, score_P, side="left")
    among_P = len(sorted_N) - np.searchsorted(sorted_N, score_P, side="left")
    return math.fsum(hits_P / among_P) / len(score_P)


def _ndcg(hit_BK: Bools, labels_B: Ints) -> Floats:
    """Return the normalized discounted cumulative gain of every row at every k of ``CUTS``: [B, cuts]."""
    discount_K = 1 / np.log2(np.arange(max(CUTS)) + 2)
    gained_BK = np.cumsum(hit_BK * discount_K[: hit_BK.shape[1]], axis=1)
    largest_K1 = np.concatenate([[0.0], np.cumsum(discount_K)])
    out = np.zeros((len(hit_BK), len(CUTS)))
    for column, k in enumerate(CUTS):
        largest_B = largest_K1[np.minimum(labels_B, k)]
        gained_B = gained_BK[:, min(k, hit_BK.shape[1]) - 1]
        out[:, column] = np.divide(gained_B, largest_B, out=out[:, column], where=largest_B > 0)
    return out


def _best(gain_C: Floats, labels: Labels) -> Floats:
    """Return the largest gains among the labels of every row, descending, 0 where it has fewer labels: [B, K]."""
    order_P = np.lexsort((-gain_C[labels.class_P], labels.row_P))
    rank_P = np.arange(len(order_P)) - labels.offset_N1[labels.row_P]
    best_BK = np.zeros((len(labels), max(CUTS)))
    kept_P = rank_P < max(CUTS)
    best_BK[labels.row_P[kept_P], rank_P[kept_P]] = gain_C[labels.class_P[order_P[kept_P]]]
    return best_BK


def _stacked(parts: Sequence[Floats], width: int) -> Floats:
    return np.concatenate([np.zeros((0, width)), *parts])


def _share(part: Iterable[Floats], whole: Iterable[Floats]) -> float:
    """Return the sum of all of ``part`` over that of ``whole``, 0 where that is 0."""
    total = math.fsum(value for row in whole for value in row)
    return math.fsum(value for row in part for value in row) / total if total else 0.0
