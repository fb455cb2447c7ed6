"""Partitions: the rows and identified classes of every client, as pure functions of labels, options and seed.

Shape suffixes: N rows, C classes, M clients, K strata.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.categories import categories, clients_by_rarest
from anchorfl.tasks.partition.client_test import client_test_share, hold_out_client_test
from anchorfl.tasks.partition.identified import identified
from anchorfl.tasks.partition.one_class import one_class
from anchorfl.tasks.partition.plan import ClientPlan, PartitionPlan
from anchorfl.tasks.partition.stratify import (
    TrainingRows,
    check_present,
    classes_in,
    generator,
    largest_remainder,
)
from anchorfl.tasks.partition.subjects import subject_codes, subjects

PARTITIONS = ("k_classes", "dirichlet", "iid", "categories", "subjects", "one_class")
TRIES_DIRICHLET = 100
MIN_ROWS = 2
"""Rows that every client of ``dirichlet`` gets at least, where there are that many."""


def make_plan(
    rows: TrainingRows, task: Task, options: TaskOptions, seed: int, validation: Ints | None = None
) -> PartitionPlan:
    """Return the plan for the training rows: validation rows first, then the partition of the rest, then of these the
    clients' own test rows, where the options have a share of them.

    validation: ids of published validation rows, which are among the rows; None: they are drawn. Those that are
    published have a client, whose labels alone they show, only with ``categories`` and ``validation_from = "clients"``:
    that of their rarest class, counted over them (FedAlign's code for MIMIC-III). Raises InputError
    where the options do not fit the data. Every draw has a generator of its own, so that one choice does not shift
    another's random numbers.
    """
    _check_rows(rows, task, validation)
    if validation is not None and options.validation_from != "server" and options.partition != "categories":
        raise InputError(
            f"[task] validation_from = {options.validation_from!r}: {task.name} publishes its validation rows, which "
            f"have a client only with partition = 'categories', not {options.partition!r}; leave it at 'server'"
        )
    rows = rows.take(np.argsort(rows.row_N))  # the plan depends on the ids, not on the order in which the rows come
    share = client_test_share(options)
    plan = _validated_plan(rows, task, options, seed, validation)
    if not share:
        return plan
    _check_wholes(rows, options, f"client_test = {options.client_test}", "test row of one client", "none")
    return hold_out_client_test(plan, _scorable_rows(rows, task), options.partition == "one_class", share)


def _validated_plan(
    rows: TrainingRows, task: Task, options: TaskOptions, seed: int, validation: Ints | None
) -> PartitionPlan:
    """Return the plan without own test rows of clients. validation: as in ``make_plan``."""
    if validation is None and options.validation_from == "clients":
        return _hold_out_from_clients(rows, task, options, seed)
    if validation is None:
        rng = generator(seed, "validation")
        validation = _scorable_rows(rows, task).held_out(options.validation, rng)
        if options.partition == "subjects" and rows.subject_N is not None:
            validation = _spare_last_rows(rows, validation)
    held_out_N = np.isin(rows.row_N, validation)
    published, rows = rows.take(np.flatnonzero(held_out_N)), rows.take(np.flatnonzero(~held_out_N))
    _check(task, options, len(rows.row_N))
    clients = _clients(rows, task, options, seed)
    if options.validation_from == "server":
        return PartitionPlan(clients, published.row_N, seed)
    return PartitionPlan(clients, published.row_N, seed, clients_by_rarest(published, clients, seed))


def _scorable_rows(rows: TrainingRows, task: Task) -> TrainingRows:
    """Return the rows that scores can be made of: those with a class, or, with several labels, with one that is given.
    All where they are pieces, which go by sequences.
    """
    if rows.whole_N is not None:
        return rows
    if task.kind == "multi":
        return rows if rows.given_N is None else rows.take(np.flatnonzero(rows.given_N))
    return rows.take(np.flatnonzero(rows.labels.length_N > 0))


def _spare_last_rows(rows: TrainingRows, validation: Ints) -> Ints:
    """Return the validation rows without those that take a subject's last training row with a class.

    Of each such subject, the first row with a class (and its whole sequence) stays in training.
    """
    out_N, known_N = np.isin(rows.row_N, validation), rows.labels.length_N > 0
    code_N = subject_codes(rows)
    lost_S = (np.bincount(code_N, known_N) > 0) & (np.bincount(code_N, known_N & ~out_N) == 0)
    index_L = np.flatnonzero(lost_S[code_N] & known_N)
    back_N = np.zeros(len(out_N), dtype=np.bool_)
    back_N[index_L[np.unique(code_N[index_L], return_index=True)[1]]] = True
    if rows.whole_N is not None:
        back_N = np.isin(rows.whole_N, rows.whole_N[back_N])
    return rows.row_N[out_N & ~back_N]


def _hold_out_from_clients(rows: TrainingRows, task: Task, options: TaskOptions, seed: int) -> PartitionPlan:
    """Return the partition of all rows, with a share of every client's rows taken out for the server's validation."""
    _check(task, options, len(rows.row_N))
    _check_wholes(rows, options, "validation_from = 'clients'", "validation row of one", "server")
    clients, held_out = list[ClientPlan](), list[Ints]()
    for number, client in enumerate(_clients(rows, task, options, seed)):
        client_rows = rows.take(np.searchsorted(rows.row_N, client.rows))
        rng = generator(seed, f"validation of client {number}")
        scorable = _scorable_rows(client_rows, task)
        known = scorable.labels.where(np.isin(scorable.labels.class_P, client.classes))
        held_out.append(scorable.held_out(options.validation, rng, known.rarest()))
        clients.append(ClientPlan(np.setdiff1d(client.rows, held_out[-1]), client.classes))
    row_V, client_V = np.concatenate(held_out), np.repeat(np.arange(len(held_out)), [len(part) for part in held_out])
    order_V = np.argsort(row_V)
    return PartitionPlan(tuple(clients), row_V[order_V], seed, client_V[order_V])


def _clients(rows: TrainingRows, task: Task, options: TaskOptions, seed: int) -> tuple[ClientPlan, ...]:
    """Return the clients of the partition that ``options`` name, with the classes that they say are identified."""
    clients = _partition(rows, task, options, seed)
    if options.partition == "one_class":
        return clients
    return identified(clients, rows, task, options, seed)


def _partition(rows: TrainingRows, task: Task, options: TaskOptions, seed: int) -> tuple[ClientPlan, ...]:
    match options.partition:
        case "k_classes" | "iid":
            return iid(rows, options.clients, seed)
        case "dirichlet":
            return dirichlet(rows, task.class_names, options, seed)
        case "categories":
            return categories(rows, task, options, seed)
        case "subjects":
            return subjects(rows, task, options, seed)
        case "one_class":
            return one_class(rows, task, options)


def partitions_of(task: Task) -> tuple[str, ...]:
    """Return the partitions that a data set can have: by category and by subject only where it has such."""
    lacks = {name for name, present in (("categories", task.groups), ("subjects", task.subjects)) if not present}
    return tuple(name for name in PARTITIONS if name not in lacks)


def iid(rows: TrainingRows, clients: int, seed: int) -> tuple[ClientPlan, ...]:
    """Deal the rows IID over the clients (sizes differ by at most 1); every client identifies every class."""
    every = tuple(range(rows.labels.classes))
    parts = np.array_split(generator(seed, "rows").permutation(len(rows.row_N)), clients)
    return tuple(ClientPlan(np.sort(rows.row_N[part]), every) for part in parts)


def dirichlet(
    rows: TrainingRows, class_names: Sequence[str], options: TaskOptions, seed: int
) -> tuple[ClientPlan, ...]:
    """Cut the rows of every class over the clients in ratios Dir(beta); a client identifies the classes that it holds.

    A multi-label row counts as its rarest positive class. Ratios are drawn again (bounded) until every client has
    ``min(2, N // M)`` rows, N of them with a class; if no draw does, rows move from the largest clients to the too
    small ones. Rows without a class are shuffled and dealt, as many to each.
    """
    check_present(rows.labels, class_names)
    clients = options.clients
    rarest_N = rows.labels.rarest()
    need = min(MIN_ROWS, int((rarest_N >= 0).sum()) // clients)
    order_N = np.argsort(rarest_N, kind="stable")
    order_N, rest_N = order_N[rarest_N[order_N] >= 0], np.flatnonzero(rarest_N < 0)
    strata = [part for part in np.split(order_N, np.flatnonzero(np.diff(rarest_N[order_N])) + 1) if len(part)]
    size_KM = _dirichlet_sizes([len(part) for part in strata], options, need, generator(seed, "ratios"))
    rng = generator(seed, "rows")
    pieces: list[list[Ints]] = [[] for _ in range(clients)]
    for part, size_M in zip(strata, size_KM, strict=True):
        cut = np.split(rng.permutation(part), np.cumsum(size_M)[:-1])
        for client, piece in enumerate(cut):
            pieces[client].append(piece)
    parts = _repair([rng.permutation(np.concatenate(piece)) for piece in pieces], need)
    dealt_M = np.array_split(rng.permutation(rest_N), clients)
    parts = [np.concatenate(dealt) for dealt in zip(parts, dealt_M, strict=True)]
    return tuple(ClientPlan(np.sort(rows.row_N[part]), classes_in(rows.labels.take(part))) for part in parts)


def _dirichlet_sizes(count_K: Sequence[int], options: TaskOptions, need: int, rng: np.random.Generator) -> Ints:
    """Return the number of rows of every stratum for every client, int64 [K, M].

    It is the last draw if none gives every client ``need`` rows.
    """
    size_KM = np.zeros((len(count_K), options.clients), dtype=np.int64)
    for _ in range(TRIES_DIRICHLET):
        share_KM = rng.dirichlet(np.full(options.clients, options.beta), size=len(count_K))
        if not np.isfinite(share_KM).all():
            raise InputError(f"[task] beta = {options.beta} is too small to draw ratios with; use at least 0.01")
        for stratum, count in enumerate(count_K):
            size_KM[stratum] = largest_remainder(share_KM[stratum] * count, count)
        if size_KM.sum(0).min() >= need:
            break
    return size_KM


def _repair(parts: list[Ints], need: int) -> list[Ints]:
    """Move rows one by one from the largest part (the first of equals) to those with fewer than ``need``."""
    size_M = np.array([len(part) for part in parts])
    for small in np.flatnonzero(size_M < need):
        while size_M[small] < need:  # ends: need * M <= N, so the largest part always has one to spare
            large = int(size_M.argmax())
            parts[small], parts[large] = np.append(parts[small], parts[large][-1]), parts[large][:-1]
            size_M[small] += 1
            size_M[large] -= 1
    return parts


def _check_rows(rows: TrainingRows, task: Task, validation: Ints | None) -> None:
    """Raise ValueError where the rows are not those of the task."""
    if len(rows.row_N) != len(rows.labels) or not np.diff(np.sort(rows.row_N)).all():
        raise ValueError("row ids must be unique, one per row of labels")
    if rows.labels.classes != len(task.class_names):
        raise ValueError(f"the labels have {rows.labels.classes} classes, but {task.name} has {len(task.class_names)}")
    if validation is not None and not np.isin(validation, rows.row_N).all():
        raise ValueError("the published validation rows must be among the rows")


def _check(task: Task, options: TaskOptions, rows: int) -> None:
    if options.partition not in PARTITIONS:
        raise InputError(f"[task] partition = {options.partition!r} is none of {', '.join(PARTITIONS)}")
    possible = partitions_of(task)
    if options.partition not in possible:
        raise InputError(
            f"[task] partition = {options.partition!r}: {task.name} has no {options.partition}; "
            f"use one of {', '.join(possible)}"
        )
    _check_keep_subjects(task, options)
    if options.partition == "one_class" and options.validation_from == "clients":
        raise InputError(
            "[task] validation_from = 'clients': with partition = 'one_class' a row sits with several clients, so that "
            "a validation row of one would be a training row of another; use 'server'"
        )
    if options.partition != "one_class" and not 1 <= options.clients <= rows:  # its clients share rows
        raise InputError(
            f"[task] clients = {options.clients} must lie in 1..{rows}: there are {rows} training rows to share"
        )
    if "k_classes" in (options.partition, options.identified) and options.classes_per_client < 1:
        raise InputError(f"[task] classes_per_client = {options.classes_per_client} must be at least 1")
    if options.partition == "one_class" and (options.identified != "partition" or options.client_classes):
        raise InputError(
            "[task] partition = 'one_class': every client identifies the class that it stands for; leave out"
            " identified and client_classes"
        )
    if options.partition == "dirichlet" and not 0 < options.beta < float("inf"):
        raise InputError(f"[task] beta = {options.beta} must be a finite number above 0")


def _check_wholes(rows: TrainingRows, options: TaskOptions, option: str, row: str, other: str) -> None:
    """Raise InputError where rows are held out from clients that have pieces of the same sequence."""
    if rows.whole_N is not None and options.partition in ("iid", "k_classes", "dirichlet"):
        raise InputError(
            f"[task] {option}: partition = {options.partition!r} deals the pieces of a sequence to several clients, so"
            f" that a {row} would have its neighbours with another; use {other!r}"
        )


def _check_keep_subjects(task: Task, options: TaskOptions) -> None:
    if not options.keep_subjects or options.partition == "subjects":
        return
    if options.partition != "categories":
        raise InputError(
            f"[task] keep_subjects = true has no meaning with partition = {options.partition!r}; "
            "set it to false, or use partition = 'categories' or 'subjects'"
        )
    if not task.subjects:
        raise InputError(f"[task] keep_subjects = true: {task.name} has no subjects; set it to false")
