"""Layout of a run on a Ray cluster: client actors, their shares of CPUs and GPUs, placement groups."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from anchorfl.pipeline.cluster.placement import Node, fits_wherever, largest_share
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.tasks.errors import InputError, first_line

T = TypeVar("T")
PER_CLIENT_ACTORS_UP_TO = 32
"""Clients up to which each has an actor of its own, where ``cluster.clients_per_actor`` leaves it open."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The client actors and the server of a run on the cluster."""

    actors: int
    """Number of client actors."""
    client_cpus: float
    """Share of each client actor."""
    client_gpus: float
    """Share of each client actor."""
    server_cpus: float
    server_gpus: float
    concurrent: int
    """Calls to client actors in flight at a time, at most."""
    group: Any = None
    """Placement group with bundle 0 for the server and one more per client actor; None: anywhere on the cluster."""
    sites: tuple[str, ...] = ()
    """Ray resources of the nodes that the client actors are pinned to, one each, and the server to the node of this
    process; (): anywhere."""


def nodes() -> list[Node]:
    """Return what each node of the cluster has, free or not. Memory: free when Ray started, less its object store."""
    everywhere: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # ray has no annotation here
    shares = [node["Resources"] for node in everywhere if node["Alive"]]
    return [
        Node(float(s.get("CPU", 0.0)), (1.0,) * int(s.get("GPU", 0.0)), float(s.get("memory", 0.0))) for s in shares
    ]


def driver_has_no_cpus() -> bool:
    """Return whether this process's node has no CPUs, so that everything trains on others."""
    here = ray.get_runtime_context().get_node_id()
    everywhere: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # ray has no annotation here
    return any(node["NodeID"] == here and not node["Resources"].get("CPU") for node in everywhere)


def layout(options: ClusterOptions, clients: int, sites: Sequence[str] = ()) -> Layout:
    """Return shares that fit the cluster. Raise InputError where none do: such actors would wait for ever.

    Where ``clients_per_actor`` is open and the GPUs do not hold an actor for each client, clients share actors. sites:
    Ray resources of the nodes to which clients are pinned, one each; they share out no CPUs.
    """
    if sites:
        concurrent = options.max_concurrent_clients or clients
        return Layout(
            clients, options.client_cpus, options.client_gpus, 0.0, options.server_gpus, concurrent, sites=tuple(sites)
        )
    have = nodes()
    cpus, gpus = sum(node.cpus for node in have), sum(len(node.devices) for node in have)
    concurrent = options.max_concurrent_clients or max(1, int(cpus))
    if options.clients_per_actor:
        actors = math.ceil(clients / options.clients_per_actor)
    else:
        actors = clients if clients <= PER_CLIENT_ACTORS_UP_TO else max(1, int(cpus))
        places = _places(have, options, actors)
        if 0 < places < actors:
            actors = min(places, concurrent)
    wanted = actors * options.client_gpus + options.server_gpus
    if wanted > gpus + 1e-9:
        raise InputError(
            f"{actors} client actors of {options.client_gpus:g} GPU and a server of {options.server_gpus:g} need"
            f" {wanted:g} GPUs, the cluster has {gpus:g}: lower --cluster.client_gpus or raise"
            " --cluster.clients_per_actor"
        )

    def fits(share: float, server: float) -> bool:
        return fits_wherever(have, (server, options.server_gpus), [(share, options.client_gpus)] * actors)

    share = options.client_cpus or largest_share(have, actors + 1, lambda s: fits(s, s))
    left = max(0.0, min(1.0, cpus - actors * share)) if options.client_cpus else share
    server = next((s for s in (left, min(share, left), 0.0) if share and fits(share, s)), None)
    if server is None:
        raise InputError(_too_many(actors, share, options, have))
    return Layout(actors, share, options.client_gpus, server, options.server_gpus, concurrent)


def batched_share(options: ClusterOptions) -> tuple[float, float] | None:
    """Return CPUs and GPUs of the actor that trains a batched run; None: this process does, since no Ray runs, or no
    GPU is asked for and the CPUs are here. Raise InputError where no node has them.
    """
    gpus = max(options.client_gpus, options.server_gpus)
    if not ray.is_initialized() or not (gpus or driver_has_no_cpus()):
        return None
    have = nodes()
    cpus = options.client_cpus or min(1.0, max((node.cpus for node in have), default=1.0))
    if not any(node.less((cpus, gpus)) is not None for node in have):
        each = ", ".join(f"{node.cpus:g} CPUs and {len(node.devices)} GPUs" for node in have)
        raise InputError(
            f"a batched run needs {cpus:g} CPUs and {gpus:g} GPUs on one node (nodes: {each}): lower"
            " --cluster.client_cpus or --cluster.client_gpus"
        )
    return cpus, gpus


def _places(have: Sequence[Node], options: ClusterOptions, most: int) -> int:
    """Return how many client actors the GPUs hold beside the server, at most ``most``."""
    if not options.client_gpus:
        return most
    shares = (0.0, options.client_gpus)
    return next((n for n in range(most, 0, -1) if fits_wherever(have, (0.0, options.server_gpus), [shares] * n)), 0)


def _too_many(actors: int, share: float, options: ClusterOptions, have: Sequence[Node]) -> str:
    cpus = sum(node.cpus for node in have)
    each = ", ".join(f"{node.cpus:g} CPUs and {len(node.devices)} GPUs" for node in have)
    shares = [f"{n:g} {what}" for n, what in ((share, "CPU"), (options.client_gpus, "GPU")) if n]
    asked = f" of {' and '.join(shares)}" if shares else ""
    return (
        f"{actors} client actors{asked} do not fit a cluster of {cpus:g} CPUs, with their server, where each lies on"
        f" one node and one GPU (nodes: {each}): set --cluster.client_cpus (0 shares them out) or --cluster.client_gpus"
        " lower, or --cluster.clients_per_actor higher"
    )


def in_fresh_worker(function: Callable[..., T], *arguments: Any, gpus: float = 0.0) -> T:
    """Run ``function`` in a fresh worker process of the cluster and return what it gives.

    Raises RuntimeError with one line where it gives nothing.
    """
    # A worker serves only tasks of its own environment, so none that has worked before gets this one.
    fresh = {"env_vars": {"ANCHORFL_APART": uuid.uuid4().hex}}
    task: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0, max_calls=1, runtime_env=fresh)(function)
    try:
        return ray.get(task.remote(*arguments))  # type: ignore[no-any-return]  # what ``function`` returned there
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        raise RuntimeError(first_line(cause, "no message")) from error
