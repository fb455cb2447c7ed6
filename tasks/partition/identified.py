"""What every client identifies, whatever rows the partition gave it: drawn, what it holds, all, or as the user says.

Shape suffixes: N rows, C classes, M clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anchorfl.tasks.arrays.arrow import Bools
from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.client_classes import given_sets
from anchorfl.tasks.partition.plan import ClientPlan
from anchorfl.tasks.partition.stratify import TrainingRows, check_present, describe_classes, generator

TRIES_COVER = 1000


def identified(
    clients: Sequence[ClientPlan], rows: TrainingRows, task: Task, options: TaskOptions, seed: int
) -> tuple[ClientPlan, ...]:
    """Return the clients with the classes that ``client_classes`` gives them, or the rule ``identified`` draws.

    Raises InputError where the sets do not fit the clients, or leave a class to nobody and ``cover`` is not ``any``.
    """
    rule = options.identified
    if rule == "partition" and options.partition == "k_classes":
        rule = "k_classes"
    given_MC = given_sets(rows, task, options, seed)
    if given_MC is None and rule == "partition":
        _check_some(np.array([bool(client.classes) for client in clients]))
        return tuple(clients)
    held_MC = np.stack([rows.labels.take(np.searchsorted(rows.row_N, c.rows)).counts() > 0 for c in clients])
    if given_MC is not None:
        known_MC = given_MC
    elif rule == "k_classes":
        known_MC = k_classes(held_MC, rows, task.class_names, options, seed)
    else:
        known_MC = held_MC if rule == "held" else np.ones_like(held_MC)
    _check_some(np.asarray(known_MC.any(1)))
    missing_C = np.asarray(~known_MC.any(0))
    if missing_C.any() and options.cover != "any":
        hint = ""
        if given_MC is not None:
            hint = "give it to one in client_classes, or "
        elif rule == "k_classes" and options.cover == "redraw":
            hint = f"not in {TRIES_COVER} draws; raise [task] classes_per_client or clients, try another seed, or "
        elif rule == "k_classes":
            hint = "set [task] cover = 'redraw', raise classes_per_client, try another seed, or "
        raise InputError(
            f"{describe_classes(missing_C, task.class_names)} is identified by no client: {hint}set [task] cover ="
            " 'any', which scores it apart"
        )
    return tuple(
        replace(client, classes=tuple(np.flatnonzero(known_C).tolist()))
        for client, known_C in zip(clients, known_MC, strict=True)
    )


def _check_some(some_M: Bools) -> None:
    """Raise InputError where a client identifies nothing. some_M: whether each identifies something."""
    for client in np.flatnonzero(~some_M)[:1]:
        raise InputError(f"client {client} would identify nothing, since it has no row with a class; use fewer clients")


def k_classes(held_MC: Bools, rows: TrainingRows, class_names: Sequence[str], options: TaskOptions, seed: int) -> Bools:
    """Return k random classes for each client, of those that it holds, bool [M, C].

    FedAlign, section 5, "random-k classes". ``cover = "redraw"``: those of all clients are drawn again until somebody
    identifies each class, so the draw is uniform over the covering ones. A client that holds fewer identifies them all,
    which the partition ``k_classes`` refuses: its rows are IID. Raises InputError where a class has no row, too.
    """
    k, (clients, classes) = options.classes_per_client, held_MC.shape
    if options.partition == "k_classes":
        _check_k(held_MC, k)
    check_present(rows.labels, class_names)
    redraw = options.cover == "redraw"
    if redraw and k * clients < classes:
        raise InputError(
            f"{clients} clients with {k} classes each cannot identify all {classes} classes; "
            f"raise [task] classes_per_client or clients until their product is at least {classes}, or set cover ="
            " 'any', which scores the others apart"
        )
    rng = generator(seed, "classes")
    best_MC, left = np.zeros_like(held_MC), classes + 1
    for _ in range(TRIES_COVER if redraw else 1):
        key_MC = np.where(held_MC, rng.random(held_MC.shape), 2.0)  # the k smallest of uniform keys: a uniform subset
        drawn_MC = np.zeros_like(held_MC)
        np.put_along_axis(drawn_MC, np.argsort(key_MC, axis=1)[:, :k], values=True, axis=1)
        drawn_MC &= held_MC
        missing = int((~drawn_MC.any(0)).sum())
        if missing < left:
            best_MC, left = drawn_MC, missing
        if not left:
            break
    return best_MC


def _check_k(held_MC: Bools, k: int) -> None:
    count_M = held_MC.sum(1)
    if (count_M < k).any():
        client, least = int(np.flatnonzero(count_M < k)[0]), int(count_M.min())
        ways = [f"lower it to {least}"] if least else []
        if held_MC.any(0).sum() >= k and len(held_MC) > 1:  # else no client could have so many
            ways.append("use fewer clients")
        raise InputError(
            f"[task] classes_per_client = {k}, but client {client} has rows of only {count_M[client]} classes; "
            f"{' or '.join(ways) or 'give rows with classes'}"
        )
