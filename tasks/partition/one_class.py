"""The partition ``one_class``: one client for each class that has rows, which knows that class alone (FedALC, FedAwS).

Shape suffixes: N rows, C classes, P positives.
"""

from __future__ import annotations

import numpy as np

from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.plan import ClientPlan
from anchorfl.tasks.partition.stratify import TrainingRows


def one_class(rows: TrainingRows, task: Task, options: TaskOptions) -> tuple[ClientPlan, ...]:
    """Return one client for each class that has training rows, in the order of the classes, with all of these rows.

    There is nothing random in it. A class without any row has no client. A row with p classes sits with p clients, a
    row without any with none. rows: in ascending order of their ids. Raises InputError where ``options.clients`` is
    another number (0: whatever there are), or no row has a class.
    """
    labels = rows.labels
    count_C = labels.counts()
    number = int((count_C > 0).sum())
    if not number:
        raise InputError(f"no training row of {task.name} has a class, so there is no client: use more data")
    if options.clients not in (0, number):
        raise InputError(wrong_number(task.name, options.clients, number, labels.classes))
    order_P = np.argsort(labels.class_P, kind="stable")  # sorted once: no pass over the rows per class
    parts = np.split(rows.row_N[labels.row_P[order_P]], np.cumsum(count_C)[:-1])
    return tuple(ClientPlan(part, (class_,)) for class_, part in enumerate(parts) if len(part))


def wrong_number(task: str, clients: int, number: int, classes: int) -> str:
    """Return the error message where so many clients were asked for."""
    return (
        f"[task] clients = {clients}, but {number} of the {classes} classes of {task} have training rows, and "
        f"partition = 'one_class' has one client for each; set clients = {number}, or 0 for as many as there are"
    )
