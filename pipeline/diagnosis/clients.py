"""Which two clients' local models are compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from tasks.contract import Card, InputError


def farthest(cards: Sequence[Card]) -> tuple[int, int]:
    """The two clients that share fewest identified classes; among equals, those that identify most, then the first.

    Raises InputError where fewer than two clients have rows.
    """
    with_rows = [c for c in cards if c.num_examples]
    if len(with_rows) < 2:
        raise InputError(
            f"two local models are compared, and only {len(with_rows)} client has rows: use --parts pseudo,embeddings"
        )

    def rank(pair: tuple[Card, Card]) -> tuple[int, int]:
        a_C, b_C = pair[0].aware_C, pair[1].aware_C
        return int((a_C & b_C).sum()), -int((a_C | b_C).sum())

    a, b = min(combinations(with_rows, 2), key=rank)
    return a.client, b.client


def checked(clients: tuple[int, int], cards: Sequence[Card]) -> tuple[int, int]:
    """The user's choice. Raises InputError where one of them is no client with rows."""
    for client in clients:
        if not 0 <= client < len(cards) or not cards[client].num_examples:
            told = f"no client {client} with rows; the clients are 0..{len(cards) - 1}"
            raise InputError(f"--clients {clients[0]},{clients[1]}: {told}")
    return clients
