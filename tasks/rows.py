"""The table that a task's ``read`` gave: whether it keeps the contract, and who gets which of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from tasks.columns import Ints, list_parts
from tasks.contract import InputError, Plan, Task


def checked(table: Any, task: Task) -> Any:
    """The table that ``read`` gave, if it keeps the contract.

    Raises ValueError on a fault of the task, InputError on a fault of the data.
    """
    lacking = {"row", "split", "labels", task.payload} - set(table.column_names)
    if lacking or len(pc.unique(table["row"])) != table.num_rows:
        msg = f"{task.name}: read must give unique rows and {task.payload}; it lacks {sorted(lacking)}"
        raise ValueError(msg)
    _, length_N = list_parts(table["labels"])
    if task.kind == "single" and (length_N != 1).any():
        row = table["row"][int(np.flatnonzero(length_N != 1)[0])].as_py()
        msg = f"{task.name}: row {row} has not exactly one class, as a single-label task needs; correct the raw data"
        raise InputError(msg)
    splits = set(pc.unique(table["split"]).to_pylist())
    if splits != {"train", "test"}:
        msg = f"{task.name}: the rows need the splits train and test, found {sorted(splits)}; correct the raw data"
        raise InputError(msg)
    return table


def owners(plan: Plan, row_N: Ints) -> Ints:
    """Owner of every row: its client, or the server (number of clients: test; one more: validation)."""
    owner_N = np.full(len(row_N), len(plan.clients), dtype=np.int64)
    order_N = np.argsort(row_N)
    parts = [client.rows for client in plan.clients]
    for owner, rows in [*enumerate(parts), (len(parts) + 1, plan.validation)]:
        owner_N[order_N[np.searchsorted(row_N, rows, sorter=order_N)]] = owner
    return owner_N
