"""Every Ray actor of the project: the server, the clients, and the executor that drives them from the round loop.

Updates go from client to server as object references and never pass through the driver. A client's memory is an object
that the driver keeps a reference to, so an actor may die, move or serve another client without changing a result.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pipeline import tree, usage
from pipeline.client import ClientHost, device_for
from pipeline.cluster import Layout, layout
from pipeline.contract import Tensors
from pipeline.executor import ATTEMPTS, Failure, RoundOutcome, Tally, Watch, check_quorum
from pipeline.server import Server
from pipeline.setup import Setup, one_thread
from tasks.metrics import Scores


@ray.remote
class ServerActor:
    """The server's state, alone in its process; one state per run where runs share it."""

    def __init__(self) -> None:
        one_thread()
        self.servers: dict[str, Server] = {}

    def open(self, run: str, setup: Setup, *told: tree.Packed) -> None:
        self.servers[run] = Server(setup, [tree.unpack(t) for t in told])

    def broadcast(self, run: str, round_: int) -> tuple[tree.Packed, int]:
        sent = self.servers[run].broadcast(round_)
        return tree.pack(sent), tree.nbytes(sent)

    def letter(self, run: str, client: int) -> tree.Packed:
        return tree.pack(self.servers[run].letter(client))

    def merge(self, run: str, round_: int, clients: Sequence[int], *updates: tree.Packed) -> dict[str, float]:
        self.servers[run].merge(round_, clients, [tree.unpack(u) for u in updates])
        return usage.peak("server")

    def scores(self, run: str, splits: Sequence[str]) -> dict[str, Scores]:
        return self.servers[run].scores(splits)

    def snapshot(self, run: str) -> tree.Packed:
        return tree.pack(self.servers[run].snapshot())

    def restore(self, run: str, state: tree.Packed) -> None:
        self.servers[run].restore(tree.unpack(state))

    def forget(self, run: str) -> None:
        self.servers.pop(run, None)


@dataclass(frozen=True, slots=True)
class Stats:
    """The small part of an answer, which the driver reads."""

    loss: float
    seconds: float
    bytes_up: int
    bytes_letter: int
    memory: dict[str, float]


@ray.remote
class ClientActor:
    """One client, or several that take turns; of one run, or of several that share it."""

    def __init__(self, gpus: float) -> None:
        one_thread()
        self.device = device_for(gpus)
        self.hosts: dict[str, ClientHost] = {}

    def open(self, run: str, setup: list[Any]) -> None:
        """Get ready for ``run``, ahead of ``fit``, which meets any error again and reports it. ``setup``: a reference,
        in a list so that Ray does not fetch it for every call.
        """
        if run not in self.hosts:
            self.hosts[run] = ClientHost(ray.get(setup[0]), self.device)

    def fit(
        self,
        run: str,
        setup: list[Any],
        client: int,
        round_: int,
        broadcast: tree.Packed,
        memory: tree.Packed | None,
        letter: tree.Packed | None,
    ) -> tuple[tree.Packed, tree.Packed, Stats]:
        self.open(run, setup)
        own, alone = ({} if m is None else tree.unpack(m) for m in (memory, letter))
        fitted = self.hosts[run].fit(client, round_, tree.unpack(broadcast), own, alone)
        more, sizes = tree.nbytes(alone), tree.nbytes(fitted.update)
        stats = Stats(fitted.loss, fitted.seconds, sizes, more, usage.peak("client"))
        return tree.pack(fitted.update), tree.pack(fitted.memory), stats

    def tell(self, run: str, setup: list[Any], client: int) -> tree.Packed:
        self.open(run, setup)
        return tree.pack(self.hosts[run].tell(client))

    def forget(self, run: str) -> None:
        self.hosts.pop(run, None)


class Crew:
    """The server actor and the client actors of a run, or of several that take turns on them; each is started when it
    is first needed, and a dead one is replaced.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.setups: dict[str, list[Any]] = {}  # run -> reference of its setup
        self._clients: dict[int, tuple[Any, set[str]]] = {}  # slot -> actor, runs that it knows
        remote: Any = ServerActor
        self.server = remote.options(
            num_cpus=layout.server_cpus, num_gpus=layout.server_gpus, **self._place(0)
        ).remote()

    def open(self, setup: Setup) -> tuple[str, Any]:
        """Make a run known: its key, and the reference that tells when the server is ready for it."""
        run, e = uuid.uuid4().hex, setup.experiment
        self.setups[run] = [ray.put(setup)]
        clients = range(e.task.clients) if e.method.tells else ()
        told = [self.client(c % self.layout.actors, run).tell.remote(run, self.setups[run], c) for c in clients]
        return run, self.server.open.remote(run, self.setups[run][0], *told)

    def client(self, slot: int, run: str) -> Any:
        """The actor of a slot, warmed up for ``run``."""
        if slot not in self._clients:
            remote: Any = ClientActor
            shares = {"num_cpus": self.layout.client_cpus, "num_gpus": self.layout.client_gpus}
            actor = remote.options(**shares, **self._place(1 + slot)).remote(self.layout.client_gpus)
            self._clients[slot] = (actor, set())
        actor, known = self._clients[slot]
        if run not in known:
            actor.open.remote(run, self.setups[run])
            known.add(run)
        return actor

    def retire(self, slot: int) -> None:
        """End the actor of a slot: the next call there gets a fresh process."""
        ray.kill(self._clients.pop(slot)[0])

    def forget(self, run: str) -> None:
        """Let go of a run that has ended."""
        for actor, known in self._clients.values():
            if run in known:
                actor.forget.remote(run)
                known.remove(run)
        self.server.forget.remote(run)
        self.setups.pop(run)

    def close(self) -> None:
        """End all actors."""
        for actor in (*(actor for actor, _ in self._clients.values()), self.server):
            ray.kill(actor)
        self._clients.clear()

    def _place(self, bundle: int) -> dict[str, Any]:
        """Where the layout names a placement group: the bundle for the server (0) or for a slot."""
        group = self.layout.group
        if group is None:
            return {}
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle)}


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
