"""Choice of the two clients whose local models are compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorfl.tasks.contract import Card
from anchorfl.tasks.errors import InputError

MOST = 1000
"""Clients of which all pairs are looked at."""


def farthest(cards: Sequence[Card]) -> tuple[int, int]:
    """Return the two clients that share fewest identified classes; of equals those that identify most, then the first.

    Raises InputError where fewer than two clients have rows, or too many to look at all pairs.
    """
    with_rows = [c for c in cards if c.num_examples]
    if len(with_rows) < 2:
        raise InputError(
            f"two local models are compared, and only {len(with_rows)} client has rows: leave divergence and agreement"
            " out, --parts confusion,generated"
        )
    if len(with_rows) > MOST:
        raise InputError(
            f"{len(with_rows)} clients are too many to choose two of: name them with --clients 0,1, or leave divergence"
            " and agreement out with --parts"
        )
    aware_MC = np.stack([card.identified_C.numpy() for card in with_rows]).astype(np.float64)  # exact, and BLAS is fast
    both_MM, size_M = aware_MC @ aware_MC.T, aware_MC.sum(1)
    union_MM = size_M[:, None] + size_M - both_MM
    rank_MM = both_MM * (2 * aware_MC.shape[1] + 1) - union_MM
    rank_MM[np.tril_indices(len(with_rows))] = np.inf
    a, b = divmod(int(rank_MM.argmin()), len(with_rows))  # of equals the first
    return with_rows[a].client, with_rows[b].client


def check_clients(clients: tuple[int, int], cards: Sequence[Card]) -> tuple[int, int]:
    """Return the user's choice. Raise InputError where one of them is no client with rows."""
    for client in clients:
        if not 0 <= client < len(cards) or not cards[client].num_examples:
            problem = f"no client {client} with rows; the clients are 0..{len(cards) - 1}"
            raise InputError(f"--clients {clients[0]},{clients[1]}: {problem}")
    return clients
