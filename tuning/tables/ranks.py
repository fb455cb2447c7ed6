"""Ranks of methods over several data sets: mean ranks, Friedman's test and Nemenyi's critical difference; and the best
one against each other one by a Bayesian signed-rank test.

Sources: Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets" (JMLR 7, 2006), section 3.2; Benavoli
et al., "A Bayesian Wilcoxon signed-rank test based on the Dirichlet process" (ICML 2014), equation 7 with s = 1/2 and
z_0 = 0, as in their tutorial (JMLR 18, 2017). Shape suffixes: S data sets (settings), M methods, Z draws.
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


DRAWS = 200_000
"""Draws from the posterior; the standard error of a probability is below 0.0012."""


@dataclass(frozen=True)
class Duel:
    """The best row against another one, on all data sets that have both."""

    other: str
    settings: int
    """Data sets."""
    difference: float
    """Mean over them of the best row's score less the other's."""
    probability: float
    """Posterior probability that the best row is better than the other on a data set like these."""


@dataclass(frozen=True)
class Ranking:
    """Methods on the same data sets, the best first."""

    methods: tuple[str, ...]
    settings: tuple[str, ...]
    rank_SM: npt.NDArray[np.float64]
    """Rank of each method on each data set: 1 is the best, equals share the mean of theirs."""
    p: float
    """p of Friedman's test in Iman's and Davenport's form: that all methods are alike. Not corrected for ties, which
    makes it larger."""
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


DIGITS = 9
"""Of scores that are compared: means of equal scores differ in last bits."""


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
    rank_SM = rankdata([[-round(scores[s][m], DIGITS) for m in methods] for s in settings], axis=1)
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


def probability_better(difference_S: npt.ArrayLike) -> float:
    """Return the posterior probability that a score is higher, by its differences on several data sets: that two
    random data sets with replacement, weighted by the posterior, have a sum above 0 more often than one below. A half
    where neither is ever higher.
    """
    z_S = np.concatenate([[0.0], np.asarray(difference_S, dtype=np.float64)])
    sign_SS = np.sign(np.round(z_S[:, None] + z_S, DIGITS))
    weight_ZS = np.random.default_rng(0).dirichlet([0.5, *[1.0] * (len(z_S) - 1)], size=DRAWS)
    return float(np.heaviside(((weight_ZS @ sign_SS) * weight_ZS).sum(1), 0.5).mean())


def duels(scores: Mapping[str, Mapping[str, float]], best: str) -> list[Duel]:
    """Return a method against each other one that shares ``FEWEST`` data sets with it, in the order of the scores."""
    out = []
    for other in dict.fromkeys(m for of in scores.values() for m in of if m != best):
        both = [of[best] - of[other] for of in scores.values() if best in of and other in of]
        if len(both) >= FEWEST:
            out.append(Duel(other, len(both), float(np.mean(both)), probability_better(both)))
    return out


def ranking_of(table: Table) -> Ranking | None:
    """Rank the rows of a table by the mean of each data set's first metric; None as ``rank``, or where an option is
    varied.
    """
    return rank(scores_of(table))


def duels_of(table: Table) -> list[Duel]:
    """Return the best row of a table, by its mean rank, against each other one; empty where nothing is ranked."""
    scores = scores_of(table)
    ranking = rank(scores)
    return duels(scores, ranking.methods[0]) if ranking is not None else []


def scores_of(table: Table) -> dict[str, dict[str, float]]:
    """Return data set -> row -> mean of the data set's first metric; rows that have all their seeds, data sets that
    have ``FEWEST`` of these, and none where an option is varied.
    """
    if table.varied:
        return {}
    return {data: whole for data, whole in whole_rows(table).items() if len(whole) >= FEWEST}


def whole_rows(table: Table) -> dict[str, dict[str, float]]:
    """Return data set -> row that has all its seeds -> mean of the data set's first metric."""
    scores: dict[str, dict[str, float]] = {}
    for data, rows in table.data:
        entries = [e for e in table.entries if e.row in rows and e.metric in metrics_of(table.paper, data)[:1]]
        scores[data] = {e.row.shown: e.mean for e in entries if e.mean is not None and len(e.scores) == len(e.seeds)}
    return scores
