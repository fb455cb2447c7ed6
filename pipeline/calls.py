"""Calls to client actors that are in flight, and what came of them; the references are Ray's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.faults import Roster

LOOK_EVERY = 10.0
"""Seconds."""


@dataclass(slots=True)
class Job:
    """A call to an actor; parts: references of what it gives beside its answer, which the driver reads; until: when its
    answer is overdue.
    """

    clients: Sequence[int]
    slot: int
    actor: Any
    parts: tuple[Any, ...]
    until: float


class Given(NamedTuple):
    """References of what a client gave: the updates of its call, its place there, and its memory."""

    updates: Any
    place: int
    memory: Any


Start = Callable[[Any, Sequence[int]], Sequence[Any]]
"""Calls an actor for clients: (actor, clients) -> references, the answer's last."""


@dataclass(slots=True)
class Round:
    """A round that has begun. sent: bytes to every client; running: its calls in flight, by the answer's reference."""

    number: int
    roster: Roster
    fit: Start
    sent: int
    running: dict[Any, Job] = field(default_factory=dict)


def patience(running: Mapping[Any, Job]) -> float:
    """Seconds to wait for an answer before looking what became of those that are awaited."""
    until = min(job.until for job in running.values())
    return min(LOOK_EVERY, max(0.0, until - time.monotonic()))
