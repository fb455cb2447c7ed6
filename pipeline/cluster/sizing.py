"""From what a client needs to how many actors a cluster holds, and with which shares. Plain arithmetic; all sizes are
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anchorfl.pipeline.cluster.placement import SLACK, Node, wherever
from anchorfl.tasks.errors import InputError

MEMORY_MARGIN = 0.8
"""Part of a node's free memory that is given out: the rest is for the operating system, the command itself, and clients
that need more than the one that was measured."""
GPU_MARGIN = 0.9
"""Part of a GPU's memory that is given out: the rest is for what the allocators cannot use, and larger clients."""
STEP = 1e-4
"""Ray counts shares in ten-thousandths."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node and the memory that actors may take there."""

    node: Node
    memory: float


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """total: of the device; taken: by other processes; reserved: peak of torch's allocator; context: what the process
    holds beside it (CUDA context, kernels, work-spaces of libraries).
    """

    total: int
    taken: int
    reserved: int
    context: int


@dataclass(frozen=True, slots=True)
class Need:
    """client: peak of an actor with one client; more: for each further client that it serves, on its GPU too where it
    has one; server: peak of the server.
    """

    client: float
    more: float
    server: float
    gpu: GpuNeed | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """What is safe: number of client actors, clients that each serves, shares of each; and what limits the number:
    actors that CPUs, memory and GPUs would each allow (by_gpus: None without GPUs), per_gpu of them on one GPU.
    """

    actors: int
    clients_per_actor: int
    client_cpus: float
    client_gpus: float
    by_cpus: int
    by_memory: int
    by_gpus: int | None
    per_gpu: int


def gpu_fraction(actors: int) -> float:
    """The largest share that Ray can count of which ``actors`` together are at most 1."""
    return (10_000 // actors) / 10_000


def actors_per_gpu(need: GpuNeed, more: float = 0.0) -> int:
    """Actors that fit one GPU; 0: not even one. more: bytes that each needs beside what was measured."""
    reserved = need.reserved + more
    count = math.floor(max(0.0, GPU_MARGIN * need.total - need.taken) / max(1.0, reserved + need.context))
    count = min(count, 10_000)
    # The actor's allocator is held to its share, which rounding makes smaller.
    while count and gpu_fraction(count) * need.total < reserved:
        count -= 1
    return count


def slots(place: Place, need: Need, further: int) -> int:
    """Actors that fit a node's memory beside the server, which may lie on any node; each serves 1 + ``further``
    clients.
    """
    free = MEMORY_MARGIN * place.memory - need.server
    return max(0, math.floor(free / max(1.0, need.client + further * need.more)))


def usable(places: Sequence[Place]) -> list[Place]:
    """Nodes with a whole CPU: a head node that only directs takes no actors."""
    return [p for p in places if p.node.cpus >= 1]


def whole_cpus(places: Sequence[Place]) -> int:
    """Actors that the CPUs allow, one to each; InputError where there is not one."""
    count = sum(math.floor(p.node.cpus + SLACK) for p in usable(places))
    if not count:
        raise InputError("no node has a whole CPU for a client actor: start Ray with more (ray start --num-cpus)")
    return count


def share_out(places: Sequence[Place], need: Need, clients: int, server_gpus: float = 0.0) -> Shares:
    """The largest number of client actors that is safe; InputError where there is none."""
    by_cpus = whole_cpus(places)
    for asked in range(min(clients, by_cpus), 0, -1):
        each = math.ceil(clients / asked)
        shares = _shares(places, need, math.ceil(clients / each), each - 1, server_gpus)
        if shares is None:
            continue
        per_gpu = actors_per_gpu(need.gpu, (each - 1) * need.more) if need.gpu else 0
        devices = sum(len(p.node.devices) for p in usable(places))
        return Shares(
            math.ceil(clients / each), each, *shares, by_cpus, sum(slots(p, need, each - 1) for p in usable(places)),
            devices * per_gpu if need.gpu else None, per_gpu,
        )  # fmt: skip
    raise InputError(_too_little(usable(places), need, clients, server_gpus, by_cpus))


def _shares(
    places: Sequence[Place], need: Need, actors: int, further: int, server_gpus: float
) -> tuple[float, float] | None:
    """CPU and GPU share with which ``actors`` fit, wherever Ray puts them; None: there is none."""
    nodes = [p.node for p in places]
    room = [slots(p, need, further) for p in places]
    if sum(room) < actors:
        return None
    for cpus in _cpu_shares(nodes, room):
        for gpus in _gpu_shares(nodes, need, actors, further):
            held = [_held(node, cpus, gpus) for node in nodes]
            # Ray fills a node by shares and does not look at memory: no node may take more than its memory holds.
            safe = all(min(count, actors) <= most for count, most in zip(held, room, strict=True))
            if safe and sum(held) >= actors and wherever(nodes, (0.0, server_gpus), [(cpus, gpus)] * actors):
                return cpus, gpus
    return None


def _cpu_shares(nodes: Sequence[Node], room: Sequence[int]) -> list[float]:
    """One CPU, and above it the smallest shares by which a node takes no more actors than its memory holds."""
    shares = {1.0}
    for node, most in zip(nodes, room, strict=True):
        share = (math.floor(node.cpus / (most + 1) / STEP) + 1) * STEP
        shares.add(max(1.0, round(share, 4)))
    return sorted(shares)


def _gpu_shares(nodes: Sequence[Node], need: Need, actors: int, further: int) -> Iterator[float]:
    """Large shares first: Ray fills one GPU before the next, and a large share spreads the actors."""
    if need.gpu is None:
        yield 0.0
        return
    devices = max(1, sum(len(node.devices) for node in nodes if node.cpus >= 1))
    for each in range(math.ceil(actors / devices), actors_per_gpu(need.gpu, further * need.more) + 1):
        yield gpu_fraction(each)


def _held(node: Node, cpus: float, gpus: float) -> int:
    """Actors of these shares that Ray can put on the node."""
    by_cpus = math.floor(node.cpus / cpus + SLACK)
    return min(by_cpus, len(node.devices) * math.floor(1 / gpus + SLACK)) if gpus else by_cpus


def _too_little(places: Sequence[Place], need: Need, clients: int, server_gpus: float, by_cpus: int) -> str:
    """Why not even one actor fits, and what to do."""
    smaller = "lower --optimizer.batch_size or --optimizer.microbatch_tokens"
    gpu = need.gpu
    if gpu is not None and not actors_per_gpu(gpu):
        return (
            f"one client needs {size(gpu.reserved + gpu.context)} of GPU memory, and {GPU_MARGIN:.0%} of the"
            f" {size(gpu.total)} of the GPU less {size(gpu.taken)} that others use are"
            f" {size(GPU_MARGIN * gpu.total - gpu.taken)}: {smaller}, or take a larger GPU"
        )
    if not any(slots(p, need, 0) for p in places):
        return (
            f"one client needs {size(need.client)} of memory and the server {size(need.server)}, and"
            f" {MEMORY_MARGIN:.0%} of what is free on the largest node are"
            f" {size(MEMORY_MARGIN * max(p.memory for p in places))}: {smaller}, or take a larger node"
        )
    most = min(clients, by_cpus)
    server = f", or set --cluster.server_gpus 0 (it is {server_gpus:g})" if server_gpus else ""
    return (
        f"no number of actors from 1 to {most} is safe: an actor needs {size(need.client)} for one client and"
        f" {size(need.more)} for each further one of {clients}, Ray places actors by CPUs and GPUs alone, and the"
        f" smallest node has {size(min(p.memory for p in places))} free: take nodes with more memory, or no CPUs"
        f" to the smallest (ray start --num-cpus=0){server}"
    )


def number(value: float) -> str:
    """A share as Ray counts it: up to four decimals, none for whole numbers."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def size(value: float) -> str:
    """Bytes for the eye."""
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B")) if abs(value) >= u)
    return f"{value / unit:.3g} {name}" if unit else f"{value:.0f} B"
