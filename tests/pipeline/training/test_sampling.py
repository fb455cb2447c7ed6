"""The cohort of a round: uniform, without replacement, and decided by the run's seed and the round alone."""

from __future__ import annotations

import numpy as np

from anchorfl.pipeline.training.sampling import select


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
