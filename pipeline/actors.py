"""The executor that drives a run's Ray actors (pipeline/crew.py) from the round loop.

Updates go from client to server as object references and never pass through the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from pipeline import tree
from pipeline.cluster import layout
from pipeline.contract import Tensors
from pipeline.crew import Crew, Stats
from pipeline.executor import ATTEMPTS, Failure, RoundOutcome, Tally, Watch, check_quorum
from pipeline.setup import Setup
from tasks.metrics import Scores


@dataclass(slots=True)
class _Job:
    client: int
    slot: int
    attempt: int
    update: Any
    memory: Any


class RayExecutor:
    """One run on a crew. Same bits as SerialExecutor on CPUs.

    crew: shared with other runs, and left to its owner; None: a crew of its own, which ends with the run.
    """

    def __init__(self, setup: Setup, crew: Crew | None = None) -> None:
        e = setup.experiment
        self.quorum, self.letters = e.federation.quorum, e.method.letters
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
        waiting, running = deque((c, 0) for c in selected), dict[Any, _Job]()
        while waiting or running:
            self._submit(waiting, running, round_, sent)
            watch(len(running), len(done), len(tally.failed))
            (ready,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready)
            try:
                stats: Stats = ray.get(ready)
            except RayError as error:
                self._failed(job, error, waiting, tally)
                continue
            done[job.client] = job
            tally.loss[job.client] = stats.loss
            tally.seconds += stats.seconds
            tally.bytes_up += stats.bytes_up
            tally.bytes_letters += stats.bytes_letter
            tally.memory |= {k.replace("client", f"actor_{job.slot:03d}"): v for k, v in stats.memory.items()}
        check_quorum(len(done), len(selected), self.quorum, tally.failed)
        answered = sorted(done)
        updates = [done[c].update for c in answered]
        tally.memory |= self._get(self.server.merge.remote(self.run, round_, answered, *updates))
        self.memories |= {c: job.memory for c, job in done.items()}
        return tally.outcome(each)

    def _submit(self, waiting: deque[tuple[int, int]], running: dict[Any, _Job], round_: int, sent: Any) -> None:
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
            call = self.crew.client(slot, self.run).fit.options(num_returns=3)
            update, memory, stats = call.remote(
                self.run, self.crew.setups[self.run], client, round_, sent, self.memories.get(client),
                self.server.letter.remote(self.run, client) if self.letters else None,
            )  # fmt: skip
            running[stats] = _Job(client, slot, attempt, update, memory)

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
        out: dict[str, Scores] = self._get(self.server.scores.remote(self.run, list(splits)))
        return out

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
