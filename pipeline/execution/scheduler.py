"""Choice of the next actor to call, and of its clients: the largest first, and short ones several to a call.

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

from anchorfl.pipeline.execution.cohort import Cohort, FitMetrics

CALL_SECONDS = 0.1
"""Training time, in seconds, of one call of several clients: many times the call's own cost, and little to lose."""
CALL_BYTES = 1 << 25
"""Bytes that one call of several clients may return."""


class NextCall(NamedTuple):
    """The call to make now."""

    slot: int
    """Slot of the actor to call."""
    clients: list[int]
    fresh: bool
    """The actor is to be started for this call, a retry: one of before may be what failed, or be dead unnoticed."""


@dataclass
class Dispatch:
    """The choice of the next call: an actor and its clients."""

    actors: int
    """Number of actors that there can be."""
    concurrent: int
    """Calls in flight at a time, at most."""
    rows: Sequence[int]
    """Rows of data of every client."""
    several: bool = True
    """A call may be for more than one client; not under a deadline, which is one client's."""
    sums: bool = False
    """A call returns one sum for all its clients, and not an update of each."""
    pinned: bool = False
    """A client's actor is that of its own number, and no other."""
    _per_client: tuple[float, int] | None = None  # in the last round: median seconds, most bytes
    _isolated: set[int] = field(default_factory=set)

    def update_timings(self, metrics: Collection[FitMetrics]) -> None:
        """Learn from a finished round how many clients may share a call in the next one."""
        size = max(m.bytes_kept + (0 if self.sums else m.bytes_up) for m in metrics)
        self._per_client = median(m.seconds for m in metrics), size
        self._isolated.clear()

    def isolate(self, clients: Iterable[int]) -> None:
        """Give each of these a call of its own: one for all ended with its process, and one of them may be why."""
        self._isolated.update(clients)

    def ordered(self, clients: Iterable[int]) -> deque[int]:
        """Return clients that wait in the order in which they are called: the largest first."""
        return deque(sorted(clients, key=lambda c: (-self.rows[c], c)))

    def next(
        self, waiting: deque[int], busy: Collection[int], started: Collection[int], retried: Collection[int] = ()
    ) -> NextCall | None:
        """Return the call to make now, for clients that are taken from the left of ``waiting``; None where all actors
        have enough to do.

        busy: slots with a call in flight; started: slots whose actors run; retried: clients that have failed in this
        round.
        """
        if not waiting or len(busy) >= self.concurrent:
            return None
        fresh = waiting[0] in retried
        slot = self._slot(waiting[0] % self.actors, busy, started, fresh)
        if slot is None:
            return None
        # no more than leave as many for every other idle actor
        most = min(self._clients_per_call(), -(-len(waiting) // (min(self.actors, self.concurrent) - len(busy))))
        clients, alone = [waiting.popleft()], self._isolated.union(retried)
        while waiting and len(clients) < most and not alone & {clients[0], waiting[0]}:
            clients.append(waiting.popleft())
        return NextCall(slot, clients, fresh)

    def _slot(self, home: int, busy: Collection[int], started: Collection[int], fresh: bool) -> int | None:
        """Return the client's home slot if its actor is started and idle, else another such one: a process that need
        not be started. Else the home slot, or another one that does not run yet. For ``fresh``, these come first.
        """
        if self.pinned:
            return None if home in busy else home
        idle = sorted(set(started) - set(busy))
        down = sorted(set(range(self.actors)) - set(started) - set(busy))
        slots = (down or idle) if fresh else (idle or down)
        return home if home in slots else slots[0] if slots else None

    def _clients_per_call(self) -> int:
        """Return how many clients may share a call."""
        if self._per_client is None or not self.several:
            return 1
        seconds, size = self._per_client
        return max(1, min(int(CALL_SECONDS / max(seconds, 1e-9)), CALL_BYTES // max(size, 1)))


LOOK_EVERY = 10.0
"""Seconds between two looks at calls that have not been answered."""


@dataclass(slots=True)
class InFlightCall:
    """A call to an actor that has not been answered yet."""

    clients: Sequence[int]
    slot: int
    actor: Any
    parts: tuple[Any, ...]
    """References of its results beside the reply, which the driver reads."""
    until: float
    """When its reply is overdue, by ``time.monotonic``."""
    alive: Any
    """Reference of the actor's sign of life just before the call; None where the actor was started for the call."""


StartCall = Callable[[Any, Sequence[int]], Sequence[Any]]
"""Calls an actor for clients: (actor, clients) -> references, the reply's last."""


@dataclass(slots=True)
class PendingRound:
    """A round that has begun."""

    number: int
    cohort: Cohort
    fit: StartCall
    sent: int
    """Bytes of the broadcast, to every client."""
    grid: Any
    """Reference of the grid on which updates are summed."""
    running: dict[Any, InFlightCall] = field(default_factory=dict)
    """Calls in flight, by the reference of the reply."""


def patience(running: Mapping[Any, InFlightCall]) -> float:
    """Return the seconds to wait for a reply before looking what became of those that are awaited."""
    until = min(call.until for call in running.values())
    return min(LOOK_EVERY, max(0.0, until - time.monotonic()))
