"""The Gaussian mechanism on the class rows: its bound, its noise, and its epsilon by another way."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr

from anchorfl.pipeline.algorithm.differential_privacy import (
    PrivacyOptions,
    Terms,
    noisy_sum,
    privacy_notice,
    spent_epsilon,
)
from anchorfl.pipeline.methods.fedalc import FedALC
from anchorfl.tasks.errors import InputError

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
CLASSES, K, WIDTH = 7, 3, 4
ACCOUNTANT = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="dp-accounting is not installed: pip install 'anchorfl[dp]'"
)


def terms(seed, classes=CLASSES, scale=3.0, dtype=torch.float64):
    """Draw one term per class, of very different sizes, the first of them zero."""
    rng = torch.Generator().manual_seed(seed)
    others = [torch.randperm(classes - 1, generator=rng)[:K] for _ in range(classes)]
    index_UK = torch.stack([torch.cat([torch.tensor([u]), o + (o >= u)]) for u, o in enumerate(others)])
    size_U = scale * torch.rand(classes, generator=rng, dtype=dtype) ** 3
    grad_UKD = torch.randn(classes, K + 1, WIDTH, generator=rng, dtype=dtype) * size_U[:, None, None]
    grad_UKD[0] = 0
    return Terms(index_UK, grad_UKD)


def without(all_terms, class_):
    kept = torch.arange(len(all_terms.index_UK)) != class_
    return Terms(all_terms.index_UK[kept], all_terms.grad_UKD[kept])


def plain(all_terms, classes=CLASSES):
    """Compute the sum, entry by entry."""
    total = all_terms.grad_UKD.new_zeros((classes, WIDTH))
    for index_K, grad_KD in zip(all_terms.index_UK, all_terms.grad_UKD, strict=True):
        for row, grad_D in zip(index_K.tolist(), grad_KD, strict=True):
            total[row] = total[row] + grad_D
    return total


@QUICK
@given(st.integers(0, 2**32), st.floats(1e-3, 20), st.integers(0, CLASSES - 1))
def test_a_class_changes_the_sum_by_no_more_than_the_clip(seed, clip, class_):
    every = terms(seed)
    total = noisy_sum([every], CLASSES, clip=clip, noise=0.0, generator=None)
    fewer = noisy_sum([without(every, class_)], CLASSES, clip=clip, noise=0.0, generator=None)
    moved = float(torch.linalg.vector_norm(total - fewer))
    size = float(torch.linalg.vector_norm(every.grad_UKD[class_]))
    assert moved == pytest.approx(min(clip, size), abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_clip_and_noise_it_is_the_plain_sum_bit_for_bit(dtype):
    for seed in range(20):
        every = terms(seed, dtype=dtype)
        got = noisy_sum([every], CLASSES, clip=math.inf, noise=0.0, generator=None)
        assert got.dtype == dtype
        assert torch.equal(got, plain(every))
        assert torch.equal(got, noisy_sum([every], CLASSES, clip=1e6, noise=0.0, generator=None))


def test_pieces_give_the_same_sum_and_the_same_noise():
    every = terms(3)
    pieces = [Terms(every.index_UK[at], every.grad_UKD[at]) for at in (slice(0, 2), slice(2, 3), slice(3, None))]
    one, other = (
        noisy_sum(iter(some), CLASSES, clip=0.5, noise=2.0, generator=np.random.default_rng(1))
        for some in ([every], pieces)
    )
    assert torch.equal(one, other)


def test_the_noise_has_the_deviation_that_is_asked_for_in_every_entry():
    classes, noise, clip = 400, 3.0, 0.2
    every = terms(5, classes)
    still = noisy_sum([every], classes, clip=clip, noise=0.0, generator=None)
    rng = np.random.default_rng(2)
    drawn = torch.stack([noisy_sum([every], classes, clip=clip, noise=noise, generator=rng) for _ in range(50)]) - still
    entries = drawn.numel()  # 80 000: the deviation is known to 0.25 percent
    assert float(drawn.std()) == pytest.approx(noise * clip, rel=5 / math.sqrt(2 * entries))
    assert abs(float(drawn.mean())) < 5 * noise * clip / math.sqrt(entries)
    per_entry = drawn.std(0)
    assert float(per_entry.min()) > 0.5 * noise * clip  # no entry without, rows that no term touches included
    assert float(per_entry.max()) < 1.7 * noise * clip


def test_noise_reaches_rows_that_no_term_touches():
    lone = Terms(torch.tensor([[0, 1]]), torch.ones(1, 2, WIDTH))
    got = noisy_sum([lone], CLASSES, clip=1.0, noise=1.0, generator=np.random.default_rng(0))
    assert got.shape == (CLASSES, WIDTH)
    assert (got != 0).all()


def analytic(noise, delta):
    """Epsilon of one Gaussian mechanism by the formula of Balle and Wang (2018), Theorem 8, sensitivity 1."""

    def gap(epsilon):
        a, b = 1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise
        return math.exp(log_ndtr(a)) - math.exp(epsilon + log_ndtr(b)) - delta

    return 0.0 if gap(0) <= 0 else brentq(gap, 0, 600, xtol=1e-10)


@ACCOUNTANT
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (5.0, 100), (20.0, 300), (100.0, 50), (0.5, 2), (1e7, 1)])
def test_epsilon_is_that_of_one_gaussian_mechanism_of_less_noise(noise, rounds, delta):
    assert spent_epsilon(noise, rounds, delta) == pytest.approx(
        analytic(noise / math.sqrt(rounds), delta), rel=1e-6, abs=1e-9
    )


@ACCOUNTANT
@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 3), (20.0, 300)])
def test_epsilon_is_that_of_the_composed_privacy_losses(noise, rounds):
    """The library's other accountant composes discretised privacy losses, rounding up."""
    from dp_accounting import pld

    loss = pld.privacy_loss_distribution.from_gaussian_mechanism(noise, value_discretization_interval=1e-3)
    composed = loss.self_compose(rounds).get_epsilon_for_delta(1e-5)
    assert 0 <= composed - spent_epsilon(noise, rounds, 1e-5) < 0.3


@ACCOUNTANT
def test_epsilon_grows_with_rounds_and_falls_with_noise():
    by_rounds = [spent_epsilon(10.0, rounds, 1e-5) for rounds in (0, 1, 10, 100)]
    assert by_rounds[0] == 0
    assert by_rounds == sorted(set(by_rounds))
    by_noise = [spent_epsilon(noise, 10, 1e-5) for noise in (0.0, 1.0, 10.0)]
    assert by_noise[0] == math.inf
    assert by_noise == sorted(set(by_noise), reverse=True)


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert privacy_notice(PrivacyOptions(), 5) == "no DP guarantee (method.dp_noise = 0)"
    with pytest.raises(InputError, match=r"pip install 'anchorfl\[dp\]'"):
        privacy_notice(PrivacyOptions(noise=1.0), 5)


@ACCOUNTANT
def test_the_line_for_the_log():
    line = privacy_notice(PrivacyOptions(noise=20.0, clip=0.1, delta=1e-6), 300)
    epsilon = analytic(20 / math.sqrt(300), 1e-6)
    for part in (f"epsilon {epsilon:.4g}", "delta 1e-06", "300 rounds", "noise 20 x clip 0.1", "one class", "not cov"):
        assert part in line
    assert "after 300 rounds" in FedALC(dp_noise=20.0).notice(300), "of all rounds of the run"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"noise": -1.0}, "method.dp_noise = -1.0"), ({"noise": math.nan}, "method.dp_noise"),
        ({"noise": math.inf}, "method.dp_noise"), ({"clip": 0.0}, "method.dp_clip"),
        ({"clip": math.inf}, "method.dp_clip"),
        ({"delta": 0.0}, "method.dp_delta"), ({"delta": 1.0}, "method.dp_delta"),
    ],
)  # fmt: skip
def test_options_that_guarantee_nothing_are_refused(values, why):
    with pytest.raises(ValueError, match=why):
        PrivacyOptions(**values)


def test_what_breaks_the_bound_is_refused():
    every, rng = terms(1), np.random.default_rng(0)
    with pytest.raises(ValueError, match="needs a generator and a finite clip"):
        noisy_sum([every], CLASSES, clip=math.inf, noise=1.0, generator=rng)
    with pytest.raises(ValueError, match="needs a generator and a finite clip"):
        noisy_sum([every], CLASSES, clip=1.0, noise=1.0, generator=None)
    for index in ([0, 1, 0], [0, 2, 2], [1, 1, 0]):
        twice = Terms(torch.tensor([index]), torch.ones(1, 3, WIDTH))
        with pytest.raises(ValueError, match="stands twice in a term"):
            noisy_sum([twice], CLASSES, clip=1.0, noise=0.0, generator=None)
    every.grad_UKD[2, 1, 0] = math.inf
    with pytest.raises(ValueError, match="not finite"):
        noisy_sum([every], CLASSES, clip=1.0, noise=1.0, generator=rng)
    with pytest.raises(ValueError, match="there is no term"):
        noisy_sum([], CLASSES, clip=1.0, noise=0.0, generator=None)
    for arguments in ((-1.0, 1, 0.1), (math.nan, 1, 0.1), (1.0, -1, 0.1), (1.0, 1, 0.0)):
        with pytest.raises(ValueError, match="must be at least 0"):
            spent_epsilon(*arguments)
