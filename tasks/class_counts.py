"""How many training rows of a federation have each class, over all its clients."""

from __future__ import annotations

from itertools import chain

import numpy as np

from tasks.columns import Ints
from tasks.store import Prepared


def training_counts(data: Prepared) -> tuple[int, Ints]:
    """The different training rows of all clients, and how many of them have each class, int64 [C]: for scoring, never
    for a method.

    Where clients share rows (``one_class``), a class is counted with the clients that identify it, of which it then has
    one. Raises InputError where the plan is not the data's.
    """
    manifest = data.manifest
    rows = len(np.unique(np.concatenate([client.rows for client in data.plan().clients])))
    shared = rows < sum(manifest.examples)
    if not shared:
        return rows, data.held().counts(len(manifest.class_names))
    count_C = np.zeros(len(manifest.class_names), dtype=np.int64)
    for class_, number in chain.from_iterable(manifest.counts):
        count_C[class_] += number
    return rows, count_C
