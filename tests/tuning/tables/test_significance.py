"""Paired tests against NumPy by hand, Holm's correction against a worked example, and what is not tested."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from anchorfl.tuning.tables.significance import PairedComparison, apply_holm, compare_paired, holm


def by_seed(scores: list[float]) -> dict[int, float]:
    return dict(enumerate(scores, 4321))


@pytest.mark.parametrize("n", [3, 5, 6, 9])
def test_t_is_the_textbook_s(n):
    """t = mean / (sd / sqrt n) of the differences, two-sided, n - 1 degrees of freedom."""
    rng = np.random.default_rng(n)
    a, b = rng.normal(0.8, 0.05, n), rng.normal(0.75, 0.05, n)
    d = a - b
    t = d.mean() / (d.std(ddof=1) / math.sqrt(n))
    got = compare_paired(by_seed(list(a)), by_seed(list(b)))
    assert got.n == n
    assert got.difference == pytest.approx(d.mean(), abs=1e-12)
    assert got.p == pytest.approx(2 * stats.t.sf(abs(t), n - 1), rel=1e-9)
    assert got.holm is None
    assert (got.wilcoxon is None) == (n < 6)


def enumerated(differences) -> float:
    """Wilcoxon's exact p: the share of all signs of the ranks whose sum is as far from the middle."""
    ranks = stats.rankdata(np.abs(differences))
    middle = ranks.sum() / 2
    far = abs(ranks[np.array(differences) > 0].sum() - middle)
    signs = np.array(list(itertools.product((0, 1), repeat=len(ranks))))
    return float((abs(signs @ ranks - middle) >= far).mean())


def test_ranks_by_enumeration():
    d = np.array([0.05, -0.01, 0.02, 0.07, -0.03, 0.04, 0.06])
    got = compare_paired(by_seed(list(0.5 + d)), by_seed([0.5] * 7))
    assert got.wilcoxon == pytest.approx(enumerated(d))


def test_seeds_without_a_difference_have_no_rank():
    """Wilcoxon's own way with them, and not Pratt's: the others are tested as if these were not there."""
    d = [0.05, -0.01, 0.02, 0.07, -0.03, 0.04]
    got = compare_paired(by_seed([0.5, *(0.5 + x for x in d)]), by_seed([0.5] * 7))
    assert (got.n, got.difference) == (7, pytest.approx(sum(d) / 7))
    assert got.wilcoxon == pytest.approx(enumerated(d))


def test_differences_are_tested_however_small_their_spread_is():
    """Of 1, 2 and 4 hundred thousandths, t is that of 1, 2 and 4: 7/3 / sqrt(7/3 / 3), with p = 1 - t / sqrt(2 + t^2)
    for 2 degrees of freedom.
    """
    got = compare_paired(by_seed([0.50001, 0.60002, 0.70004]), by_seed([0.5, 0.6, 0.7]))
    t = (7 / 3) / math.sqrt(7 / 9)
    assert got.p == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6)


def test_only_seeds_that_both_have():
    ours, theirs = {1: 0.9, 2: 0.8, 3: 0.7, 9: 0.1}, {1: 0.8, 2: 0.75, 3: 0.5, 4: 0.99}
    got = compare_paired(ours, theirs)
    assert got.n == 3
    assert got.difference == pytest.approx((0.1 + 0.05 + 0.2) / 3)
    assert got.p == pytest.approx(compare_paired({1: 0.9, 2: 0.8, 3: 0.7}, {1: 0.8, 2: 0.75, 3: 0.5}).p)


def test_pairs_are_those_of_a_seed_in_whatever_order_the_runs_were_read():
    ours, theirs = {1: 0.9, 2: 0.8, 3: 0.7, 4: 0.75}, {1: 0.8, 2: 0.75, 3: 0.5, 4: 0.7}
    expected = compare_paired(ours, theirs)
    assert expected.p == pytest.approx(stats.ttest_rel([0.9, 0.8, 0.7, 0.75], [0.8, 0.75, 0.5, 0.7]).pvalue)
    for order in itertools.permutations(ours):
        assert compare_paired(ours, {seed: theirs[seed] for seed in order}) == expected


def test_what_is_not_tested():
    """Two pairs; no pair; differences without spread, which a t-test would call certain or undefined."""
    assert compare_paired({1: 0.9, 2: 0.8}, {1: 0.1, 2: 0.3}) == PairedComparison(2, pytest.approx(0.65))
    assert compare_paired({1: 0.5}, {2: 0.5}).n == 0
    assert math.isnan(compare_paired({1: 0.5}, {2: 0.5}).difference)
    same = by_seed([0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert compare_paired(same, same) == PairedComparison(6, 0.0)
    assert compare_paired({s: v + 0.01 for s, v in same.items()}, same).p is None


def test_holm_by_hand():
    """Sorted .005 .01 .03 .04: times 4, 3, 2, 1 is .02 .03 .06 .04, and the last may not fall below the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


def test_holm_counts_what_was_tested():
    """A row without a test does not make the others pay for it."""
    family = {"a": PairedComparison(5, 0.1, 0.01), "b": PairedComparison(2, 0.1), "c": PairedComparison(5, 0.1, 0.03)}
    got = apply_holm(family)
    assert (got["a"].holm, got["b"].holm, got["c"].holm) == (pytest.approx(0.02), None, pytest.approx(0.03))
    assert got["a"].p == 0.01


def test_equal_differences_of_right_rows_are_ties():
    """As the ranks of whole numbers have them: +2, +2, -2, ... of 359 rows are one size."""
    first = {seed: (300 + seed + step) / 359 for seed, step in enumerate((2, 2, -2, 2, 2, 2, 2, 2))}
    second = {seed: (300 + seed) / 359 for seed in first}
    assert compare_paired(first, second).wilcoxon == pytest.approx(stats.wilcoxon([2, 2, -2, 2, 2, 2, 2, 2]).pvalue)
