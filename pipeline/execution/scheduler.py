"""Which actor is called next, and for which clients: the largest first, and short ones several to a call.

Nothing here changes a result, which depends on neither the actor nor the order. A call to an actor costs some
milliseconds whatever it does (docs/speed.md), so clients that train for less share one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from anchorfl.pipeline.execution.cohort import Answer, Cohort

CALL_SECONDS = 0.1
"""Of training that one call of several clients should take: many times what the call costs, and little to lose."""
CALL_BYTES = 1 << 25
"""Of answers that one call of several clients may return."""


@dataclass
class Dispatch:
    """actors: how many there can be; concurrent: calls in flight; rows: of every client; several: whether a call may be
    for more than one client (not under a deadline, which is one client's).
    """

    actors: int
    concurrent: int
    rows: Sequence[int]
    several: bool = True
    _each: tuple[float, int] | None = None  # of a client in the last round: median seconds, most bytes
    _alone: set[int] = field(default_factory=set)

    def learn(self, answers: Iterable[Answer]) -> None:
        """After a round: what its clients took tells how many share a call in the next one."""
        given = list(answers)
        self._each = median(a.seconds for a in given), max(a.bytes_up + a.bytes_kept for a in given)
        self._alone.clear()

    def part(self, clients: Iterable[int]) -> None:
        """A call for these ended with its process, and one of them may be why: each gets a call of its own."""
        self._alone.update(clients)

    def ordered(self, clients: Iterable[int]) -> deque[int]:
        """Clients that wait, in the order in which they are called: the largest first."""
        return deque(sorted(clients, key=lambda c: (-self.rows[c], c)))

    def next(self, waiting: deque[int], busy: Collection[int], up: Collection[int]) -> tuple[int, list[int]] | None:
        """The actor to call now and its clients, taken from the left of ``waiting``; None where all have enough to do.
        busy: actors with a call in flight; up: those that run.
        """
        if not waiting or len(busy) >= self.concurrent:
            return None
        slot = self._slot(waiting[0] % self.actors, busy, up)
        if slot is None:
            return None
        # no more than leave as many for every other idle actor
        most = min(self._most(), -(-len(waiting) // (min(self.actors, self.concurrent) - len(busy))))
        clients = [waiting.popleft()]
        while waiting and len(clients) < most and not self._alone & {clients[0], waiting[0]}:
            clients.append(waiting.popleft())
        return slot, clients

    def _slot(self, own: int, busy: Collection[int], up: Collection[int]) -> int | None:
        """The client's own actor if it is up and idle, else another one that is: a process that need not be started.
        Else the own, or another one that does not run yet.
        """
        idle = sorted(set(up) - set(busy))
        down = sorted(set(range(self.actors)) - set(up) - set(busy))
        for choice in (idle, down):
            if choice:
                return own if own in choice else choice[0]
        return None

    def _most(self) -> int:
        if self._each is None or not self.several:
            return 1
        seconds, size = self._each
        return max(1, min(int(CALL_SECONDS / max(seconds, 1e-9)), CALL_BYTES // max(size, 1)))


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
    cohort: Cohort
    fit: Start
    sent: int
    running: dict[Any, Job] = field(default_factory=dict)


def patience(running: Mapping[Any, Job]) -> float:
    """Seconds to wait for an answer before looking what became of those that are awaited."""
    until = min(job.until for job in running.values())
    return min(LOOK_EVERY, max(0.0, until - time.monotonic()))
