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


def test_ranks_by_enumeration():
    """Wilcoxon's exact p: the share of all 2^7 signs whose rank sum is as far from the middle."""
    d = np.array([0.05, -0.01, 0.02, 0.07, -0.03, 0.04, 0.06])
    ranks = np.argsort(np.argsort(abs(d))) + 1
    middle = ranks.sum() / 2
    far = abs(ranks[d > 0].sum() - middle)
    signs = [
        abs(sum(r for r, s in zip(ranks, keep, strict=True) if s) - middle)
        for keep in itertools.product((0, 1), repeat=7)
    ]
    got = compare_paired(by_seed(list(0.5 + d)), by_seed([0.5] * 7))
    assert got.wilcoxon == pytest.approx(np.mean([s >= far for s in signs]))


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
