"""Median, trimmed mean and clip against NumPy and SciPy, and what each promises about a faulty client.

Shape suffixes: N answers, D coordinates.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from anchorfl.pipeline.algorithm import aggregation
from anchorfl.pipeline.algorithm.aggregation import (
    Aggregator,
    clip_step,
    mean_of,
    median_of,
    norm_of,
    trimmed_count,
    trimmed_mean_of,
)
from tests.pipeline.updates import QUICK, SEEDS, SHAPES, answers, poisoned


def array(values, name):
    """[N, ...] in float64."""
    return np.stack([v[name].numpy().astype(np.float64) for v in values])


def assert_within(got, good):
    """Assert that every coordinate is in the range of the good clients'; float64 may be a rounding beyond it."""
    for name, value in got.items():
        if value.is_floating_point():
            want = array(good, name)
            room = 1e-15 if value.dtype == torch.float64 else 0.0
            assert np.all(value.numpy() >= want.min(0) - room), name
            assert np.all(value.numpy() <= want.max(0) + room), name


# ------------------------------------------------------------------------------------------------- median, trimmed mean


@QUICK
@given(SEEDS, st.integers(1, 9), st.sampled_from([1e-3, 1.0, 1e30]))
def test_the_median_equals_numpy(seed, count, scale):
    values = answers(seed, count, scale)
    got = median_of(values)
    for name in SHAPES:
        want = np.median(array(values, name), axis=0)
        assert np.array_equal(got[name].numpy(), want.astype(got[name].numpy().dtype)), name
        assert got[name].dtype == values[0][name].dtype
        assert got[name].shape == values[0][name].shape
    assert int(got["n"]) == max(int(v["n"]) for v in values)


@QUICK
@given(SEEDS, st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.4, 0.49]))
def test_the_trimmed_mean_equals_scipy(seed, count, trim):
    values = answers(seed, count)
    got = trimmed_mean_of(values, trim)
    for name in ("w", "d", "scalar"):
        want = trim_mean(array(values, name), trim, axis=0)
        assert np.allclose(got[name].numpy(), want, rtol=6e-8 if name == "w" else 1e-6, atol=1e-12), name
    assert int(got["n"]) == max(int(v["n"]) for v in values)


@QUICK
@given(SEEDS, st.integers(1, 9))
def test_a_trim_of_nothing_is_the_unweighted_mean(seed, count):
    values = answers(seed, count)
    got, want = trimmed_mean_of(values, 0.0), mean_of(values, [1] * count)
    for name in want:
        assert torch.allclose(got[name], want[name], rtol=2e-7, atol=1e-12), name  # an ulp: s / n is not s * (1 / n)


@QUICK
@given(SEEDS, st.integers(3, 9))
def test_the_most_that_a_trim_cuts_is_the_median(seed, count):
    values = answers(seed, count)
    assert all(torch.equal(v, median_of(values)[n]) for n, v in trimmed_mean_of(values, 0.499999).items())


@QUICK
@given(SEEDS, st.integers(3, 9))
def test_one_arbitrary_client_cannot_leave_the_range_of_the_others(seed, count):
    values = answers(seed, count)
    mixed = poisoned(values, seed)
    assert_within(median_of(mixed), values[1:])
    assert_within(trimmed_mean_of(mixed, 1 / count), values[1:])


@QUICK
@given(SEEDS)
def test_two_of_five_cannot_either_and_three_can(seed):
    good, far = answers(seed, 5), torch.full((3, 4), 1e9)
    two = [g | {"w": far} for g in good[:2]] + good[2:]
    assert_within(median_of(two), good[2:])
    assert_within(trimmed_mean_of(two, 0.4), good[2:])
    three = [g | {"w": far} for g in good[:3]] + good[3:]
    assert torch.equal(median_of(three)["w"], far)
    assert float(trimmed_mean_of(two, 0.2)["w"].min()) > 1e8, "a trim of one does not withstand two"


@QUICK
@given(SEEDS, st.integers(1, 6))
def test_the_order_of_clients_is_of_no_matter(seed, count):
    values = answers(seed, count)
    shuffled = [values[i] for i in np.random.default_rng(seed).permutation(count)]
    for merge in (median_of, lambda v: trimmed_mean_of(v, 0.2)):
        assert all(torch.equal(a, merge(shuffled)[name]) for name, a in merge(values).items())


def test_sorting_in_pieces_changes_no_bit(monkeypatch):
    values = answers(3, 5)
    want = [median_of(values), trimmed_mean_of(values, 0.2)]
    monkeypatch.setattr(aggregation, "SORTED_AT_ONCE", 5)
    for one, other in zip(want, [median_of(values), trimmed_mean_of(values, 0.2)], strict=True):
        assert all(torch.equal(v, other[name]) for name, v in one.items())


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool]
)
def test_every_type_is_kept(dtype):
    values = [{"t": torch.tensor([k, 2 - k]).to(dtype)} for k in (0, 1, 2)]
    for got in (median_of(values), trimmed_mean_of(values, 0.34)):
        assert got["t"].dtype == dtype
        middle = [1, 1] if dtype.is_floating_point else [2, 2]  # counters take the largest
        assert got["t"].tolist() == torch.tensor(middle).to(dtype).tolist()


def test_what_comes_out_is_a_copy():
    values = answers(0, 1)
    got = median_of(values)
    before = values[0]["w"].clone()
    got["w"].fill_(9.0)
    assert torch.equal(values[0]["w"], before)


def test_how_many_are_cut():
    """Against exact arithmetic; ``int(0.29 * 100)`` is 28."""
    for hundredths, count in itertools.product(range(50), range(1, 120)):
        assert trimmed_count(count, hundredths / 100) == min(hundredths * count // 100, (count - 1) // 2), (
            hundredths,
            count,
        )
    assert trimmed_count(2, math.nextafter(0.5, 0)) == 0  # never all


@pytest.mark.parametrize("trim", [-0.1, 0.5, 1.0, math.nan])
def test_a_trim_out_of_range_is_an_error(trim):
    with pytest.raises(ValueError, match=r"trim = .*: must be in \[0, 0.5\)"):
        trimmed_mean_of(answers(0, 3), trim)


def test_nothing_to_merge_is_an_error():
    for merge in (median_of, lambda v: trimmed_mean_of(v, 0.0)):
        with pytest.raises(ValueError, match="0 updates: nothing to merge"):
            merge([])


# ----------------------------------------------------------------------------------------------------------------- clip


@QUICK
@given(SEEDS, st.floats(1e-3, 20), st.sampled_from([1e-2, 1.0, 1e30]))
def test_a_clip_equals_numpy(seed, norm, scale):
    sent, weights = answers(seed, 2, scale)
    got, changed = clip_step(weights, sent, norm)
    step = np.concatenate([(array([weights], n) - array([sent], n)).ravel() for n in SHAPES])
    length = np.sqrt((step**2).sum())
    assert changed == (length > norm)
    for name in SHAPES:
        want = array([sent], name)[0] + (array([weights], name)[0] - array([sent], name)[0]) * min(1, norm / length)
        assert np.allclose(got[name].numpy(), want, rtol=1e-6, atol=1e-12), name
        assert got[name].dtype == weights[name].dtype
    assert torch.equal(got["n"], weights["n"])


def test_a_short_step_comes_back_bit_for_bit():
    sent, weights = answers(1, 2)
    got, changed = clip_step(weights, sent, 1e3)
    assert not changed
    assert all(torch.equal(got[name], weights[name]) for name in weights)


def test_a_clip_changes_no_argument():
    sent, weights = answers(1, 2)
    before = [{n: t.clone() for n, t in one.items()} for one in (sent, weights)]
    got, changed = clip_step(weights, sent, 0.1)
    assert changed
    got["w"].fill_(9.0)
    for one, held in zip((sent, weights), before, strict=True):
        assert all(torch.equal(one[name], held[name]) for name in held)


# ------------------------------------------------------------------------------------------------------------- the rule


def test_the_mean_is_the_very_function_of_before():
    """So nothing changes for runs that ask for nothing else; Krum takes the mean of those that it chose."""
    assert Aggregator().average is mean_of
    assert Aggregator(aggregation="krum", clip_norm=1.0).average is mean_of
    assert Aggregator().uses == ()


def test_median_and_trimmed_mean_take_no_notice_of_weights():
    values = answers(2, 5)
    for rule, want in (
        (Aggregator(aggregation="median"), median_of(values)),
        (Aggregator(aggregation="trimmed_mean", trim_fraction=0.3), trimmed_mean_of(values, 0.3)),
    ):
        got = rule.average(values, [1000, 1, 1, 0, 1])
        assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (Aggregator(), 0),
        (Aggregator(clip_norm=1.0), 0),
        (Aggregator(aggregation="median"), 3),
        (Aggregator(aggregation="trimmed_mean", trim_fraction=0.2), 5),
        (Aggregator(aggregation="trimmed_mean", trim_fraction=0.1), 10),
        (Aggregator(aggregation="krum"), 5),
        (Aggregator(aggregation="krum", num_malicious=3), 9),
        (Aggregator(aggregation="krum", num_malicious=1, num_selected=4), 7),
    ],
)
def test_how_many_answers_a_merge_needs(rule, least):
    assert [bool(rule.lack(n)) for n in range(20)] == [n < least for n in range(20)]


def in_one_piece(update):
    """The same tensors, one behind the other in one storage, as they travel."""
    flat = torch.cat([value.reshape(-1) for value in update.values()])
    parts = torch.split(flat, [value.numel() for value in update.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(update.items(), parts, strict=True)}


@given(SEEDS, st.integers(1, 5))
@QUICK
def test_the_mean_of_updates_in_one_piece_has_the_same_bits(seed, count):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (40_000,), "b": (3, 5), "c": ()}  # the first is longer than a piece
    updates = [{n: torch.randn(s, generator=generator) for n, s in shapes.items()} for _ in range(count)]
    shares = torch.rand(count, generator=generator).add(0.1).tolist()
    apart, joined = mean_of(updates, shares), mean_of([in_one_piece(u) for u in updates], shares)
    assert list(apart) == list(joined)
    assert all(torch.equal(apart[name], joined[name]) for name in apart)
    # where one client's lie in several pieces, or one has another order, tensors are averaged one by one
    mixed = mean_of([in_one_piece(u) if i else u for i, u in enumerate(updates)], shares)
    turned = mean_of([in_one_piece(dict(reversed(u.items())) if i else u) for i, u in enumerate(updates)], shares)
    assert all(torch.equal(apart[name], other[name]) for other in (mixed, turned) for name in apart)


def test_counters_among_the_weights_still_take_the_largest_value():
    updates = [{"w": torch.tensor([float(i)]), "n": torch.tensor(i)} for i in range(3)]
    assert mean_of(updates, [1, 1, 1])["n"] == 2
    assert mean_of([dict(reversed(u.items())) for u in updates], [1, 1, 1])["n"] == 2


def test_the_norm_in_one_piece_is_that_of_the_parts():
    update = {"a": torch.randn(7, 3), "b": torch.randn(4)}
    assert norm_of(in_one_piece(update)) == pytest.approx(norm_of(update), rel=1e-4)


@pytest.mark.parametrize("values", [1, 65_536, 200_000])
def test_the_norm_has_four_digits(values):
    weights = {"a": torch.randn(values) * 1e-3 + 1, "b": torch.full((values,), 0.7)}
    exact = torch.cat([v.double() for v in weights.values()]).norm().item()
    assert norm_of(weights) == pytest.approx(exact, rel=1e-4)
