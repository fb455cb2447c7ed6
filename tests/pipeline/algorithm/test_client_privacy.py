"""Noise on the mean of clients' cut steps, and its epsilon beside accountants that share no code with the library."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from anchorfl.pipeline.algorithm import client_privacy
from anchorfl.pipeline.algorithm.aggregation import clip_step, mean_of
from anchorfl.pipeline.algorithm.client_privacy import ClientPrivacy
from anchorfl.pipeline.algorithm.seeds import noise_rng
from anchorfl.tasks.errors import InputError


def privacy(noise=1.0, clip=0.5, delta=1e-5, population=1000, clients=100, poisson=True) -> ClientPrivacy:
    return ClientPrivacy(noise=noise, clip=clip, delta=delta, population=population, clients=clients, poisson=poisson)


def test_the_mean_is_that_of_the_paper():
    """By NumPy: the sum of the cut steps and the noise, over the clients that a round expects, whoever answers."""
    rng = np.random.default_rng(0)
    sent = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=7)}
    steps = [{name: rng.normal(size=v.shape) * size for name, v in sent.items()} for size in (0.01, 1.0, 5.0)]
    tensors = {name: torch.tensor(value, dtype=torch.float32) for name, value in sent.items()}
    updates = [{n: torch.tensor(sent[n] + s[n], dtype=torch.float32) for n in sent} for s in steps]
    mean = mean_of([clip_step(update, tensors, 0.5)[0] for update in updates], [1.0] * 3)
    made = privacy(clients=4, population=10).private_mean(mean, tensors, 3, noise_rng("x"))
    noise, expected = noise_rng("x"), {}
    lengths = [math.sqrt(sum(float((s[n] ** 2).sum()) for n in sent)) for s in steps]
    for name, value in sent.items():
        total = sum(s[name] * min(1.0, 0.5 / length) for s, length in zip(steps, lengths, strict=True))
        normal = noise.standard_normal(value.shape)
        expected[name] = value + (total + 1.0 * 0.5 * normal) / 4
    for name in sent:
        assert made[name].dtype == torch.float32
        np.testing.assert_allclose(made[name].numpy(), expected[name], atol=1e-6)


def test_the_noise_has_its_deviation():
    zero = {"a": torch.zeros(200_000)}
    made = privacy(noise=2.0, clip=0.5, clients=10).private_mean(zero, zero, 10, noise_rng("y"))["a"]
    assert float(made.std()) == pytest.approx(0.1, rel=0.01)
    assert abs(float(made.mean())) < 0.001


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Return the epsilon of a Gaussian release of this sensitivity over deviation (Balle and Wang, 2018, Theorem 8)."""

    def excess(epsilon):
        left = stats.norm.cdf(ratio / 2 - epsilon / ratio)
        return left - math.exp(epsilon) * stats.norm.cdf(-ratio / 2 - epsilon / ratio) - delta

    return optimize.brentq(excess, 0, 500)


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (4.0, 10), (10.0, 100)])
def test_epsilon_of_all_clients(noise, rounds):
    """Replacing a client's data moves the sum by twice the clip; one more or less by the clip."""
    fixed = privacy(noise, population=50, clients=50, poisson=False).epsilon(rounds)
    assert fixed == pytest.approx(gaussian_epsilon(2 * math.sqrt(rounds) / noise, 1e-5), rel=1e-4)
    each = privacy(noise, population=50, clients=50).epsilon(rounds)
    assert each == pytest.approx(gaussian_epsilon(math.sqrt(rounds) / noise, 0.99e-5), rel=1e-3)


def subsampled_epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return the epsilon of composed Poisson-subsampled Gaussians: privacy losses on a grid, convolved by FFT."""
    step, half = 2e-4, 1 << 19
    x = np.linspace(-40 * noise, 40 * noise + 1, 2_000_001)
    worst = 0.0
    for towards in (1, -1):  # a client more, a client less
        with_, without = stats.norm.logpdf(x, 1, noise), stats.norm.logpdf(x, 0, noise)
        mixed = np.logaddexp(math.log(rate) + with_, math.log1p(-rate) + without) if rate < 1 else with_
        upper, lower = (mixed, without) if towards == 1 else (without, mixed)
        mass, loss = np.exp(upper) * (x[1] - x[0]), upper - lower
        cell = np.rint(loss / step).astype(int)
        assert np.abs(cell).max() < half or mass[np.abs(cell) >= half].sum() < delta / 1e4
        grid = np.bincount(np.clip(cell, -half, half - 1) + half, weights=mass, minlength=2 * half)
        composed = np.fft.irfft(np.fft.rfft(np.roll(grid, -half)) ** rounds, 2 * half)
        composed, losses = np.roll(composed.clip(min=0), half), step * (np.arange(2 * half) - half)

        def excess(epsilon, composed=composed, losses=losses):
            above = losses > epsilon
            return float((composed[above] * -np.expm1(epsilon - losses[above])).sum()) - delta

        worst = max(worst, optimize.brentq(excess, 0, 60))
    return worst


@pytest.mark.parametrize(
    ("noise", "clients", "rounds"), [(1.0, 100, 20), (2.0, 300, 50), (6.0, 100, 50), (0.8, 50, 10)]
)
def test_epsilon_of_poisson_draws(noise, clients, rounds):
    ours = privacy(noise, population=1000, clients=clients).epsilon(rounds)
    assert ours == pytest.approx(subsampled_epsilon(noise, clients / 1000, rounds, 0.99e-5), rel=0.01)


def test_epsilon_of_a_fixed_number_is_no_less_than_of_draws_and_no_more_than_of_all():
    fixed = privacy(6.0, clients=100, poisson=False)
    assert privacy(6.0, clients=100).epsilon(50) < fixed.epsilon(50)
    assert fixed.epsilon(50) < privacy(6.0, clients=1000, poisson=False).epsilon(50)
    assert fixed.epsilon(10) < fixed.epsilon(50)
    assert fixed.epsilon(0) == 0


def test_an_empty_draw_must_be_unlikely():
    with pytest.raises(
        InputError, match=r"no other client is drawn with probability 0\.0\d+, too much beside .* raise fed"
    ):
        privacy(population=10, clients=5).epsilon(50)
    with pytest.raises(InputError, match="no other client"):  # none at all: 9e-8, less than a hundredth of delta
        privacy(population=10, clients=9).epsilon(900)


def test_little_noise_is_counted_in_time_and_to_the_same_figure(monkeypatch):
    """The step of the losses grows with them."""
    coarse = privacy(0.6, population=100, clients=60).epsilon(3)
    monkeypatch.setattr(client_privacy, "INTERVAL", client_privacy.INTERVAL / 4)
    assert privacy(0.6, population=100, clients=60, clip=0.4).epsilon(3) == pytest.approx(coarse, rel=1e-4)
    assert privacy(0.01, population=100, clients=60).epsilon(3) > 1e3


def test_the_notice_says_for_whom_and_what_is_not_covered():
    line = privacy(6.0).notice(50)
    assert line.startswith("DP of clients: epsilon 0.42")
    assert (
        "at delta 1e-05 after 50 rounds, for one client more or less (noise 6 x clip 0.5, 100 of 1000 clients" in line
    )
    assert "cards, scaling, vocabulary, scores and losses are not covered" in line
    assert "with any other data" in privacy(6.0, poisson=False).notice(50)
