"""The partition ``subjects``: whole subjects, or writers, over the clients (FedBM, FEMNIST).

Shape suffixes: N rows, C classes, M clients, S subjects, K entries that occur.
"""

from __future__ import annotations

import heapq

import numpy as np

from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.plan import ClientPlan
from anchorfl.tasks.partition.stratify import TrainingRows, check_present, generator, group_rows


def subjects(rows: TrainingRows, task: Task, options: TaskOptions, seed: int) -> tuple[ClientPlan, ...]:
    """Give all rows of a subject to one client; a client identifies the classes that it holds.

    As many clients as subjects: one each, in the order of the subjects' names. Fewer: the subjects are shuffled and
    dealt, the largest first, each to the client with the fewest rows. Raises InputError where there are more clients
    than subjects, a class has no row, or a client has no row with a class.
    """
    check_present(rows.labels, task.class_names)
    subject_N = subject_codes(rows)
    size_S = np.bincount(subject_N)
    if options.clients > len(size_S):
        raise InputError(
            f"[task] clients = {options.clients}, but the training rows have only {len(size_S)} subjects "
            f"({task.subjects}); partition = 'subjects' needs clients = {len(size_S)} or fewer"
        )
    client_S = np.arange(len(size_S))
    if options.clients < len(size_S):
        client_S = balance_subjects(size_S, options.clients, generator(seed, "subjects"))
    client_N = client_S[subject_N]
    classes = _classes_by_client(rows.labels, client_N, options.clients)
    for client, owned in enumerate(classes):
        if not owned:
            who = f"client {client}"
            if rows.subject_N is not None and options.clients == len(size_S):
                who = f"{task.subjects} {np.unique(rows.subject_N)[client]}"
            fewer = "" if options.client_column else ", or use fewer [task] clients"
            raise InputError(
                f"{who} would identify nothing, since none of its training rows has a class: label one, or leave its"
                f" rows out of the raw data{fewer}"
            )
    parts = group_rows(client_N, options.clients)
    return tuple(ClientPlan(rows.row_N[part], owned) for part, owned in zip(parts, classes, strict=True))


def subject_codes(rows: TrainingRows) -> Ints:
    """Return the subject of every row, numbered in the order of names, int64 [N]. Raises ValueError: there are none."""
    if rows.subject_N is None:
        raise ValueError("the rows have no subjects, although the task has: read must give the column 'subject'")
    return np.unique(rows.subject_N, return_inverse=True)[1].astype(np.int64)


def balance_subjects(size_S: Ints, clients: int, rng: np.random.Generator) -> Ints:
    """Return the client of every subject, int64 [S].

    Subjects are shuffled; then the largest come first, each to the client with the fewest rows (the first of equals).
    """
    order_S = rng.permutation(len(size_S))
    order_S = order_S[np.argsort(-size_S[order_S], kind="stable")]
    client_S = np.empty(len(size_S), dtype=np.int64)
    load = [(0, client) for client in range(clients)]
    for subject in order_S.tolist():
        rows, client = load[0]
        client_S[subject] = client
        heapq.heapreplace(load, (rows + int(size_S[subject]), client))
    return client_S


def _classes_by_client(labels: Labels, client_N: Ints, clients: int) -> list[tuple[int, ...]]:
    """Return the classes that occur in the rows of every client, ascending."""
    key_K = np.unique(client_N[labels.row_P] * labels.classes + labels.class_P)
    ends_M = np.cumsum(np.bincount(key_K // labels.classes, minlength=clients))
    return [tuple(part.tolist()) for part in np.split(key_K % labels.classes, ends_M[:-1])]
