"""Partitions: who holds which rows and identifies which classes, as pure functions of labels, options and seed.

Shape suffixes: N rows, C classes, M clients, K strata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from tasks.columns import Bools, Ints
from tasks.contract import ClientPlan, InputError, Plan, TaskOptions
from tasks.strata import Labels, generator, largest_remainder, positives, primary_class, stratified_holdout

PARTITIONS = ("k_classes", "dirichlet", "iid")
TRIES_COVER = 1000
TRIES_DIRICHLET = 100
MIN_ROWS = 2
"""Rows that every client of ``dirichlet`` gets at least, where there are that many."""


def make_plan(labels: Labels, row_ids: Ints, class_names: Sequence[str], options: TaskOptions, seed: int) -> Plan:
    """The plan for the training rows: validation rows first, then the partition of the rest.

    labels: positive classes per row, or bool [N, C]; row_ids: unique int64 [N]. Raises InputError where the options
    do not fit the data. Every draw has a generator of its own, so that one choice does not shift another's random
    numbers.
    """
    y_NC = positives(labels, len(class_names))
    row_ids = np.asarray(row_ids, dtype=np.int64)
    if len(row_ids) != len(y_NC) or len(np.unique(row_ids)) != len(row_ids):
        msg = "row ids must be unique, one per row of labels"
        raise ValueError(msg)
    order = np.argsort(row_ids)  # the plan depends on the ids, not on the order in which the rows come
    y_NC, row_ids = y_NC[order], row_ids[order]
    validation = stratified_holdout(primary_class(y_NC), row_ids, options.validation, generator(seed, "validation"))
    left = ~np.isin(row_ids, validation)
    y_NC, row_ids = y_NC[left], row_ids[left]
    _check(options, len(row_ids))
    if options.partition == "k_classes":
        clients = k_classes(y_NC, row_ids, class_names, options, seed)
    elif options.partition == "dirichlet":
        clients = dirichlet(y_NC, row_ids, class_names, options, seed)
    else:
        clients = iid(y_NC, row_ids, options.clients, seed)
    return Plan(clients, validation, seed)


def iid(y_NC: Bools, row_ids: Ints, clients: int, seed: int) -> tuple[ClientPlan, ...]:
    """Rows IID over the clients (sizes differ by at most 1); every client identifies every class."""
    every = tuple(range(y_NC.shape[1]))
    return tuple(ClientPlan(np.sort(row_ids[part]), every) for part in _equal_parts(len(row_ids), clients, seed))


def k_classes(
    y_NC: Bools, row_ids: Ints, class_names: Sequence[str], options: TaskOptions, seed: int
) -> tuple[ClientPlan, ...]:
    """Rows IID over the clients; each identifies k random classes of its own data (FedAlign, 4.1, "random-k classes").

    ``options.cover``: the classes of all clients are drawn again until somebody identifies each class, so the draw is
    uniform over the covering ones. Raises InputError where a client has fewer than k classes or a class is left to
    nobody.
    """
    k, classes = options.classes_per_client, y_NC.shape[1]
    parts = _equal_parts(len(row_ids), options.clients, seed)
    own_MC = np.stack([y_NC[part].any(0) for part in parts])
    _check_k(own_MC, k)
    _check_present(y_NC, class_names)
    if options.cover and k * options.clients < classes:
        msg = (
            f"{options.clients} clients with {k} classes each cannot identify all {classes} classes; "
            f"raise [task] classes_per_client or clients until their product is at least {classes}"
        )
        raise InputError(msg)
    drawn_MC, missing = _draw_classes(own_MC, k, TRIES_COVER if options.cover else 1, generator(seed, "classes"))
    if missing.any():
        mend = (
            f"not in {TRIES_COVER} draws; raise [task] classes_per_client or clients, or try another seed"
            if options.cover
            else "set [task] cover = true, raise classes_per_client, or try another seed"
        )
        msg = f"{_named(missing, class_names)} is identified by no client: {mend}"
        raise InputError(msg)
    return tuple(
        ClientPlan(np.sort(row_ids[part]), tuple(np.flatnonzero(drawn_C).tolist()))
        for part, drawn_C in zip(parts, drawn_MC, strict=True)
    )


def dirichlet(
    y_NC: Bools, row_ids: Ints, class_names: Sequence[str], options: TaskOptions, seed: int
) -> tuple[ClientPlan, ...]:
    """The rows of every class cut over the clients in ratios Dir(beta); a client identifies the classes that it holds.

    A multi-label row counts as its rarest positive class. Ratios are drawn again (bounded) until every client has
    ``min(2, N // M)`` rows; if no draw does, rows move from the largest clients to the too small ones.
    """
    _check_present(y_NC, class_names)
    clients = options.clients
    need = min(MIN_ROWS, len(row_ids) // clients)
    strata = [np.flatnonzero(primary_class(y_NC) == c) for c in range(-1, y_NC.shape[1])]
    strata = [rows for rows in strata if len(rows)]
    size_KM = _dirichlet_sizes([len(rows) for rows in strata], options, need, generator(seed, "ratios"))
    rng = generator(seed, "rows")
    pieces: list[list[Ints]] = [[] for _ in range(clients)]
    for rows, size_M in zip(strata, size_KM, strict=True):
        cut = np.split(rng.permutation(rows), np.cumsum(size_M)[:-1])
        for client, piece in enumerate(cut):
            pieces[client].append(piece)
    parts = _repair([rng.permutation(np.concatenate(piece)) for piece in pieces], need)
    return tuple(
        ClientPlan(np.sort(row_ids[part]), tuple(np.flatnonzero(y_NC[part].any(0)).tolist())) for part in parts
    )


def digest(plan: Plan) -> str:
    """sha256 of a plan: rows and classes of every client, validation rows, seed."""
    total = hashlib.sha256(repr((plan.seed, len(plan.clients))).encode())
    for rows, classes in [(c.rows, c.classes) for c in plan.clients] + [(plan.validation, ())]:
        total.update(repr((len(rows), classes)).encode())
        total.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
    return total.hexdigest()


def plan_to_json(plan: Plan) -> str:
    """A plan as JSON text, with its digest."""
    clients = [{"rows": c.rows.tolist(), "classes": list(c.classes)} for c in plan.clients]
    content = {"digest": digest(plan), "seed": plan.seed, "validation": plan.validation.tolist(), "clients": clients}
    return json.dumps(content)


def plan_from_json(text: str) -> Plan:
    """The plan of ``plan_to_json``. Raises InputError where the text is no plan or does not match its digest."""
    try:
        content = json.loads(text)
        clients = tuple(
            ClientPlan(np.array(c["rows"], dtype=np.int64), tuple(int(i) for i in c["classes"]))
            for c in content["clients"]
        )
        plan = Plan(clients, np.array(content["validation"], dtype=np.int64), int(content["seed"]))
        stored = content["digest"]
    except (ValueError, TypeError, KeyError) as error:
        msg = f"this is no partition plan ({error!r}); prepare the data again"
        raise InputError(msg) from error
    if stored != digest(plan):
        msg = "the partition plan does not match its own digest, so it was edited or damaged; prepare the data again"
        raise InputError(msg)
    return plan


def _equal_parts(rows: int, clients: int, seed: int) -> list[Ints]:
    return np.array_split(generator(seed, "rows").permutation(rows), clients)


def _dirichlet_sizes(count_K: Sequence[int], options: TaskOptions, need: int, rng: np.random.Generator) -> Ints:
    """Rows of every stratum for every client, int64 [K, M]; the last draw if none gives every client ``need`` rows."""
    size_KM = np.zeros((len(count_K), options.clients), dtype=np.int64)
    for _ in range(TRIES_DIRICHLET):
        share_KM = rng.dirichlet(np.full(options.clients, options.beta), size=len(count_K))
        if not np.isfinite(share_KM).all():
            msg = f"[task] beta = {options.beta} is too small to draw ratios with; use at least 0.01"
            raise InputError(msg)
        for stratum, count in enumerate(count_K):
            size_KM[stratum] = largest_remainder(share_KM[stratum] * count, count)
        if size_KM.sum(0).min() >= need:
            break
    return size_KM


def _draw_classes(own_MC: Bools, k: int, tries: int, rng: np.random.Generator) -> tuple[Bools, Bools]:
    """Uniform k-subsets of every client's classes, and the classes left over by the best of ``tries`` draws."""
    best_MC, left_C = np.zeros_like(own_MC), np.ones(own_MC.shape[1], dtype=np.bool_)
    for _ in range(tries):
        key_MC = np.where(own_MC, rng.random(own_MC.shape), 2.0)  # the k smallest of uniform keys are a uniform subset
        drawn_MC = np.zeros_like(own_MC)
        np.put_along_axis(drawn_MC, np.argsort(key_MC, axis=1)[:, :k], values=True, axis=1)
        missing_C = np.asarray(~drawn_MC.any(0))
        if missing_C.sum() < left_C.sum():
            best_MC, left_C = drawn_MC, missing_C
        if not left_C.any():
            break
    return best_MC, left_C


def _repair(parts: list[Ints], need: int) -> list[Ints]:
    """The parts with rows moved one by one from the largest (the first of equals) to those with fewer than ``need``."""
    size_M = np.array([len(part) for part in parts])
    for small in np.flatnonzero(size_M < need):
        while size_M[small] < need:  # ends: need * M <= N, so the largest part always has one to spare
            large = int(size_M.argmax())
            parts[small], parts[large] = np.append(parts[small], parts[large][-1]), parts[large][:-1]
            size_M[small] += 1
            size_M[large] -= 1
    return parts


def _check(options: TaskOptions, rows: int) -> None:
    if options.partition not in PARTITIONS:
        msg = f"[task] partition = {options.partition!r} is none of {', '.join(PARTITIONS)}"
        raise InputError(msg)
    if options.clients < 1 or options.clients > rows:
        msg = f"[task] clients = {options.clients} must lie in 1..{rows}: there are {rows} training rows to share"
        raise InputError(msg)
    if options.partition == "k_classes" and options.classes_per_client < 1:
        msg = f"[task] classes_per_client = {options.classes_per_client} must be at least 1"
        raise InputError(msg)
    if options.partition == "dirichlet" and not 0 < options.beta < float("inf"):
        msg = f"[task] beta = {options.beta} must be a finite number above 0"
        raise InputError(msg)


def _check_k(own_MC: Bools, k: int) -> None:
    count_M = own_MC.sum(1)
    if (count_M < k).any():
        client = int(np.flatnonzero(count_M < k)[0])
        msg = (
            f"[task] classes_per_client = {k}, but client {client} has rows of only {count_M[client]} classes; "
            f"lower it to {count_M.min()} or use fewer clients"
        )
        raise InputError(msg)


def _check_present(y_NC: Bools, class_names: Sequence[str]) -> None:
    absent_C = np.asarray(~y_NC.any(0))
    if absent_C.any():
        msg = f"{_named(absent_C, class_names)} has no training row; use a smaller [task] validation or more data"
        raise InputError(msg)


def _named(chosen_C: Bools, class_names: Sequence[str]) -> str:
    return "class " + ", ".join(repr(class_names[c]) for c in np.flatnonzero(chosen_C).tolist())
