"""The result of a partition, as a table, and its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Ints, Table

PARTS = ("train", "validation", "client_test")
"""Parts of a plan, as its table has them."""


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A client of a partition."""

    rows: Ints
    """Ids of its training rows, ascending, int64."""
    classes: tuple[int, ...]
    """Ascending indices of its identified classes."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The rows and classes of every client, a pure function of labels, options and seed."""

    clients: tuple[ClientPlan, ...]
    validation: Ints
    """Row ids held out for validation, ascending."""
    seed: int
    validation_client: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Client whose classes alone are known in each validation row; empty: all classes are."""
    client_test: tuple[Ints, ...] = ()
    """Ids of every client's own test rows, ascending; empty: clients have none."""


def plan_digest(plan: PartitionPlan) -> str:
    """Return the sha256 of a plan: rows, classes and own test rows of every client, validation rows and whose they
    were, seed.
    """
    total = hashlib.sha256(repr((plan.seed, len(plan.clients))).encode())
    for rows, classes in [(c.rows, c.classes) for c in plan.clients] + [(plan.validation, ())]:
        total.update(repr((len(rows), classes)).encode())
        total.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
    total.update(np.ascontiguousarray(plan.validation_client, dtype="<i8").tobytes())
    for rows in plan.client_test:
        total.update(repr(len(rows)).encode())
        total.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
    return total.hexdigest()


def plan_table(plan: PartitionPlan) -> Table:
    """Return the rows of a plan as a table, in the order of ``plan_digest``: ``part`` (train: a client's training rows;
    validation; client_test), ``client`` int32 (null: a validation row in which all classes are known), ``row`` int64.
    """
    parts = [[client.rows for client in plan.clients], [plan.validation], list(plan.client_test)]
    validation_client = pa.nulls(len(plan.validation), pa.int32())
    if len(plan.validation_client):
        validation_client = pa.array(plan.validation_client, pa.int32())
    train, tested = (np.repeat(np.arange(len(rows)), list(map(len, rows))) for rows in (parts[0], parts[2]))
    number = np.repeat(np.arange(len(PARTS)), [sum(map(len, rows)) for rows in parts])
    return pa.table(
        {
            "part": pa.DictionaryArray.from_arrays(pa.array(number, pa.int8()), pa.array(PARTS)),
            "client": pa.concat_arrays([pa.array(train, pa.int32()), validation_client, pa.array(tested, pa.int32())]),
            "row": np.concatenate([np.zeros(0, np.int64), *(rows for part in parts for rows in part)]),
        }
    )


def plan_of_table(table: Table, classes: Sequence[tuple[int, ...]], seed: int, client_test: bool) -> PartitionPlan:
    """Return the plan of ``plan_table``.

    classes: identified by every client; client_test: clients have test rows of their own. Raises KeyError where a
    column lacks.
    """
    part_E, row_E = table["part"].cast(pa.string()), table["row"].to_numpy()

    def rows_of(part: str) -> tuple[Ints, Ints]:
        here = pc.equal(part_E, part)
        client = table["client"].filter(here)
        known = np.zeros(0, np.int64) if client.null_count else client.to_numpy().astype(np.int64)
        return row_E[here.to_numpy()], known

    def split(part: str) -> list[Ints]:
        rows, client = rows_of(part)
        return np.split(rows, np.searchsorted(client, np.arange(1, len(classes))))

    train, (validation, validation_client) = split("train"), rows_of("validation")
    clients = tuple(ClientPlan(rows, known) for rows, known in zip(train, classes, strict=True))
    return PartitionPlan(
        clients, validation, seed, validation_client, tuple(split("client_test")) if client_test else ()
    )
