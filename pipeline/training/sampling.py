"""Selection of the clients of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anchorfl.pipeline.algorithm.seeds import numpy_rng
from anchorfl.pipeline.config.federation import FederationOptions


def select(clients: int, per_round: int, round_: int, seed: int) -> list[int]:
    """Return ids of the selected clients, ascending: uniform without replacement, by (seed, round) alone."""
    drawn = numpy_rng(seed, "selection", "round", round_).choice(clients, size=per_round, replace=False)
    return sorted(int(i) for i in drawn)


def select_poisson(clients: int, per_round: int, round_: int, seed: int) -> list[int]:
    """Return ids of the selected clients, ascending: each with probability ``per_round / clients``, whatever becomes of
    the others, by (seed, round) alone; drawn again where there is none.
    """
    rng = numpy_rng(seed, "poisson selection", "round", round_)
    while not (drawn := (rng.random(clients) < per_round / clients).nonzero()[0].tolist()):
        pass
    return drawn


def cohort_of(federation: FederationOptions, clients: int, round_: int, seed: int) -> list[int]:
    """Return ids of the clients that take part in a round, of so many, as the options draw them."""
    draw = select_poisson if federation.selection == "poisson" else select
    return draw(clients, federation.selected(clients), round_, seed)


def backup_clients(clients: int, selected: Sequence[int], share: float, round_: int, seed: int) -> list[int]:
    """Return the clients that take the place of selected ones that fail, in this order: at most ``share`` of as many,
    rounded up, of the others, by (seed, round) alone.
    """
    others = sorted({*range(clients)} - {*selected})
    count = min(math.ceil(share * len(selected) - 1e-9), len(others))
    drawn = numpy_rng(seed, "stand-ins", "round", round_).choice(others, size=count, replace=False) if count else ()
    return [int(i) for i in drawn]
