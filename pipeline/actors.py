"""The executor that drives a run's Ray actors (pipeline/crew.py) from the round loop.

Updates go from client to server as object references and never pass through the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from pipeline import tree
from pipeline.cluster import layout
from pipeline.contract import Tensors
from pipeline.crew import Crew, Stats
from pipeline.evaluate import mean_of_models
from pipeline.executor import ATTEMPTS, NEXT, Failure, RoundOutcome, Tally, Watch, check_quorum, scored_as
from pipeline.setup import Setup
from tasks.metrics import Scores


@dataclass(slots=True)
class _Job:
    """A call to a client's actor; parts: references of what it gives beside its answer, which the driver reads."""

    client: int
    slot: int
    attempt: int
    parts: tuple[Any, ...]


_Start = Callable[[Any, int], Sequence[Any]]
"""Calls an actor for a client: (actor, client) -> references, the answer's last."""


class RayExecutor:
    """One run on a crew. Same bits as SerialExecutor on CPUs.

    crew: shared with other runs, and left to its owner; None: a crew of its own, which ends with the run.
    """

    def __init__(self, setup: Setup, crew: Crew | None = None) -> None:
        e = setup.experiment
        self.quorum, self.letters, self.clients = e.federation.quorum, e.method.letters, e.task.clients
        self.at_clients = e.method.scored == "clients"
        self.own = crew is None
        self.crew = crew or Crew(layout(e.cluster, e.task.clients))
        self.layout = self.crew.layout
        self.run, self._opened = self.crew.open(setup)
        self.server = self.crew.server
        self.memories: dict[int, Any] = {}

    def round(self, round_: int, selected: Sequence[int], watch: Watch) -> RoundOutcome:
        sent, size = self.server.broadcast.options(num_returns=2).remote(self.run, round_)
        each = self._get(size)
        tally, done = Tally(), dict[int, _Job]()

        def fit(actor: Any, client: int) -> Sequence[Any]:
            refs: Sequence[Any] = actor.fit.options(num_returns=3).remote(
                self.run, self.crew.setups[self.run], client, round_, sent, self.memories.get(client),
                self.server.letter.remote(self.run, client) if self.letters else None,
            )  # fmt: skip
            return refs

        stats: Stats
        for job, stats in self._answers(selected, fit, tally, watch):
            done[job.client] = job
            tally.loss[job.client] = stats.loss
            tally.seconds += stats.seconds
            tally.bytes_up += stats.bytes_up
            tally.bytes_letters += stats.bytes_letter
            tally.memory |= {k.replace("client", f"actor_{job.slot:03d}"): v for k, v in stats.memory.items()}
        check_quorum(len(done), len(selected), self.quorum, tally.failed)
        answered = sorted(done)
        updates = [done[c].parts[0] for c in answered]
        tally.memory |= self._get(self.server.merge.remote(self.run, round_, answered, *updates))
        self.memories |= {c: job.parts[1] for c, job in done.items()}
        return tally.outcome(each)

    def _answers(
        self, clients: Sequence[int], start: _Start, tally: Tally, watch: Watch | None = None
    ) -> Iterator[tuple[_Job, Any]]:
        """Call the actors of all ``clients`` and yield the answers as they come in; ``tally`` gets the failures."""
        waiting, running, done = deque((c, 0) for c in clients), dict[Any, _Job](), 0
        while waiting or running:
            self._submit(waiting, running, start)
            if watch is not None:
                watch(len(running), done, len(tally.failed))
            (ready,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready)
            try:
                answer = ray.get(ready)
            except RayError as error:
                self._failed(job, error, waiting, tally)
                continue
            done += 1
            yield job, answer

    def _submit(self, waiting: deque[tuple[int, int]], running: dict[Any, _Job], start: _Start) -> None:
        """Hand out work: at most one call per actor in flight, at most ``concurrent`` in all."""
        busy = {job.slot for job in running.values()}
        for _ in range(len(waiting)):
            if len(running) >= self.layout.concurrent:
                return
            client, attempt = waiting.popleft()
            slot = client % self.layout.actors
            if slot in busy:
                waiting.append((client, attempt))
                continue
            busy.add(slot)
            *parts, answer = start(self.crew.client(slot, self.run), client)
            running[answer] = _Job(client, slot, attempt, tuple(parts))

    def _failed(self, job: _Job, error: RayError, waiting: deque[tuple[int, int]], tally: Tally) -> None:
        """Retire the actor, whatever happened to it: the retry gets a fresh process."""
        self.crew.retire(job.slot)
        failure = Failure(job.client, one_line(error))
        if job.attempt + 1 < ATTEMPTS:
            tally.retried.append(failure)
            waiting.append((job.client, job.attempt + 1))
        else:
            tally.failed.append(failure)

    def _get(self, ref: Any) -> Any:
        try:
            ray.get(self._opened)  # whatever went wrong there is the error to show
            return ray.get(ref)
        except (ActorDiedError, ActorUnavailableError) as error:
            raise RuntimeError(
                f"the server actor died ({one_line(error)}); go on from the checkpoint: anchorfl resume"
            ) from error
        except RayTaskError as error:
            raise error.cause from error

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
        models, tally = scored_as(self.clients, self.memories), Tally()

        def score(actor: Any, client: int) -> Sequence[Any]:
            memory, setup = self.memories.get(client), self.crew.setups[self.run]
            return [actor.scores.remote(self.run, setup, sent, memory, list(splits))]

        each = {job.client: scores for job, scores in self._answers(list(dict.fromkeys(models)), score, tally)}
        for failure in tally.failed:
            raise RuntimeError(f"client {failure.client}'s model could not be scored: {failure.reason}")
        return mean_of_models([each[c] for c in models])

    def snapshot(self) -> Tensors:
        out: Tensors = tree.unpack(self._get(self.server.snapshot.remote(self.run)))
        return out

    def memory(self, client: int) -> Tensors:
        ref = self.memories.get(client)
        out: Tensors = {} if ref is None else tree.unpack(ray.get(ref))
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


def one_line(error: BaseException) -> str:
    """What happened, without the remote traceback."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0]}" if text else type(cause).__name__
