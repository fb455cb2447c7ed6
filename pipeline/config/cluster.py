"""Options of [cluster]: the processes of clients and server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from anchorfl.tasks.files import object_store


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterOptions:
    """Options of the processes. None changes a result, but for GPUs, which round otherwise and draw other masks."""

    executor: Literal["ray", "forked", "serial", "auto"] = "ray"
    """``ray``: client actors and a server actor; ``forked``: the server in this process, clients in forked workers of
    this machine; ``serial``: all in this process (debugger, tests, reference); ``auto``: ``ray`` with an ``address``,
    else ``forked``."""
    address: str = ""
    """Empty: a Ray of its own on loopback; ``auto``: the running cluster; or an address for ``ray.init``."""
    clients_per_actor: int = 0
    """Clients that share an actor; 0: one each for up to 32 clients, above that as many actors as CPUs. An actor starts
    when it is needed, and one that is idle takes over other clients sooner than that."""
    client_cpus: float = 0.0
    """CPU share of a client actor; 0: the CPUs of the cluster shared out evenly."""
    client_gpus: float = 0.0
    """GPU share of a client actor, for example 0.25; the actor limits itself to that part of the memory, of which CUDA
    takes half a GiB."""
    server_gpus: float = 0.0
    """GPU share of the server actor, likewise."""
    sum_on_nodes: bool = False
    """Sum the updates of each node's actors there, so that the server gets one sum from each node: for several nodes
    and large networks. It needs a process more on each."""
    client_cache_mb: float = 1000.0
    """Megabytes of clients' rows that a worker keeps from round to round, on a GPU in its memory and a quarter of its
    share at most; those that have not been trained for longest are read again."""
    max_concurrent_clients: int = 0
    """Clients that train at one time; 0: one per CPU of the cluster."""
    wait_for_cpus: int = 0
    """CPUs to ask a running cluster's autoscaler for, and to wait for, before anything starts; 0: what is there."""
    wait_for_gpus: int = 0
    """GPUs likewise."""
    wait_minutes: float = 20.0
    """Longest wait for them."""
    checkpoint_every: int = 1
    """Save a checkpoint after every so many rounds, and after the last; a resumed run computes the rounds behind it
    again, with the same bits."""
    keep_checkpoints: int = 2
    """Checkpoints that are kept: where the last one is damaged, a run goes on from the one before."""
    memories: str = ""
    """Where client actors write what clients keep between rounds, so that it passes through neither the driver nor its
    checkpoints, which hold a number for each: a folder that all nodes see, by its absolute path, or ``s3://bucket/...``;
    empty: checkpoints hold it all."""
    py_modules: str = ""
    """Code that a running cluster's nodes do not have installed, such as a plug-in's: folders, .py or .whl files of
    this machine, with commas between them, which Ray sends to its workers."""
    backup: str = ""
    """URI below which a copy of the run folder is kept up to date, under the folder's name: ``s3://bucket/runs``,
    ``gs://...`` or the absolute path of a folder; empty: no copy."""

    @property
    def uses_ray(self) -> bool:
        """True where server and clients are Ray actors."""
        return self.executor == "ray" or (self.executor == "auto" and bool(self.address))

    @property
    def forks(self) -> bool:
        """True where clients are in forked workers."""
        return self.executor != "serial" and not self.uses_ray

    def __post_init__(self) -> None:
        for name in ("backup", "memories"):
            if location := getattr(self, name):
                object_store.check_location(location, f"cluster.{name}")
        if self.memories and not self.uses_ray:
            raise ValueError("cluster.memories is for client actors: set cluster.executor to 'ray', or leave it out")
        for name in (
            "clients_per_actor", "client_cache_mb", "max_concurrent_clients", "wait_for_cpus", "wait_for_gpus",
            "wait_minutes",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"cluster.{name} = {getattr(self, name)}: must be at least 0, and finite")
        for name in ("checkpoint_every", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"cluster.{name} = {getattr(self, name)}: must be at least 1")
        if self.py_modules and not (self.uses_ray and self.address):
            raise ValueError(
                f"cluster.py_modules = {self.py_modules!r} is for a running cluster, whose nodes lack code of this"
                " machine: set cluster.address, or leave it out"
            )
        if (self.wait_for_cpus or self.wait_for_gpus) and not self.address:
            raise ValueError("cluster.wait_for_cpus and wait_for_gpus need a running cluster: set cluster.address")
        if not 0 <= self.client_cpus < math.inf or not 0 <= self.client_gpus <= 1 or not 0 <= self.server_gpus <= 1:
            raise ValueError("cluster: client_cpus must be at least 0, client_gpus and server_gpus in [0, 1]")
