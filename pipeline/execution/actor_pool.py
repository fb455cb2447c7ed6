"""The client actors of a run or of several: started, shared, isolated and replaced."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from anchorfl.pipeline.cluster.layout import Layout, nodes
from anchorfl.pipeline.execution.ray_actors import ClientActor, NodeSumActor, ServerActor
from anchorfl.pipeline.execution.ray_errors import put_object
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.ingest.sites import SHARE

MIN_CPU_SHARE = 0.001
"""CPU share of an actor that has to fit wherever there is a CPU at all, but not where clients may not run."""


def cluster_cpus() -> float:
    """Return the CPUs of all nodes that are alive."""
    return sum(node.cpus for node in nodes())


@dataclass
class _PooledActor:
    """A client actor and the runs that it is warmed up for."""

    actor: Any
    reduced_cpu: bool
    """True where it asks for hardly any CPU (``MIN_CPU_SHARE``)."""
    opened: dict[str, Any] = field(default_factory=dict)
    """Run -> reference that is there once the actor is ready for it."""


class ActorPool:
    """The server actor and the client actors of a run, or of several that take turns on them.

    Each is started when it is first needed, and a dead one is replaced. A slot is the number of a client actor.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self._cpus = layout, cluster_cpus()
        self.run_specs: dict[str, list[Any]] = {}  # run -> reference of its RunSpec
        self._clients: dict[int, _PooledActor] = {}  # by slot
        self._node_sums: dict[str, Any] = {}  # by node
        self.server = self._server()

    def open(self, run_spec: RunSpec) -> tuple[str, Any]:
        """Make a run known; return its key, and the reference that tells when the server is ready for it."""
        run, experiment = uuid.uuid4().hex, run_spec.experiment
        self.run_specs[run] = [put_object(run_spec)]
        clients = range(experiment.task.clients) if experiment.method.sends_initial_message else ()
        # no more actors than can be busy, as a process costs seconds to start; but a site has its own
        slots = self.layout.actors if self.layout.sites else min(self.layout.actors, self.layout.concurrent)
        initial_messages = [
            self.client(c % slots, run).initial_message.remote(run, self.run_specs[run], c) for c in clients
        ]
        return run, self.server.open.remote(run, self.run_specs[run][0], *initial_messages)

    def client(self, slot: int, run: str) -> Any:
        """Return the actor of a slot, warmed up for ``run``."""
        if slot not in self._clients:
            remote: Any = ClientActor
            shares = self._shares(self.layout.client_cpus, self.layout.client_gpus)
            pinned = bool(self.layout.sites)
            actor = remote.options(**shares, **self._place(1 + slot)).remote(self.layout.client_gpus, pinned)
            self._clients[slot] = _PooledActor(actor, shares["num_cpus"] == MIN_CPU_SHARE)
        member = self._clients[slot]
        if run not in member.opened:
            member.opened[run] = member.actor.open.remote(run, self.run_specs[run])
        return member.actor

    @property
    def started_slots(self) -> Collection[int]:
        """Slots whose actors are started."""
        return self._clients.keys()

    def unschedulable(self, slot: int) -> bool:
        """Return whether the actor of a slot waits for CPUs that left with a node: a fresh one would not."""
        member = self._clients[slot]
        if member.reduced_cpu or not self._shrunk():
            return False
        return not any(ray.wait([ref], timeout=0)[0] for ref in member.opened.values())

    @property
    def server_stuck(self) -> bool:
        """True where the server may wait for CPUs that left with a node."""
        return not self._server_reduced_cpu and self._shrunk()

    def restart_server(self, server: Any) -> None:
        """Put a fresh server in place of ``server``, where that is not done yet: it may be dead, and its runs are."""
        if server is self.server:
            for actor in (server, *self._node_sums.values()):
                ray.kill(actor)
            self._node_sums.clear()
            self.server = self._server()

    def node_sum(self, node: str) -> Any:
        """Return the actor that sums over the clients of a node."""
        if node not in self._node_sums:
            remote: Any = NodeSumActor
            there = NodeAffinitySchedulingStrategy(node, soft=False)  # soft, one without CPUs is put anywhere
            self._node_sums[node] = remote.options(num_cpus=0, scheduling_strategy=there).remote()
        return self._node_sums[node]

    def kill_actor(self, slot: int) -> None:
        """End the actor of a slot: the next call there gets a fresh process."""
        ray.kill(self._clients.pop(slot).actor)

    def release_run(self, run: str) -> None:
        """Let go of a run that has ended."""
        for member in self._clients.values():
            if member.opened.pop(run, None) is not None:
                member.actor.release_run.remote(run)
        self.server.release_run.remote(run)
        self.run_specs.pop(run, None)  # an attempt to begin anew may have failed after this

    def close(self) -> None:
        """End all actors."""
        for actor in (*(member.actor for member in self._clients.values()), *self._node_sums.values(), self.server):
            ray.kill(actor)
        self._clients.clear()
        self._node_sums.clear()

    def _server(self) -> Any:
        remote: Any = ServerActor
        shares = self._shares(self.layout.server_cpus, self.layout.server_gpus)
        self._server_reduced_cpu = shares["num_cpus"] == MIN_CPU_SHARE
        return remote.options(**shares, **self._place(0)).remote(self.layout.server_gpus)

    def _shrunk(self) -> bool:
        return self.layout.group is None and not self.layout.sites and cluster_cpus() < self._cpus

    def _shares(self, cpus: float, gpus: float) -> dict[str, float]:
        """Return the options with which to ask Ray for these shares.

        Where a node left, actors in place of lost ones share the CPUs of those that are there; GPUs cannot be shared
        further, so such an actor waits for its GPU.
        """
        return {"num_cpus": min(cpus, MIN_CPU_SHARE) if self._shrunk() else cpus, "num_gpus": gpus}

    def _place(self, bundle: int) -> dict[str, Any]:
        """Return the option that puts an actor into a bundle, where the layout names a placement group; else that
        spreads clients with a share of a GPU over the nodes: Ray would fill one GPU before it takes the next.

        bundle: 0 for the server, 1 + slot for a client actor.
        """
        group = self.layout.group
        if self.layout.sites:
            if bundle:
                return {"resources": {self.layout.sites[bundle - 1]: SHARE}}
            here = ray.get_runtime_context().get_node_id()  # where its rows are
            return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}
        if group is None:
            return {"scheduling_strategy": "SPREAD"} if bundle and self.layout.client_gpus else {}
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle)}


class ActorPools:
    """The actor pools of the runs of one command, one after the other.

    A run with the layout of the one before it finds its actors started.
    """

    def __init__(self) -> None:
        self._pool: ActorPool | None = None

    def actor_pool(self, layout: Layout) -> ActorPool:
        """Return the pool for a run of this layout; the pool of a run with another one ends."""
        if self._pool is not None and self._pool.layout != layout:
            self.close()
        if self._pool is None:
            self._pool = ActorPool(layout)
        return self._pool

    def close(self) -> None:
        """End the actors of the pool."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None
