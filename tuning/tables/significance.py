"""Whether two methods differ, by their scores on the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

FEWEST = 3
"""Pairs below which nothing is tested: two give a t-test one degree of freedom."""
FEWEST_RANKS = 6
"""Pairs below which Wilcoxon's test is left out: with five its two-sided p cannot fall below 0.06."""


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """A method against another over the seeds that both have.

    n: pairs; difference: mean of the first less the second (0 to 1), NaN without pairs; p: two-sided paired t-test,
    holm: p corrected for all comparisons of its family, wilcoxon: two-sided signed-rank test, uncorrected; None where
    not tested.
    """

    n: int
    difference: float
    p: float | None = None
    holm: float | None = None
    wilcoxon: float | None = None


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> PairedComparison:
    """Compare scores by seed. Nothing is tested below ``FEWEST`` pairs, nor where all differences are equal: a t-test
    has no spread to go by then.
    """
    from scipy.stats import ttest_rel, wilcoxon

    seeds = sorted(set(first) & set(second))
    a, b = [first[s] for s in seeds], [second[s] for s in seeds]
    differences = [x - y for x, y in zip(a, b, strict=True)]
    mean = statistics.fmean(differences) if differences else math.nan
    if len(seeds) < FEWEST or max(differences) - min(differences) < 1e-12:
        return PairedComparison(len(seeds), mean)
    ranks = None
    if len(seeds) >= FEWEST_RANKS:
        ranks = float(wilcoxon(differences, alternative="two-sided").pvalue)
    return PairedComparison(len(seeds), mean, float(ttest_rel(a, b, alternative="two-sided").pvalue), None, ranks)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Holm, 1979): the k-th smallest of m times m - k + 1, never below a smaller one's,
    at most 1; in the order given.
    """
    order = sorted(range(len(pvalues)), key=lambda i: pvalues[i])
    out, highest = [0.0] * len(pvalues), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(pvalues) - rank) * pvalues[i]))
        out[i] = highest
    return out


def apply_holm(family: Mapping[str, PairedComparison]) -> dict[str, PairedComparison]:
    """The comparisons of a family, those that were tested with Holm's correction over these."""
    tested = {name: one.p for name, one in family.items() if one.p is not None}
    by_name = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {name: replace(one, holm=by_name.get(name)) for name, one in family.items()}
