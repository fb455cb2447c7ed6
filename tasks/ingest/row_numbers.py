"""Numbers under which rows are stored, in place of their ids in the raw data. These often ascend with the class: an
id, or the order of a file, would tell a label that is withheld.

The numbers are a permutation that the digest of the raw files decides. Whoever has a client's file alone learns nothing
from them; whoever has that digest, too, can undo it, as reading does: whatever comes out of ``Prepared`` has rows in
ascending order of their raw ids, and their places in that order as ids.

Shape suffixes: N all rows of the raw data, B some of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.partition.plan import PartitionPlan


@lru_cache(maxsize=2)
def row_numbers(raw_digest: str, rows: int) -> Ints:
    """Return the number of every row, in ascending order of the raw ids, int64 [N]."""
    seed = hashlib.sha256(repr(("row numbers", raw_digest)).encode()).digest()
    number_N = np.random.default_rng(int.from_bytes(seed, "big")).permutation(rows)
    number_N.flags.writeable = False
    return number_N


@lru_cache(maxsize=2)
def row_places(raw_digest: str, rows: int) -> Ints:
    """Return the place of every number's row in ascending order of the raw ids, int64 [N]: undoes ``row_numbers``."""
    place_N = np.empty(rows, dtype=np.int64)
    place_N[row_numbers(raw_digest, rows)] = np.arange(rows)
    place_N.flags.writeable = False
    return place_N


def in_order(row_N: Ints, value_N: Ints) -> Ints:
    """Return the value of every row. value_N: in ascending order of the rows' ids."""
    out_N = np.empty(len(row_N), dtype=np.int64)
    out_N[np.argsort(row_N, kind="stable")] = value_N
    return out_N


def positions_of(id_N: Ints) -> Callable[[Ints], Ints]:
    """Return what gives the positions of ids among these, which are all different."""
    if (np.diff(id_N) == 1).all():  # as most data sets number their rows: no search
        first = int(id_N[0]) if len(id_N) else 0
        return lambda id_B: id_B - first
    order_N = np.argsort(id_N)
    return lambda id_B: order_N[np.searchsorted(id_N, id_B, sorter=order_N)]


def renumber_plan(plan: PartitionPlan, new_ids: Callable[[Ints], Ints]) -> PartitionPlan:
    """Return a plan with other ids, ascending again. new_ids: the new id of each of some rows, int64 [B] -> [B]."""
    clients = tuple(replace(client, rows=np.sort(new_ids(client.rows))) for client in plan.clients)
    client_test = tuple(np.sort(new_ids(rows)) for rows in plan.client_test)
    validation = new_ids(plan.validation)
    order_V = np.argsort(validation)
    known_to = plan.validation_client[order_V] if len(plan.validation_client) else plan.validation_client
    return replace(
        plan, clients=clients, validation=validation[order_V], validation_client=known_to, client_test=client_test
    )
