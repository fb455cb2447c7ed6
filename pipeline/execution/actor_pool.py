"""The client actors of a run or of several: started, shared, isolated and replaced."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from anchorfl.pipeline.cluster.layout import Layout, nodes
from anchorfl.pipeline.execution.ray_actors import ClientActor, ServerActor
from anchorfl.pipeline.training.run_spec import Setup

LITTLE = 0.001
"""CPU share of an actor that has to fit wherever there is a CPU at all, but not where clients may not run."""


def cluster_cpus() -> float:
    """CPUs of all nodes that are alive."""
    return sum(node.cpus for node in nodes())


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
        clients = range(e.task.clients) if e.method.sends_initial_message else ()
        # no more actors than can be busy: a process costs seconds to start
        slots = min(self.layout.actors, self.layout.concurrent)
        initial_messages = [
            self.client(c % slots, run).initial_message.remote(run, self.setups[run], c) for c in clients
        ]
        return run, self.server.open.remote(run, self.setups[run][0], *initial_messages)

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
