"""The partition ``one_class``: one client per class, which knows that class alone (FedALC, FedAwS).

Shape suffixes: N rows, C classes, P positives.
"""

from __future__ import annotations

import numpy as np

from tasks.contract import ClientPlan, InputError, Task, TaskOptions
from tasks.strata import Rows, named


def one_class(rows: Rows, task: Task, options: TaskOptions) -> tuple[ClientPlan, ...]:
    """Client c has all rows with class c and identifies c; there is nothing random in it.

    rows: in ascending order of their ids. A row with p classes sits with p clients, a row without any with none. Raises
    InputError where there are not as many clients as classes, or a class has no row.
    """
    labels = rows.labels
    if options.clients != labels.classes:
        msg = (
            f"[task] clients = {options.clients}, but {task.name} has {labels.classes} classes, and "
            f"partition = 'one_class' has one client per class; set clients = {labels.classes}"
        )
        raise InputError(msg)
    count_C = labels.counts()
    if not count_C.all():
        msg = (
            f"{named(count_C == 0, task.class_names)} has no training row, so its client would have no data; leave the "
            "class out of the label space ([task] min_positives leaves out the rare ones), use a smaller [task] "
            "validation or more data"
        )
        raise InputError(msg)
    order_P = np.argsort(labels.class_P, kind="stable")  # sorted once: no pass over the rows per class
    parts = np.split(rows.row_N[labels.row_P[order_P]], np.cumsum(count_C)[:-1])
    return tuple(ClientPlan(part, (class_,)) for class_, part in enumerate(parts))
