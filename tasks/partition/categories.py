"""The partition ``categories``: the classes by category over the clients, a row to the client that identifies its
rarest class (FedAlign, section 5: ExtraSensory and MIMIC-III).

Shape suffixes: N rows, C classes, G groups, M clients, P positives; U units, the rows that stay together: single rows,
the pieces of a whole, or all rows of a subject; K pairs of a unit and a client that occur.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.client_classes import given_sets
from anchorfl.tasks.partition.plan import ClientPlan
from anchorfl.tasks.partition.stratify import TrainingRows, check_present, describe_classes, generator, group_rows
from anchorfl.tasks.partition.subjects import subject_codes


def categories(rows: TrainingRows, task: Task, options: TaskOptions, seed: int) -> tuple[ClientPlan, ...]:
    """Give the classes of ``class_sets``, or those of ``client_classes``, to the clients, and every row to the client
    that identifies the rarest of its classes.

    How rare a class is, is counted over these rows. ``options.keep_subjects``: all rows of a subject go to the client
    that most of them would go to (the first of equals). Rows (subjects) without any class are shuffled and dealt, as
    many to each client. Every class keeps at least one row with the client that identifies it: see ``_move_units``.
    Raises InputError where that cannot be had, where a class has no row, or where groups or clients do not fit.
    """
    check_present(rows.labels, task.class_names)
    given_MC = given_sets(rows, task, options, seed)
    if given_MC is None:
        sets = class_sets(task, options.clients, generator(seed, "categories"))
    else:
        sets = _disjoint(given_MC, task)
    owner_C = np.empty(len(task.class_names), dtype=np.int64)
    for client, classes in enumerate(sets):
        owner_C[classes] = client
    unit_N = _subjects(rows, task, options.clients) if options.keep_subjects else _wholes(rows)
    client_U = _vote(rows.labels, unit_N, owner_C, options.clients, generator(seed, "rows without a class"))
    client_U = _move_units(client_U, rows.labels, unit_N, owner_C)
    starved_C = _at_home(client_U, rows.labels, unit_N, owner_C) == 0
    if starved_C.any():
        lets_go = "set [task] keep_subjects = false, " if options.keep_subjects else ""
        raise InputError(
            f"{describe_classes(starved_C, task.class_names)} has no row that its client could get: each is the last "
            f"of another class where it is; {lets_go}use fewer [task] clients, more data or another seed"
        )
    parts = group_rows(client_U[unit_N], options.clients)
    return tuple(ClientPlan(rows.row_N[part], tuple(owned.tolist())) for part, owned in zip(parts, sets, strict=True))


def clients_by_rarest(rows: TrainingRows, clients: Sequence[ClientPlan], seed: int) -> Ints:
    """Return for each row the client that identifies the rarest of its classes, int64 [N]. The pieces of a whole go by
    most of them, rows without a class are shuffled and dealt. Raises InputError where a class has not one client.
    """
    owner_C, count_C = np.zeros((2, rows.labels.classes), dtype=np.int64)
    for client, plan in enumerate(clients):
        owner_C[list(plan.classes)] = client
        count_C[list(plan.classes)] += 1
    if (count_C != 1).any():
        raise InputError(
            "[task] validation_from = 'clients': a published validation row goes to the client of its rarest class, and"
            " some class has none or several; leave identified at 'partition', or validation_from at 'server'"
        )
    if not len(rows.row_N):
        return np.zeros(0, dtype=np.int64)
    unit_N, rng = _wholes(rows), generator(seed, "validation rows without a class")
    return _vote(rows.labels, unit_N, owner_C, len(clients), rng)[unit_N]


def _disjoint(given_MC: Bools, task: Task) -> list[Ints]:
    """Return given class sets, client by client. Raises InputError where a class has not exactly one client."""
    count_C = given_MC.sum(0)
    if (count_C != 1).any():
        raise InputError(
            f"[task] client_classes: {describe_classes(np.asarray(count_C != 1), task.class_names)} has no client, or"
            " several, and with partition = 'categories' a row goes to the client of its rarest class: give each class"
            " one, or choose another partition"
        )
    return [np.flatnonzero(given_C) for given_C in given_MC]


def _wholes(rows: TrainingRows) -> Ints:
    """Return the whole of every row, numbered from 0."""
    if rows.whole_N is None:
        return np.arange(len(rows.row_N))
    return np.unique(rows.whole_N, return_inverse=True)[1].astype(np.int64)


def _subjects(rows: TrainingRows, task: Task, clients: int) -> Ints:
    """Return the subject of every row. Raises InputError where they are too few to give every client one."""
    subject_N = subject_codes(rows)
    subjects = int(subject_N.max()) + 1
    if clients > subjects:
        raise InputError(
            f"[task] clients = {clients}, but the training rows have only {subjects} subjects ({task.subjects}), each "
            f"of which stays with one client; use clients = {subjects} or fewer, or set keep_subjects = false"
        )
    return subject_N


def class_sets(task: Task, clients: int, rng: np.random.Generator) -> list[Ints]:
    """Return the ascending classes of every client: the categories, made as many as there are clients.

    Too few: the category with most classes (the first of equals) is cut into two random halves, the larger one first,
    until they are enough. Too many: the two with fewest classes become one, in the place of the former. Raises
    InputError where a class has not exactly one category, or there are more clients than classes.
    """
    if clients > len(task.class_names):
        raise InputError(
            f"[task] clients = {clients}, but {task.name} has {len(task.class_names)} classes, and with "
            f"partition = 'categories' every class has one client; use clients = {len(task.class_names)} or fewer"
        )
    sets = _groups(task)
    while len(sets) < clients:
        largest = int(np.argmax([len(group) for group in sets]))
        order = rng.permutation(sets[largest])
        sets[largest : largest + 1] = np.array_split(order, 2)
    while len(sets) > clients:
        first, second = sorted(np.argsort([len(group) for group in sets], kind="stable")[:2].tolist())
        sets[first] = np.concatenate([sets[first], sets.pop(second)])
    return [np.sort(group) for group in sets]


def _groups(task: Task) -> list[Ints]:
    """Return the classes of every category that has some. Raises InputError where a class has not exactly one."""
    index = {name: number for number, name in enumerate(task.class_names)}
    group_of = dict[str, str]()
    for group, members in task.groups.items():
        for name in members:
            if name not in index:
                raise InputError(
                    f"{task.name}: the category {group!r} lists {name!r}, which is no class; correct the categories"
                )
            if name in group_of:
                raise InputError(
                    f"{task.name}: class {name!r} is in {group_of[name]!r} and in {group!r}; leave it in one category"
                )
            group_of[name] = group
    outside_C = np.array([name not in group_of for name in task.class_names])
    if outside_C.any():
        raise InputError(
            f"{task.name}: {describe_classes(outside_C, task.class_names)} is in no category; add it to one"
        )
    groups = [np.array([index[name] for name in members], dtype=np.int64) for members in task.groups.values()]
    return [group for group in groups if len(group)]


def _vote(labels: Labels, unit_N: Ints, owner_C: Ints, clients: int, rng: np.random.Generator) -> Ints:
    """Return the client of every unit, int64 [U]: the most frequent owner of its rows' rarest classes (the first of
    equals). Units without any class are shuffled and dealt.
    """
    rarest_N = labels.rarest()
    voting = np.flatnonzero(rarest_N >= 0)
    key_K, votes_K = np.unique(unit_N[voting] * clients + owner_C[rarest_N[voting]], return_counts=True)
    unit_K, client_K = np.divmod(key_K, clients)
    best_first = np.lexsort((client_K, -votes_K, unit_K))
    voted, first = np.unique(unit_K[best_first], return_index=True)
    client_U = np.full(int(unit_N.max()) + 1, -1, dtype=np.int64)
    client_U[voted] = client_K[best_first][first]
    silent = rng.permutation(np.flatnonzero(client_U < 0))
    client_U[silent] = np.arange(len(silent)) % clients
    return client_U


def _at_home(client_U: Ints, labels: Labels, unit_N: Ints, owner_C: Ints) -> Ints:
    """Return the number of rows of every class that sit with the client that identifies it, int64 [C]."""
    home_P = client_U[unit_N[labels.row_P]] == owner_C[labels.class_P]
    return np.bincount(labels.class_P[home_P], minlength=labels.classes)


def _move_units(client_U: Ints, labels: Labels, unit_N: Ints, owner_C: Ints) -> Ints:
    """Move one unit to every class that has no row with its client, where that is possible; return the clients.

    Such a class never was the rarest one of a row (a unit). The rarest of such classes comes first. It gets the
    smallest unit with the class (the first of equals) that no class of the other client needs as its last. Every move
    serves a class and takes none its last unit, so it ends after at most C moves. It is greedy: to decide whether any
    assignment serves all classes is as hard as satisfiability, with a unit for a variable and a class for a clause.
    """
    if _at_home(client_U, labels, unit_N, owner_C).all():
        return client_U
    units, size_U, client_U = _classes_of_units(labels, unit_N, len(client_U)), np.bincount(unit_N), client_U.copy()
    home_C = _at_home(client_U, units, np.arange(len(units)), owner_C)
    with_C = [units.row_P[part] for part in group_rows(units.class_P.astype(np.int64), units.classes)]
    rare_first = np.argsort(labels.counts(), kind="stable")
    moving = True
    while moving:
        moving = False
        for class_ in rare_first[home_C[rare_first] == 0].tolist():
            able = with_C[class_][_movable_units(with_C[class_], client_U, units, owner_C, home_C)]
            if home_C[class_] == 0 and len(able):  # a move for another class may have served this one
                unit = able[size_U[able].argmin()]
                class_K = units.class_P[units.offset_N1[unit] : units.offset_N1[unit + 1]]
                home_C[class_K[owner_C[class_K] == client_U[unit]]] -= 1
                home_C[class_K[owner_C[class_K] == owner_C[class_]]] += 1
                client_U[unit] = owner_C[class_]
                moving = True
    return client_U


def _classes_of_units(labels: Labels, unit_N: Ints, units: int) -> Labels:
    """Return the classes that occur in every unit."""
    key = np.unique(unit_N[labels.row_P] * labels.classes + labels.class_P)
    length_U = np.bincount(key // labels.classes, minlength=units)
    return Labels((key % labels.classes).astype(np.int32), offsets(length_U), labels.classes)


def _movable_units(able: Ints, client_U: Ints, units: Labels, owner_C: Ints, home_C: Ints) -> Ints:
    """Return the units that can leave their client: no class of that client has its last unit in them."""
    candidates = units.take(able)
    needed_P = (owner_C[candidates.class_P] == client_U[able][candidates.row_P]) & (home_C[candidates.class_P] < 2)
    return np.flatnonzero(np.bincount(candidates.row_P[needed_P], minlength=len(able)) == 0)
