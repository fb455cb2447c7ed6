"""Who takes part in a round."""

from __future__ import annotations

from pipeline.seeds import numpy_rng


def select(clients: int, per_round: int, round_: int, seed: int) -> list[int]:
    """Ids of the selected clients, ascending: uniform without replacement, by (seed, round) alone."""
    drawn = numpy_rng(seed, "selection", "round", round_).choice(clients, size=per_round, replace=False)
    return sorted(int(i) for i in drawn)
