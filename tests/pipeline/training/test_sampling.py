"""The cohort of a round: uniform, without replacement, and decided by the run's seed and the round alone."""

from __future__ import annotations

import numpy as np
import pytest

from anchorfl.pipeline.training.sampling import select, select_poisson


def test_seed_and_round_decide_and_nothing_else():
    drawn = {(seed, round_): tuple(select(100, 10, round_, seed)) for seed in range(5) for round_ in range(1, 6)}
    assert len(set(drawn.values())) == 25, "another seed or round, another cohort"
    assert all(tuple(select(100, 10, round_, seed)) == chosen for (seed, round_), chosen in drawn.items())
    assert all(chosen == tuple(sorted(set(chosen))) and len(chosen) == 10 for chosen in drawn.values())
    assert select(4, 4, 1, 0) == [0, 1, 2, 3]


def test_every_client_is_as_likely():
    """Of 2,000 rounds, each of 20 clients is in 500 of them, within five deviations."""
    count = np.bincount([client for round_ in range(2000) for client in select(20, 5, round_, 3)], minlength=20)
    assert abs(count - 500).max() < 5 * (2000 * 0.25 * 0.75) ** 0.5


def test_poisson_draws_are_each_clients_own():
    """Each client with its probability, pairs with its square, sizes vary as a binomial's; never none; by the seed."""
    rounds, rate = 4000, 0.3
    drawn = np.zeros((rounds, 10), bool)
    for round_ in range(rounds):
        drawn[round_, select_poisson(10, 3, round_, 5)] = True
    none = (1 - rate) ** 10  # drawn again, so all others are that much more likely
    np.testing.assert_allclose(drawn.mean(0), rate / (1 - none), atol=0.03)
    pairs = (drawn.T.astype(float) @ drawn / rounds)[np.triu_indices(10, 1)]
    np.testing.assert_allclose(pairs, rate**2 / (1 - none), atol=0.03)
    assert drawn.sum(1).min() == 1
    assert drawn.sum(1).var() == pytest.approx(10 * rate * (1 - rate), rel=0.15)
    assert select_poisson(10, 3, 1, 5) == select_poisson(10, 3, 1, 5) != select_poisson(10, 3, 1, 6)
    assert select_poisson(4, 4, 1, 0) == [0, 1, 2, 3]
    assert all(len(select_poisson(50, 1, round_, 0)) >= 1 for round_ in range(100))
