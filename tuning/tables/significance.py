"""Paired tests: do two methods differ, by their scores on the same seeds?"""

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
    """A method against another over the seeds that both have. A p is None where nothing was tested."""

    n: int
    """Pairs."""
    difference: float
    """Mean of the first less the second (0 to 1), NaN without pairs."""
    p: float | None = None
    """p of the two-sided paired t-test."""
    holm: float | None = None
    """``p`` corrected for all comparisons of its family."""
    wilcoxon: float | None = None
    """p of the two-sided signed-rank test, uncorrected."""


def compare_paired(first: Mapping[int, float], second: Mapping[int, float]) -> PairedComparison:
    """Compare scores by seed.

    Nothing is tested below ``FEWEST`` pairs, nor where all differences are equal: a t-test has no spread to go by then.
    """
    from scipy.stats import ttest_rel, wilcoxon

    seeds = sorted(set(first) & set(second))
    a, b = [first[s] for s in seeds], [second[s] for s in seeds]
    differences = [round(x - y, 12) for x, y in zip(a, b, strict=True)]  # equal ones are ties, to the last bit
    mean = statistics.fmean(differences) if differences else math.nan
    if len(seeds) < FEWEST or max(differences) - min(differences) < 1e-12:
        return PairedComparison(len(seeds), mean)
    ranks = None
    if len(seeds) >= FEWEST_RANKS:
        ranks = float(wilcoxon(differences, alternative="two-sided").pvalue)
    return PairedComparison(len(seeds), mean, float(ttest_rel(a, b, alternative="two-sided").pvalue), None, ranks)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's step-down correction (Holm, 1979), in the order given.

    The k-th smallest of m is multiplied by m - k + 1; it is never below a smaller one's, and at most 1.
    """
    order = sorted(range(len(pvalues)), key=lambda i: pvalues[i])
    out, highest = [0.0] * len(pvalues), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(pvalues) - rank) * pvalues[i]))
        out[i] = highest
    return out


def apply_holm(family: Mapping[str, PairedComparison]) -> dict[str, PairedComparison]:
    """Return the comparisons of a family; those that were tested have Holm's correction over these."""
    tested = {name: one.p for name, one in family.items() if one.p is not None}
    by_name = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {name: replace(one, holm=by_name.get(name)) for name, one in family.items()}
