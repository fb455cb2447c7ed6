"""The executor that drives a run's Ray actors (pipeline/crew.py) from the round loop.

Updates go from client to server as object references and never pass through the driver.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError

from pipeline import tree
from pipeline.cluster import layout
from pipeline.contract import Tensors
from pipeline.crew import Crew, Stats
from pipeline.dispatch import Dispatch
from pipeline.evaluate import mean_of_models
from pipeline.executor import NEXT, Watch, scored_as
from pipeline.faults import Failure, LostError, RejectedError, Roster, RoundOutcome
from pipeline.ray_errors import is_lost, lost, node_died, one_line, ray_kind
from pipeline.setup import Setup
from tasks.metrics import Scores

LOOK_EVERY = 10.0
"""Seconds."""


@dataclass(slots=True)
class _Job:
    """A call to an actor; parts: references of what it gives beside its answer, which the driver reads; until: when its
    answer is overdue.
    """

    clients: Sequence[int]
    slot: int
    actor: Any
    parts: tuple[Any, ...]
    until: float


class _Given(NamedTuple):
    """References of what a client gave: the updates of its call, its place there, and its memory."""

    updates: Any
    place: int
    memory: Any


_Start = Callable[[Any, Sequence[int]], Sequence[Any]]
"""Calls an actor for clients: (actor, clients) -> references, the answer's last."""


class RayExecutor:
    """One run on a crew. Same bits as SerialExecutor on CPUs.

    crew: shared with other runs, and left to its owner; None: a crew of its own, which ends with the run.
    """

    def __init__(self, setup: Setup, crew: Crew | None = None) -> None:
        e = setup.experiment
        self.setup, self.federation, self.clients = setup, e.federation, e.task.clients
        self.letters, self.at_clients = e.method.letters, e.method.scored == "clients"
        self.own = crew is None
        self.crew = crew or Crew(layout(e.cluster, e.task.clients))
        self.layout = self.crew.layout
        self.rows = setup.data().cards().rows
        self.dispatch = self._dispatch(several=not e.federation.deadline)
        self._open()

    def _dispatch(self, *, several: bool) -> Dispatch:
        return Dispatch(self.layout.actors, self.layout.concurrent, self.rows, several)

    def _open(self) -> None:
        self.run, self._opened = self.crew.open(self.setup)
        self.server = self.crew.server
        self.memories: dict[int, Any] = {}

    def round(self, round_: int, selected: Sequence[int], watch: Watch, stand_ins: Sequence[int] = ()) -> RoundOutcome:
        sent, size = self.server.broadcast.options(num_returns=2).remote(self.run, round_)
        each = self._get(size)
        roster = Roster(selected, stand_ins, self.federation.retries, self.federation.quorum)
        given, peak, merged = dict[int, _Given](), dict[str, float](), None

        def fit(actor: Any, clients: Sequence[int]) -> Sequence[Any]:
            own = [self.memories.get(c) for c in clients]
            own += [self.server.letter.remote(self.run, c) for c in clients] if self.letters else []
            refs: Sequence[Any] = actor.fit.options(num_returns=2 + len(clients)).remote(
                self.run, self.crew.setups[self.run], clients, round_, [sent], *own
            )
            return refs

        while merged is None:
            for job, stats in self._answers(roster, self.dispatch, fit, watch):
                given |= self._take(job, stats, roster)
                peak |= {k.replace("client", f"actor_{job.slot:03d}"): v for k, v in stats.memory.items()}
            roster.check_quorum()
            try:
                merged = self._merge(round_, {c: given[c] for c in sorted(roster.answers)})
            except RejectedError as error:
                roster.refuse(error)
        self.memories |= {c: given[c].memory for c in roster.answers}
        self.dispatch.learn(roster.answers.values())
        counts, of_server = merged
        return roster.outcome(each, peak | of_server, counts)

    def _take(self, job: _Job, stats: Stats, roster: Roster) -> dict[int, _Given]:
        """The answers of a call. Where a client failed, those after it have not been asked yet."""
        roster.answers |= dict(zip(job.clients, stats.answers, strict=False))
        if stats.failure is not None:
            self.crew.retire(job.slot)  # the next attempt gets a fresh process
            roster.fault(stats.failure)
            roster.waiting.extend(job.clients[len(stats.answers) + 1 :])
        updates, *memories = job.parts
        return {c: _Given(updates, place, memories[place]) for place, c in enumerate(job.clients[: len(stats.answers)])}

    def _merge(self, round_: int, given: Mapping[int, _Given]) -> Any:
        """Of the server, over what these clients gave."""
        calls = list(dict.fromkeys(g.updates for g in given.values()))
        places = {client: (calls.index(g.updates), g.place) for client, g in given.items()}
        return self._get(self.server.merge.remote(self.run, round_, places, *calls))

    def _answers(
        self, roster: Roster, dispatch: Dispatch, start: _Start, watch: Watch | None = None
    ) -> Iterator[tuple[_Job, Any]]:
        """Call the actors of all who wait and yield the answers as they come in; the roster gets the faults. LostError
        where a fault is none of a client; no call is left running then, nor when the caller stops.
        """
        running = dict[Any, _Job]()
        try:
            while roster.waiting or running:
                self._submit(roster.waiting, running, dispatch, start)
                if watch is not None:
                    watch(sum(len(job.clients) for job in running.values()), len(roster.answers), len(roster.failed))
                ready, _ = ray.wait(list(running), num_returns=1, timeout=_patience(running))
                if not ready:
                    self._overdue(running, roster)
                    continue
                job = running.pop(ready[0])
                try:
                    answer = ray.get(ready[0])
                except RayError as error:
                    self._fault(job, roster, error)
                    continue
                yield job, answer
        finally:
            for job in running.values():
                self.crew.retire(job.slot)

    def _overdue(self, running: dict[Any, _Job], roster: Roster) -> None:
        """Nothing came for a while: look for answers that are overdue, and for actors that can never start."""
        for ref, job in list(running.items()):
            if time.monotonic() >= job.until:
                self._fault(running.pop(ref), roster, None)
            elif self.crew.stuck(job.slot):  # no fault of the client's
                running.pop(ref)
                self.crew.retire(job.slot)
                roster.waiting.extend(job.clients)

    def _submit(self, waiting: deque[int], running: dict[Any, _Job], dispatch: Dispatch, start: _Start) -> None:
        """Hand out work: at most one call per actor in flight, at most ``concurrent`` in all."""
        busy = {job.slot for job in running.values()}
        while (call := dispatch.next(waiting, busy, self.crew.up)) is not None:
            slot, clients = call
            busy.add(slot)
            actor = self.crew.client(slot, self.run)
            *parts, answer = start(actor, clients)
            until = time.monotonic() + (self.federation.deadline or math.inf)
            running[answer] = _Job(clients, slot, actor, tuple(parts), until)

    def _fault(self, job: _Job, roster: Roster, error: RayError | None) -> None:
        """Retire the actor, whatever happened to it: the next attempt gets a fresh process. error: None where the
        answer is overdue.
        """
        self.crew.retire(job.slot)
        first, *others = job.clients
        if error is None:
            reason = f"no answer within {self.federation.deadline:g} s"
            roster.fault(Failure(first, reason, "deadline"))
            return
        if is_lost(error, job.actor):
            raise lost(error)
        reason = one_line(error)
        if others:  # whose fault it was will show when each has a call of its own
            reason += f" (or a fault of clients {', '.join(map(str, others))}, of the same call)"
            self.dispatch.part(job.clients)
            roster.waiting.extend(others)
        roster.fault(Failure(first, reason, ray_kind(error)), counted=not others and not node_died(error))

    def _get(self, ref: Any) -> Any:
        try:
            while not ray.wait([self._opened], timeout=LOOK_EVERY)[0]:
                if self.crew.server_stuck:
                    raise LostError("the server actor waits for CPUs that left with a node")
            ray.get(self._opened)  # whatever went wrong there is the error to show
            return ray.get(ref)
        except RayError as error:
            if is_lost(error):
                raise lost(error) from error
            raise (error.cause if isinstance(error, RayTaskError) else error) from error

    def recover(self) -> None:
        self.crew.renew(self.server)
        self.crew.forget(self.run)
        self._open()

    def expect(self, clients: Sequence[int]) -> None:
        waiting, busy = deque(clients), set[int]()
        while (call := self.dispatch.next(waiting, busy, self.crew.up)) is not None:
            busy.add(call[0])
            self.crew.client(call[0], self.run)

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        if self.at_clients:
            return self._own_scores(splits)
        out: dict[str, Scores] = self._get(self.server.scores.remote(self.run, list(splits)))
        return out

    def _own_scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        """Of the clients' own models, where they are; RuntimeError where one of them cannot be scored."""
        sent, size = self.server.broadcast.options(num_returns=2).remote(self.run, NEXT)
        self._get(size)  # a fault of the server is none of a client
        models = scored_as(self.clients, self.memories)
        roster = Roster(list(dict.fromkeys(models)), (), self.federation.retries, 1.0)

        def score(actor: Any, clients: Sequence[int]) -> Sequence[Any]:
            memory, setup = self.memories.get(clients[0]), self.crew.setups[self.run]
            return [actor.scores.remote(self.run, setup, sent, memory, list(splits))]

        alone = self._dispatch(several=False)
        each = {job.clients[0]: scores for job, scores in self._answers(roster, alone, score)}
        for failure in roster.failed:
            raise RuntimeError(f"client {failure.client}'s model could not be scored: {failure.reason}")
        return mean_of_models([each[c] for c in models])

    def snapshot(self) -> Tensors:
        out: Tensors = tree.unpack(self._get(self.server.snapshot.remote(self.run)))
        return out

    def memory(self, client: int) -> Tensors:
        ref = self.memories.get(client)
        out: Tensors = {} if ref is None else tree.unpack(self._get(ref))
        return out

    def restore(self, state: Tensors, memories: dict[int, Tensors]) -> None:
        self._get(self.server.restore.remote(self.run, tree.pack(state)))
        self.memories = {c: ray.put(tree.pack(m)) for c, m in memories.items()}

    def close(self) -> None:
        self.memories.clear()
        if self.own:
            self.crew.close()
        else:
            self.crew.forget(self.run)


def _patience(running: Mapping[Any, _Job]) -> float:
    """Seconds to wait for an answer before looking what became of those that are awaited."""
    until = min(job.until for job in running.values())
    return min(LOOK_EVERY, max(0.0, until - time.monotonic()))
