"""Test rows of every client's own: a share of its training rows, or its rows of a test split that is given.

They come last, after validation and partition, so that both are the same without them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.plan import ClientPlan, PartitionPlan
from anchorfl.tasks.partition.stratify import TrainingRows, generator, largest_remainder

NONE, SPLIT = "none", "split"


def client_test_share(options: TaskOptions) -> float:
    """Return the share of its rows that every client keeps for its own test; 0: none, or those of a split.

    Raises InputError where the option is none of these.
    """
    if options.client_test in (NONE, SPLIT):
        return 0.0
    try:
        share = float(options.client_test)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(
            f"[task] client_test = {options.client_test!r}: must be {NONE!r}, {SPLIT!r}, or a share between 0 and 1,"
            " such as 0.2"
        )
    return share


def hold_out_client_test(plan: PartitionPlan, rows: TrainingRows, one_class: bool, share: float) -> PartitionPlan:
    """Return the plan with a share of every client's rows as its own test rows, which no client trains on.

    rows: those that scores can be made of, in ascending order of their ids. They are stratified by the labels that the
    client knows, and every stratum (the rarest of these labels) keeps a training row: a client whose classes have one
    row each has no test row.
    one_class: a row may sit with several clients, so it is drawn once, stratified by its rarest class, and is a test
    row of each of them; a client keeps its first row where all of them were drawn.
    """
    if one_class:
        id_M = np.unique(np.concatenate([client.rows for client in plan.clients]))
        rows = _of_client(rows, id_M)
        taken = _drawn(rows, rows.labels.rarest(), share, generator(plan.seed, "test rows of clients"))
        taken_M = np.isin(id_M, taken)
        back = [c.rows[0] for c in plan.clients if taken_M[np.searchsorted(id_M, c.rows)].all()]
        if rows.whole_N is not None:  # a sequence stays together
            back = rows.row_N[np.isin(rows.whole_N, rows.whole_N[np.isin(rows.row_N, back)])].tolist()
        taken_M &= ~np.isin(id_M, back)
        tests = [np.unique(client.rows[taken_M[np.searchsorted(id_M, client.rows)]]) for client in plan.clients]
    else:
        tests = []
        for number, client in enumerate(plan.clients):
            own = _of_client(rows, client.rows)
            known = own.labels.where(np.isin(own.labels.class_P, client.classes))
            rng = generator(plan.seed, f"test rows of client {number}")
            tests.append(_drawn(own, known.rarest(), share, rng))
    clients = tuple(
        ClientPlan(np.setdiff1d(client.rows, test), client.classes)
        for client, test in zip(plan.clients, tests, strict=True)
    )
    return replace(plan, clients=clients, client_test=tuple(tests))


def _of_client(rows: TrainingRows, row_B: Ints) -> TrainingRows:
    """Return the rows with these ids, as far as they are there."""
    index_B = np.searchsorted(rows.row_N, row_B)
    index_B = index_B[index_B < len(rows.row_N)]
    return rows.take(index_B[rows.row_N[index_B] == row_B[: len(index_B)]])


def _drawn(rows: TrainingRows, class_N: Ints, share: float, rng: np.random.Generator) -> Ints:
    """Return the ascending ids of a share of the rows, one at least, where every class can keep one; else of fewer.

    class_N: the class of every row. The pieces of a sequence stay together, and count as one, of its first row's class.
    """
    whole_N = rows.row_N if rows.whole_N is None else rows.whole_N
    _, first_W, code_N = np.unique(whole_N, return_index=True, return_inverse=True)
    _, class_W, count_K = np.unique(class_N[first_W], return_inverse=True, return_counts=True)
    total = min(max(1, round(share * len(first_W))), int((count_K - 1).sum()))
    take_K = largest_remainder(share * count_K, total, count_K - 1) if total else np.zeros_like(count_K)
    order_W = rng.permutation(len(first_W))
    order_W = order_W[np.argsort(class_W[order_W], kind="stable")]
    rank_W = np.arange(len(order_W)) - np.repeat(np.cumsum(count_K) - count_K, count_K)
    return np.sort(rows.row_N[np.isin(code_N, order_W[rank_W < np.repeat(take_K, count_K)])])


def client_test_of_split(
    plan: PartitionPlan, options: TaskOptions, row_N: Ints, test_N: Ints, subject_N: npt.NDArray[np.str_] | None
) -> PartitionPlan:
    """Return the plan with every client's rows of the test split as its own test rows, too.

    row_N: ids of all rows; test_N: those of the test split; subject_N: whose each row is. A row of somebody who has no
    training row is nobody's. Raises InputError where test rows have no client.
    """
    if subject_N is None or options.partition != "subjects":
        raise InputError(
            f"[task] client_test = {SPLIT!r}: test rows have a client only with partition = 'subjects' (a table: with"
            " client_column); give a share, such as 0.2"
        )
    order_N = np.argsort(row_N)
    subjects, code_N = np.unique(subject_N, return_inverse=True)
    client_S = np.full(len(subjects), -1)
    for number, client in enumerate(plan.clients):
        client_S[code_N[order_N[np.searchsorted(row_N, client.rows, sorter=order_N)]]] = number
    test_N = np.sort(test_N)
    client_N = client_S[code_N[order_N[np.searchsorted(row_N, test_N, sorter=order_N)]]]
    if not (client_N >= 0).any():
        raise InputError(
            f"[task] client_test = {SPLIT!r}: no test row is of a client that has training rows; give a share, such as"
            " 0.2"
        )
    return replace(plan, client_test=tuple(test_N[client_N == number] for number in range(len(plan.clients))))
