"""The result of a partition, as JSON, and its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

import numpy as np

from anchorfl.tasks.arrays.arrow import Ints
from anchorfl.tasks.errors import InputError


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A client of a partition."""

    rows: Ints
    """Ids of its training rows, ascending, int64."""
    classes: tuple[int, ...]
    """Ascending indices of its identified classes."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The rows and classes of every client, a pure function of labels, options and seed. Stored, and an artifact."""

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


def plan_to_json(plan: PartitionPlan) -> str:
    """Return a plan as JSON text, with its digest."""
    clients = [{"rows": c.rows.tolist(), "classes": list(c.classes)} for c in plan.clients]
    content = {
        "digest": plan_digest(plan),
        "seed": plan.seed,
        "validation": plan.validation.tolist(),
        "clients": clients,
    }
    if len(plan.validation_client):
        content["validation_client"] = plan.validation_client.tolist()
    if plan.client_test:
        content["client_test"] = [rows.tolist() for rows in plan.client_test]
    return json.dumps(content)


def plan_from_json(text: str) -> PartitionPlan:
    """Return the plan of ``plan_to_json``. Raises InputError where the text is no plan or does not match its digest."""
    try:
        content = json.loads(text)
        clients = tuple(
            ClientPlan(np.array(c["rows"], dtype=np.int64), tuple(int(i) for i in c["classes"]))
            for c in content["clients"]
        )
        validation, validation_client = (
            np.array(content.get(name, []), dtype=np.int64) for name in ("validation", "validation_client")
        )
        client_test = tuple(np.array(rows, dtype=np.int64) for rows in content.get("client_test", []))
        plan = PartitionPlan(clients, validation, int(content["seed"]), validation_client, client_test)
        stored = content["digest"]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(f"this is no partition plan: {error!r}") from error
    if stored != plan_digest(plan):
        raise InputError("the partition plan does not match its own digest")
    return plan
