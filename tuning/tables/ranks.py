"""Ranks of methods over several data sets: mean ranks, Friedman's test and Nemenyi's critical difference.

Source: Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets" (JMLR 7, 2006), section 3.2.
Shape suffixes: S data sets (settings), M methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anchorfl.tuning.tables.published import metrics_of
from anchorfl.tuning.tables.statistics import Table

ALPHA = 0.05
"""Level of the critical difference."""
FEWEST = 3
"""Data sets, and methods, below which nothing is ranked."""


@dataclass(frozen=True)
class Ranking:
    """Methods on the same data sets, the best first."""

    methods: tuple[str, ...]
    settings: tuple[str, ...]
    rank_SM: npt.NDArray[np.float64]
    """Rank of each method on each data set: 1 is the best, equals share the mean of theirs."""
    p: float
    """p of Friedman's test in Iman's and Davenport's form: that all methods are alike."""
    critical_difference: float
    """Mean ranks that differ by at least this differ at ``ALPHA`` (Nemenyi)."""

    @property
    def mean_ranks(self) -> dict[str, float]:
        """Method -> mean rank, the best first."""
        return dict(zip(self.methods, map(float, self.rank_SM.mean(0)), strict=True))

    @property
    def alike(self) -> list[tuple[str, ...]]:
        """Groups of neighbors whose mean ranks differ by less than the critical difference, none within another."""
        ranks, groups, end = list(self.mean_ranks.values()), list[tuple[str, ...]](), 0
        for first, rank in enumerate(ranks):
            last = max(i for i, other in enumerate(ranks) if other - rank < self.critical_difference)
            if last > max(first, end):
                groups.append(self.methods[first : last + 1])
            end = max(end, last)
        return groups


def rank(scores: Mapping[str, Mapping[str, float]]) -> Ranking | None:
    """Rank methods by score, on the data sets that have all of them.

    scores: data set -> method -> score, the higher the better. None where fewer than ``FEWEST`` data sets or methods
    are left: methods count that stand in every data set.
    """
    from scipy.stats import f, rankdata

    settings = tuple(scores)
    methods = [m for m in next(iter(scores.values()), {}) if all(m in of for of in scores.values())]
    if len(settings) < FEWEST or len(methods) < FEWEST:
        return None
    rank_SM = rankdata([[-scores[s][m] for m in methods] for s in settings], axis=1)
    s, m = rank_SM.shape
    mean_M = rank_SM.mean(0)
    chi = 12 * s / (m * (m + 1)) * (float((mean_M**2).sum()) - m * (m + 1) ** 2 / 4)
    rest = s * (m - 1) - chi
    p = float(f.sf((s - 1) * chi / rest, m - 1, (m - 1) * (s - 1))) if rest > 1e-9 else 0.0
    order = sorted(range(m), key=lambda i: (mean_M[i], methods[i]))
    return Ranking(tuple(methods[i] for i in order), settings, rank_SM[:, order], p, critical_difference(m, s))


def critical_difference(methods: int, settings: int, alpha: float = ALPHA) -> float:
    """Return Nemenyi's critical difference of mean ranks."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * settings))


def ranking_of(table: Table) -> Ranking | None:
    """Rank the rows of a table by the mean of each data set's first metric; None as ``rank``, or where an option is
    varied. A data set counts with the rows that have all their seeds.
    """
    if table.varied:
        return None
    scores: dict[str, dict[str, float]] = {}
    for data, rows in table.data:
        entries = [e for e in table.entries if e.row in rows and e.metric in metrics_of(table.paper, data)[:1]]
        whole = {e.row.shown: e.mean for e in entries if e.mean is not None and len(e.scores) == len(e.seeds)}
        if whole:
            scores[data] = whole
    return rank(scores)
