"""Errors of Ray as faults of a round: whose fault it is, of which kind, and in one line what happened."""

from __future__ import annotations

import re
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from anchorfl.pipeline.execution.scheduler import InFlightCall
from anchorfl.pipeline.training.errors import FaultKind, LostError, fault_kind
from anchorfl.tasks.errors import InputError, first_line

MISSING = re.compile(r"No module named '([^']+)'")
FULL = (ObjectStoreFullError, OutOfDiskError)
"""Ray's object store has no room, nor has the disk that objects are moved to: no fault of whoever adds one."""


def cause_of(error: BaseException) -> BaseException:
    """Return the error without Ray's wrapper, which holds the remote traceback."""
    cause: BaseException = error.cause if isinstance(error, RayTaskError) else error
    return cause


def missing_code(error: RayError) -> InputError | None:
    """Return what to say where a worker could not read what it was sent, for lack of a module that this process has;
    None: another error. Ray says it in words alone.
    """
    cause = cause_of(error)
    lacks = MISSING.search(str(cause)) if isinstance(cause, RaySystemError) else None
    return lacks and InputError(
        f"Ray's workers find no module {lacks[1]!r}, which this process has: install its package on every node, or have"
        " Ray send it with --cluster.py_modules PATH"
    )


def is_lost(error: RayError, actor: Any = None) -> bool:
    """Return whether an error says that something is gone that ``actor``, or any other, only used, or has no room."""
    cause = cause_of(error)
    if isinstance(cause, OutOfMemoryError):  # Ray's memory monitor ended it; of a client that is its own fault
        return actor is None
    if isinstance(cause, (ActorDiedError, ActorUnavailableError)):
        return actor is None or cause.actor_id not in (None, actor._actor_id.hex())
    return isinstance(cause, (ObjectLostError, *FULL))


def node_died(error: RayError) -> bool:
    """Return whether an actor is gone because its node is. Ray says it in words alone.

    A fresh one may be put on the same node for as long as Ray has not noticed, so several attempts may end like this.
    """
    return isinstance(error, ActorDiedError) and "its node has died" in str(error)


def died_before(call: InFlightCall) -> bool:
    """Return whether the actor of a call that failed was dead before the call began, which nobody had noticed."""
    if call.alive is None:
        return False
    try:
        ray.get(call.alive)  # there, as the call after it has ended
    except RayError:
        return True
    return False


def lost(error: RayError) -> LostError:
    """Return the LostError that such an error becomes."""
    cause = cause_of(error)
    if isinstance(cause, FULL):
        return LostError(
            "Ray's object store on a node is full, and so is the disk that it moves objects to (Ray stops at 95 %):"
            " free disk space there, or start the node with a larger --object-store-memory"
        )
    return LostError(
        "the server actor, a client whose initial message it holds, or an object on a node that left, is gone"
        f" ({first_line(cause)})"
    )


def put_object(value: Any) -> Any:
    """Put a value into the object store; return its reference. Raise LostError where there is no room."""
    try:
        return ray.put(value)
    except RayError as error:
        raise lost(error) from error


def ray_kind(error: RayError) -> FaultKind:
    """Return the kind of fault that an error of a client's call is."""
    if isinstance(error, RayTaskError):
        return fault_kind(error.cause)
    return "memory" if isinstance(error, OutOfMemoryError) else "crash"
