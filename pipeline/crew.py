"""The Ray actors of a run, or of several that take turns on them: a server and clients.

A client's memory is an object that the driver keeps a reference to, so an actor may die, move or serve another client
without changing a result.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pipeline import tree, usage
from pipeline.client import ClientHost, device_for
from pipeline.cluster import Layout, nodes
from pipeline.faults import WITHOUT_GPU, Answer, Failure, kind_of, one_line
from pipeline.server import Server
from pipeline.setup import Setup, one_thread
from tasks.metrics import Scores

LITTLE = 0.001
"""CPU share of an actor that has to fit wherever there is a CPU at all, but not where clients may not run."""


def cluster_cpus() -> float:
    """CPUs of all nodes that are alive."""
    return sum(node.cpus for node in nodes())


@ray.remote
class ServerActor:
    """The server's state, alone in its process; one state per run where runs share it."""

    def __init__(self, gpus: float) -> None:
        one_thread()
        # torch's word on arrays of the object store, which the server only reads
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        self.device = device_for(gpus)
        self.without_gpu = gpus > 0 and self.device.type == "cpu"
        self.servers: dict[str, Server] = {}

    def open(self, run: str, setup: Setup, *told: tree.Packed) -> None:
        self.servers[run] = Server(setup, [tree.unpack(t) for t in told], self.device)

    def broadcast(self, run: str, round_: int) -> tuple[tree.Packed, int]:
        sent = self.servers[run].broadcast(round_)
        return tree.pack(sent, copy=False), tree.nbytes(sent)

    def letter(self, run: str, client: int) -> tree.Packed:
        return tree.pack(self.servers[run].letter(client))

    def merge(
        self, run: str, round_: int, places: dict[int, tuple[int, int]], *calls: Sequence[tree.Packed]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """calls: the updates of every call; places: client -> which call, and which update of it."""
        clients = sorted(places)
        packed = [calls[call][place] for call, place in (places[c] for c in clients)]
        # read where they lie in the object store, which nobody else will read any more
        counts = self.servers[run].merge(round_, clients, [tree.unpack(u, copy=False) for u in packed])
        return counts | ({WITHOUT_GPU: 1.0} if self.without_gpu else {}), usage.peak("server")

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
    """The small part of what a call gives, which the driver reads. answers: of its clients, in their order, up to the
    first that failed; failure: of that one; memory: of the process; without_gpu: it has a share of one by Ray, and its
    torch sees none.
    """

    answers: tuple[Answer, ...]
    failure: Failure | None
    memory: dict[str, float]
    without_gpu: bool


@ray.remote
class ClientActor:
    """One client, or several that take turns; of one run, or of several that share it."""

    def __init__(self, gpus: float) -> None:
        one_thread()
        self.device = device_for(gpus)
        self.without_gpu = gpus > 0 and self.device.type == "cpu"
        self.hosts: dict[str, ClientHost] = {}
        self._sent: tuple[str, int, Any] = ("", -1, None)

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
        clients: Sequence[int],
        round_: int,
        broadcast: list[Any],
        *own: tree.Packed | None,
    ) -> tuple[Any, ...]:
        """Updates of the clients, then the memory of each, then ``Stats``. broadcast: a reference in a list, like
        ``setup``, which is fetched once a round; own: every client's memory, then, where there are any, their letters.
        """
        self.open(run, setup)
        sent = self._broadcast(run, round_, broadcast)
        updates, answers = list[tree.Packed](), list[Answer]()
        memories: list[tree.Packed | None] = [None] * len(clients)
        failure = None
        for place, client in enumerate(clients):
            given = [*own[place :: len(clients)], None]
            memory, letter = ({} if m is None else tree.unpack(m) for m in given[:2])
            try:
                fitted = self.hosts[run].fit(client, round_, tree.unpack(sent), memory, letter)
            except Exception as error:  # any fault of a client costs that client only
                failure = Failure(client, one_line(error), kind_of(error))
                break
            sizes = [tree.nbytes(m) for m in (fitted.update, letter, fitted.memory)]
            updates.append(tree.pack(fitted.update, copy=False))
            memories[place] = tree.pack(fitted.memory, copy=False)
            answers.append(Answer(fitted.loss, fitted.seconds, *sizes))
        return updates, *memories, Stats(tuple(answers), failure, usage.peak("client"), self.without_gpu)

    def _broadcast(self, run: str, round_: int, reference: list[Any]) -> tree.Packed:
        """What the server sends in a round, fetched once; each client gets a copy of its own."""
        if self._sent[:2] != (run, round_):
            self._sent = run, round_, ray.get(reference[0])
        out: tree.Packed = self._sent[2]
        return out

    def scores(
        self, run: str, setup: list[Any], sent: tree.Packed, memory: tree.Packed | None, splits: Sequence[str]
    ) -> dict[str, Scores]:
        self.open(run, setup)
        own = {} if memory is None else tree.unpack(memory)
        return self.hosts[run].scores(tree.unpack(sent), own, splits)

    def tell(self, run: str, setup: list[Any], client: int) -> tree.Packed:
        self.open(run, setup)
        return tree.pack(self.hosts[run].tell(client))

    def forget(self, run: str) -> None:
        self.hosts.pop(run, None)
        self._sent = ("", -1, None)


@dataclass
class _Member:
    """A client actor; little: it asks for hardly any CPU; opened: run -> reference that is there once the actor is
    ready for it.
    """

    actor: Any
    little: bool
    opened: dict[str, Any] = field(default_factory=dict)


class Crew:
    """The server actor and the client actors of a run, or of several that take turns on them; each is started when it
    is first needed, and a dead one is replaced.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self._cpus = layout, cluster_cpus()
        self.setups: dict[str, list[Any]] = {}  # run -> reference of its setup
        self._clients: dict[int, _Member] = {}  # by slot
        self.server = self._server()

    def open(self, setup: Setup) -> tuple[str, Any]:
        """Make a run known: its key, and the reference that tells when the server is ready for it."""
        run, e = uuid.uuid4().hex, setup.experiment
        self.setups[run] = [ray.put(setup)]
        clients = range(e.task.clients) if e.method.tells else ()
        # no more actors than can be busy: a process costs seconds to start
        slots = min(self.layout.actors, self.layout.concurrent)
        told = [self.client(c % slots, run).tell.remote(run, self.setups[run], c) for c in clients]
        return run, self.server.open.remote(run, self.setups[run][0], *told)

    def client(self, slot: int, run: str) -> Any:
        """The actor of a slot, warmed up for ``run``."""
        if slot not in self._clients:
            remote: Any = ClientActor
            shares = self._shares(self.layout.client_cpus, self.layout.client_gpus)
            actor = remote.options(**shares, **self._place(1 + slot)).remote(self.layout.client_gpus)
            self._clients[slot] = _Member(actor, shares["num_cpus"] == LITTLE)
        member = self._clients[slot]
        if run not in member.opened:
            member.opened[run] = member.actor.open.remote(run, self.setups[run])
        return member.actor

    @property
    def up(self) -> Collection[int]:
        """Slots whose actors are started."""
        return self._clients.keys()

    def stuck(self, slot: int) -> bool:
        """Whether the actor of a slot waits for CPUs that left with a node: a fresh one would not."""
        member = self._clients[slot]
        if member.little or not self._shrunk():
            return False
        return not any(ray.wait([ref], timeout=0)[0] for ref in member.opened.values())

    @property
    def server_stuck(self) -> bool:
        """Whether the server may wait for CPUs that left with a node."""
        return not self._server_little and self._shrunk()

    def renew(self, server: Any) -> None:
        """Put a fresh server in place of ``server``, where that is not done yet: it may be dead, and its runs are."""
        if server is self.server:
            ray.kill(server)
            self.server = self._server()

    def retire(self, slot: int) -> None:
        """End the actor of a slot: the next call there gets a fresh process."""
        ray.kill(self._clients.pop(slot).actor)

    def forget(self, run: str) -> None:
        """Let go of a run that has ended."""
        for member in self._clients.values():
            if member.opened.pop(run, None) is not None:
                member.actor.forget.remote(run)
        self.server.forget.remote(run)
        self.setups.pop(run)

    def close(self) -> None:
        """End all actors."""
        for actor in (*(member.actor for member in self._clients.values()), self.server):
            ray.kill(actor)
        self._clients.clear()

    def _server(self) -> Any:
        remote: Any = ServerActor
        shares = self._shares(self.layout.server_cpus, self.layout.server_gpus)
        self._server_little = shares["num_cpus"] == LITTLE
        return remote.options(**shares, **self._place(0)).remote(self.layout.server_gpus)

    def _shrunk(self) -> bool:
        return self.layout.group is None and cluster_cpus() < self._cpus

    def _shares(self, cpus: float, gpus: float) -> dict[str, float]:
        """What to ask Ray for. Where a node left, actors in place of lost ones share the CPUs of those that are there;
        GPUs cannot be shared further, so such an actor waits for its GPU.
        """
        return {"num_cpus": min(cpus, LITTLE) if self._shrunk() else cpus, "num_gpus": gpus}

    def _place(self, bundle: int) -> dict[str, Any]:
        """Where the layout names a placement group: the bundle for the server (0) or for a slot."""
        group = self.layout.group
        if group is None:
            return {}
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle)}


class Crews:
    """The crew of the runs of one command, one after the other: a run with the layout of the one before it finds its
    actors started.
    """

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def crew(self, layout: Layout) -> Crew:
        """For a run of this layout; that of a run with another one ends."""
        if self._crew is not None and self._crew.layout != layout:
            self.close()
        if self._crew is None:
            self._crew = Crew(layout)
        return self._crew

    def close(self) -> None:
        """End its actors."""
        if self._crew is not None:
            self._crew.close()
        self._crew = None
