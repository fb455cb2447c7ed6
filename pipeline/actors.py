"""Every Ray actor of the project: the server, the clients, and the executor that drives them from the round loop.

Updates go from client to server as object references and never pass through the driver. A client's memory is an object
that the driver keeps a reference to, so an actor may die, move or serve another client without changing a result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from pipeline import tree
from pipeline.client import ClientHost
from pipeline.cluster import Layout, layout
from pipeline.contract import Tensors
from pipeline.executor import ATTEMPTS, Failure, RoundOutcome, Tally, Watch, check_quorum
from pipeline.server import Server
from pipeline.setup import Setup, one_thread
from tasks.metrics import Scores


def device_for(gpus: float) -> torch.device:
    """The device of an actor with this GPU share; on a GPU the process limits itself to its part of the memory."""
    if gpus <= 0 or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_per_process_memory_fraction(min(1.0, gpus))
    return torch.device("cuda")


@ray.remote
class ServerActor:
    """The server's state, alone in its process."""

    def __init__(self, setup: Setup) -> None:
        one_thread()
        self.server = Server(setup)

    def broadcast(self, round_: int) -> tuple[tree.Packed, int]:
        sent = self.server.broadcast(round_)
        return tree.pack(sent), tree.nbytes(sent)

    def merge(self, round_: int, clients: Sequence[int], *updates: tree.Packed) -> None:
        self.server.merge(round_, clients, [tree.unpack(u) for u in updates])

    def scores(self) -> dict[str, Scores]:
        return self.server.scores()

    def snapshot(self) -> tree.Packed:
        return tree.pack(self.server.snapshot())

    def restore(self, state: tree.Packed) -> None:
        self.server.restore(tree.unpack(state))


@dataclass(frozen=True, slots=True)
class Stats:
    """The small part of an answer, which the driver reads."""

    loss: float
    seconds: float
    bytes_up: int


@ray.remote
class ClientActor:
    """One client, or several that take turns."""

    def __init__(self, setup: Setup, gpus: float) -> None:
        one_thread()
        self.host = ClientHost(setup, device_for(gpus))

    def fit(
        self, client: int, round_: int, broadcast: tree.Packed, memory: tree.Packed | None
    ) -> tuple[tree.Packed, tree.Packed, Stats]:
        own = {} if memory is None else tree.unpack(memory)
        fitted = self.host.fit(client, round_, tree.unpack(broadcast), own)
        stats = Stats(fitted.loss, fitted.seconds, tree.nbytes(fitted.update))
        return tree.pack(fitted.update), tree.pack(fitted.memory), stats


@dataclass(slots=True)
class _Job:
    client: int
    slot: int
    attempt: int
    update: Any
    memory: Any


class RayExecutor:
    """Client actors, started when first needed, and the server actor. Same bits as SerialExecutor on CPUs."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        e = setup.experiment
        self.quorum = e.federation.quorum
        self.layout: Layout = layout(e.cluster, e.task.clients)
        self.shared = ray.put(setup)
        remote: Any = ServerActor
        self.server = remote.options(num_cpus=self.layout.server_cpus, num_gpus=self.layout.server_gpus).remote(
            self.shared
        )
        self.actors: dict[int, Any] = {}
        self.memories: dict[int, Any] = {}

    def round(self, round_: int, selected: Sequence[int], watch: Watch) -> RoundOutcome:
        sent, size = self.server.broadcast.options(num_returns=2).remote(round_)
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
        check_quorum(len(done), len(selected), self.quorum, tally.failed)
        outcome = tally.outcome(each)
        self._get(self.server.merge.remote(round_, outcome.answered, *[done[c].update for c in outcome.answered]))
        self.memories |= {c: job.memory for c, job in done.items()}
        return outcome

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
            call = self._actor(slot).fit.options(num_returns=3)
            update, memory, stats = call.remote(client, round_, sent, self.memories.get(client))
            running[stats] = _Job(client, slot, attempt, update, memory)

    def _actor(self, slot: int) -> Any:
        if slot not in self.actors:
            remote: Any = ClientActor
            shares = {"num_cpus": self.layout.client_cpus, "num_gpus": self.layout.client_gpus}
            self.actors[slot] = remote.options(**shares).remote(self.shared, self.layout.client_gpus)
        return self.actors[slot]

    def _failed(self, job: _Job, error: RayError, waiting: deque[tuple[int, int]], tally: Tally) -> None:
        """Retire the actor, whatever happened to it: the retry gets a fresh process."""
        ray.kill(self.actors.pop(job.slot))
        failure = Failure(job.client, one_line(error))
        if job.attempt + 1 < ATTEMPTS:
            tally.retried.append(failure)
            waiting.append((job.client, job.attempt + 1))
        else:
            tally.failed.append(failure)

    def _get(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except (ActorDiedError, ActorUnavailableError) as error:
            raise RuntimeError(
                f"the server actor died ({one_line(error)}); go on from the checkpoint: anchorfl resume"
            ) from error
        except RayTaskError as error:
            raise error.cause from error

    def expect(self, clients: Sequence[int]) -> None:
        for client in clients:
            self._actor(client % self.layout.actors)

    def scores(self) -> dict[str, Scores]:
        out: dict[str, Scores] = self._get(self.server.scores.remote())
        return out

    def snapshot(self) -> Tensors:
        out: Tensors = tree.unpack(self._get(self.server.snapshot.remote()))
        return out

    def memory(self, client: int) -> Tensors:
        ref = self.memories.get(client)
        out: Tensors = {} if ref is None else tree.unpack(ray.get(ref))
        return out

    def restore(self, state: Tensors, memories: dict[int, Tensors]) -> None:
        self._get(self.server.restore.remote(tree.pack(state)))
        self.memories = {c: ray.put(tree.pack(m)) for c, m in memories.items()}

    def close(self) -> None:
        for actor in (*self.actors.values(), self.server):
            ray.kill(actor)
        self.actors.clear()
        self.memories.clear()


def one_line(error: BaseException) -> str:
    """What happened, without the remote traceback."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0]}" if text else type(cause).__name__
