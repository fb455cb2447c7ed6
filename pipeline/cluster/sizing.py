"""The number of actors that a cluster holds, and their shares, from what one client needs.

Plain arithmetic; all sizes are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anchorfl.pipeline.cluster.placement import SLACK, Node, fits_wherever
from anchorfl.tasks.errors import InputError

MEMORY_MARGIN = 0.8
"""Part of a node's free memory that is given out: the rest is for the operating system, the command itself, and clients
that need more than the one that was measured."""
GPU_MARGIN = 0.9
"""Part of a GPU's memory that is given out: the rest is for what the allocators cannot use, and larger clients."""
STEP = 1e-4
"""Ray counts shares in ten-thousandths."""


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """Memory of the GPU on which a client was measured."""

    total: int
    """Memory of the device."""
    taken: int
    """Memory that other processes take."""
    reserved: int
    """Peak of torch's allocator."""
    context: int
    """Memory that the process holds beside its allocator: CUDA context, kernels, work-spaces of libraries."""


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of the processes of a run."""

    client: float
    """Peak of an actor with one client."""
    more: float
    """Memory for each further client that an actor serves, on its GPU too where it has one."""
    server: float
    """Peak of the server."""
    gpu: GpuNeed | None = None
    """None: clients train on the CPU."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """A safe number of client actors, their shares, and what limits the number."""

    actors: int
    clients_per_actor: int
    client_cpus: float
    client_gpus: float
    by_cpus: int
    """Actors that the CPUs allow."""
    by_memory: int
    """Actors that the nodes' memory allows."""
    by_gpus: int | None
    """Actors that the GPUs allow; None without GPUs."""
    per_gpu: int
    """Actors on one GPU."""


def gpu_fraction(actors: int) -> float:
    """Return the largest share that Ray can count of which ``actors`` together are at most 1."""
    return (10_000 // actors) / 10_000


def actors_per_gpu(need: GpuNeed, more: float = 0.0) -> int:
    """Return the number of actors that fit one GPU; 0: not even one.

    more: bytes that each needs beside what was measured.
    """
    reserved = need.reserved + more
    count = math.floor(max(0.0, GPU_MARGIN * need.total - need.taken) / max(1.0, reserved + need.context))
    count = min(count, 10_000)
    # The actor's allocator is held to its share, which rounding makes smaller.
    while count and gpu_fraction(count) * need.total < reserved:
        count -= 1
    return count


def slots(node: Node, need: Need, further: int) -> int:
    """Return the number of actors that fit a node's memory beside the server, which may lie on any node.

    further: clients that each actor serves beside the first.
    """
    free = MEMORY_MARGIN * node.memory - need.server
    return max(0, math.floor(free / max(1.0, need.client + further * need.more)))


def usable(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with a whole CPU: a head node that only directs takes no actors."""
    return [node for node in nodes if node.cpus >= 1]


def whole_cpus(nodes: Sequence[Node]) -> int:
    """Return the number of actors that the CPUs allow, one to each. Raise InputError where there is not one."""
    count = sum(math.floor(node.cpus + SLACK) for node in usable(nodes))
    if not count:
        raise InputError("no node has a whole CPU for a client actor: start Ray with more (ray start --num-cpus)")
    return count


def share_out(nodes: Sequence[Node], need: Need, clients: int, server_gpus: float = 0.0) -> Sizing:
    """Return the largest number of client actors that is safe. Raise InputError where there is none."""
    by_cpus = whole_cpus(nodes)
    for actors in range(min(clients, by_cpus), 0, -1):
        each = math.ceil(clients / actors)
        shares = _shares(nodes, need, math.ceil(clients / each), each - 1, server_gpus)
        if shares is None:
            continue
        per_gpu = actors_per_gpu(need.gpu, (each - 1) * need.more) if need.gpu else 0
        devices = sum(len(node.devices) for node in usable(nodes))
        return Sizing(
            math.ceil(clients / each), each, *shares, by_cpus, sum(slots(n, need, each - 1) for n in usable(nodes)),
            devices * per_gpu if need.gpu else None, per_gpu,
        )  # fmt: skip
    raise InputError(_too_little(usable(nodes), need, clients, server_gpus, by_cpus))


def _shares(
    nodes: Sequence[Node], need: Need, actors: int, further: int, server_gpus: float
) -> tuple[float, float] | None:
    """Return the CPU and GPU share with which ``actors`` fit, wherever Ray puts them; None: there is none."""
    room = [slots(node, need, further) for node in nodes]
    if sum(room) < actors:
        return None
    for cpus in _cpu_shares(nodes, room):
        for gpus in _gpu_shares(nodes, need, actors, further):
            takes = [_actors_on(node, cpus, gpus) for node in nodes]
            # Ray fills a node by shares and does not look at memory: no node may take more than its memory holds.
            safe = all(min(count, actors) <= most for count, most in zip(takes, room, strict=True))
            if safe and sum(takes) >= actors and fits_wherever(nodes, (0.0, server_gpus), [(cpus, gpus)] * actors):
                return cpus, gpus
    return None


def _cpu_shares(nodes: Sequence[Node], room: Sequence[int]) -> list[float]:
    """Return one CPU, and above it the smallest shares by which a node takes no more actors than its memory holds."""
    shares = {1.0}
    for node, most in zip(nodes, room, strict=True):
        share = (math.floor(node.cpus / (most + 1) / STEP) + 1) * STEP
        shares.add(max(1.0, round(share, 4)))
    return sorted(shares)


def _gpu_shares(nodes: Sequence[Node], need: Need, actors: int, further: int) -> Iterator[float]:
    """Yield the GPU shares to try, large ones first: Ray fills one GPU before the next, and these spread the actors."""
    if need.gpu is None:
        yield 0.0
        return
    devices = max(1, sum(len(node.devices) for node in nodes if node.cpus >= 1))
    for each in range(math.ceil(actors / devices), actors_per_gpu(need.gpu, further * need.more) + 1):
        yield gpu_fraction(each)


def _actors_on(node: Node, cpus: float, gpus: float) -> int:
    """Return the number of actors of these shares that Ray can put on the node."""
    by_cpus = math.floor(node.cpus / cpus + SLACK)
    return min(by_cpus, len(node.devices) * math.floor(1 / gpus + SLACK)) if gpus else by_cpus


def _too_little(nodes: Sequence[Node], need: Need, clients: int, server_gpus: float, by_cpus: int) -> str:
    """Return why not even one actor fits, and what to do."""
    smaller = "lower --optimizer.batch_size or --optimizer.microbatch_tokens"
    gpu = need.gpu
    if gpu is not None and not actors_per_gpu(gpu):
        return (
            f"one client needs {size(gpu.reserved + gpu.context)} of GPU memory, and {GPU_MARGIN:.0%} of the"
            f" {size(gpu.total)} of the GPU less {size(gpu.taken)} that others use are"
            f" {size(GPU_MARGIN * gpu.total - gpu.taken)}: {smaller}, or take a larger GPU"
        )
    if not any(slots(node, need, 0) for node in nodes):
        return (
            f"one client needs {size(need.client)} of memory and the server {size(need.server)}, and"
            f" {MEMORY_MARGIN:.0%} of what is free on the largest node are"
            f" {size(MEMORY_MARGIN * max(node.memory for node in nodes))}: {smaller}, or take a larger node"
        )
    most = min(clients, by_cpus)
    server = f", or set --cluster.server_gpus 0 (it is {server_gpus:g})" if server_gpus else ""
    return (
        f"no number of actors from 1 to {most} is safe: an actor needs {size(need.client)} for one client and"
        f" {size(need.more)} for each further one of {clients}, Ray places actors by CPUs and GPUs alone, and the"
        f" smallest node has {size(min(node.memory for node in nodes))} free: take nodes with more memory, or no CPUs"
        f" to the smallest (ray start --num-cpus=0){server}"
    )


def number(value: float) -> str:
    """Return a share as Ray counts it: up to four decimals, none for whole numbers."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def size(value: float) -> str:
    """Return a number of bytes for the eye."""
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B")) if abs(value) >= u)
    return f"{value / unit:.3g} {name}" if unit else f"{value:.0f} B"
