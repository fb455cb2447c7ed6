"""The executor that drives a run's Ray actors (pipeline/crew.py) from the round loop.

Updates go from client to server as object references and never pass through the driver.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    RayTaskError,
)

from pipeline import tree
from pipeline.cluster import layout
from pipeline.contract import Tensors
from pipeline.crew import Crew, Stats
from pipeline.evaluate import mean_of_models
from pipeline.executor import NEXT, Watch, scored_as
from pipeline.faults import Failure, Kind, LostError, RejectedError, Roster, RoundOutcome, kind_of
from pipeline.setup import Setup
from tasks.metrics import Scores

LOOK_EVERY = 10.0
"""Seconds."""


@dataclass(slots=True)
class _Job:
    """A call to a client's actor; parts: references of what it gives beside its answer, which the driver reads; until:
    when its answer is overdue.
    """

    client: int
    slot: int
    actor: Any
    parts: tuple[Any, ...]
    until: float


_Start = Callable[[Any, int], Sequence[Any]]
"""Calls an actor for a client: (actor, client) -> references, the answer's last."""


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
        self._open()

    def _open(self) -> None:
        self.run, self._opened = self.crew.open(self.setup)
        self.server = self.crew.server
        self.memories: dict[int, Any] = {}

    def round(self, round_: int, selected: Sequence[int], watch: Watch, stand_ins: Sequence[int] = ()) -> RoundOutcome:
        sent, size = self.server.broadcast.options(num_returns=2).remote(self.run, round_)
        each = self._get(size)
        roster = Roster(selected, stand_ins, self.federation.retries, self.federation.quorum)
        jobs, memory, merged = dict[int, _Job](), dict[str, float](), None

        def fit(actor: Any, client: int) -> Sequence[Any]:
            refs: Sequence[Any] = actor.fit.options(num_returns=3).remote(
                self.run, self.crew.setups[self.run], client, round_, [sent], self.memories.get(client),
                self.server.letter.remote(self.run, client) if self.letters else None,
            )  # fmt: skip
            return refs

        stats: Stats
        while merged is None:
            for job, stats in self._answers(roster, fit, watch):
                jobs[job.client], roster.answers[job.client] = job, stats.answer
                memory |= {k.replace("client", f"actor_{job.slot:03d}"): v for k, v in stats.memory.items()}
            roster.check_quorum()
            answered = sorted(roster.answers)
            try:
                updates = [jobs[c].parts[0] for c in answered]
                merged = self._get(self.server.merge.remote(self.run, round_, answered, *updates))
            except RejectedError as error:
                roster.refuse(error)
        self.memories |= {c: jobs[c].parts[1] for c in answered}
        counts, peak = merged
        return roster.outcome(each, memory | peak, counts)

    def _answers(self, roster: Roster, start: _Start, watch: Watch | None = None) -> Iterator[tuple[_Job, Any]]:
        """Call the actors of all who wait and yield the answers as they come in; the roster gets the faults. LostError
        where a fault is none of a client; no call is left running then, nor when the caller stops.
        """
        running, done = dict[Any, _Job](), 0
        try:
            while roster.waiting or running:
                self._submit(roster.waiting, running, start)
                if watch is not None:
                    watch(len(running), done, len(roster.failed))
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
                done += 1
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
                roster.waiting.append(job.client)

    def _submit(self, waiting: deque[int], running: dict[Any, _Job], start: _Start) -> None:
        """Hand out work: at most one call per actor in flight, at most ``concurrent`` in all."""
        busy = {job.slot for job in running.values()}
        for _ in range(len(waiting)):
            if len(running) >= self.layout.concurrent:
                return
            client = waiting.popleft()
            slot = client % self.layout.actors
            if slot in busy:
                waiting.append(client)
                continue
            busy.add(slot)
            actor = self.crew.client(slot, self.run)
            *parts, answer = start(actor, client)
            until = time.monotonic() + (self.federation.deadline or math.inf)
            running[answer] = _Job(client, slot, actor, tuple(parts), until)

    def _fault(self, job: _Job, roster: Roster, error: RayError | None) -> None:
        """Retire the actor, whatever happened to it: the next attempt gets a fresh process. error: None where the
        answer is overdue.
        """
        self.crew.retire(job.slot)
        if error is None:
            reason = f"no answer within {self.federation.deadline:g} s"
            roster.fault(Failure(job.client, reason, "deadline"))
            return
        if is_lost(error, job.actor):
            raise _lost(error)
        roster.fault(Failure(job.client, one_line(error), ray_kind(error)), counted=not node_died(error))

    def _get(self, ref: Any) -> Any:
        try:
            while not ray.wait([self._opened], timeout=LOOK_EVERY)[0]:
                if self.crew.server_stuck:
                    raise LostError("the server actor waits for CPUs that left with a node")
            ray.get(self._opened)  # whatever went wrong there is the error to show
            return ray.get(ref)
        except RayError as error:
            if is_lost(error):
                raise _lost(error) from error
            raise (error.cause if isinstance(error, RayTaskError) else error) from error

    def recover(self) -> None:
        self.crew.renew(self.server)
        self.crew.forget(self.run)
        self._open()

    def expect(self, clients: Sequence[int]) -> None:
        for client in clients:
            self.crew.client(client % self.layout.actors, self.run)

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

        def score(actor: Any, client: int) -> Sequence[Any]:
            memory, setup = self.memories.get(client), self.crew.setups[self.run]
            return [actor.scores.remote(self.run, setup, sent, memory, list(splits))]

        each = {job.client: scores for job, scores in self._answers(roster, score)}
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


def is_lost(error: RayError, actor: Any = None) -> bool:
    """Whether an error says that something is gone that ``actor``, or any other, only used."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, (ActorDiedError, ActorUnavailableError)):
        return actor is None or cause.actor_id not in (None, actor._actor_id.hex())
    return isinstance(cause, ObjectLostError)


def node_died(error: RayError) -> bool:
    """Whether an actor is gone because its node is: a fresh one may be put on the same node for as long as Ray has not
    noticed, so several attempts may end like this. Ray says it in words alone.
    """
    return isinstance(error, ActorDiedError) and "its node has died" in str(error)


def _lost(error: RayError) -> LostError:
    return LostError(f"the server actor, or an object on a node that left, is gone ({one_line(error)})")


def ray_kind(error: RayError) -> Kind:
    """The kind of fault that an error of a client's call is."""
    if isinstance(error, RayTaskError):
        return kind_of(error.cause)
    if isinstance(error, (OutOfMemoryError, ObjectStoreFullError, OutOfDiskError)):
        return "memory"
    return "crash"


def one_line(error: BaseException) -> str:
    """What happened, without the remote traceback."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0]}" if text else type(cause).__name__
