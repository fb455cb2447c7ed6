"""Placement of actors: each lies on one node, and a share of a GPU on one device, so that totals do not tell."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SLACK = 1e-9
ActorShares = tuple[float, float]
"""CPUs and GPUs of an actor."""


def own_cpus(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the CPUs that this process may use: not all of the machine under Slurm, ``taskset`` or in a container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = root / "cpu.max"
    share = quota.read_text(encoding="ascii").split() if quota.exists() else ["max"]
    return float(allowed) if share[0] == "max" else min(float(allowed), int(share[0]) / int(share[1]))


@dataclass(frozen=True, slots=True)
class Node:
    """The free resources of a node."""

    cpus: float
    devices: tuple[float, ...] = ()
    """Free share of each GPU, 0 to 1."""
    memory: float = field(default=0.0, compare=False)
    """Bytes that actors may take. Nodes that differ in it alone are equal: Ray places actors by CPUs and GPUs."""

    def less(self, shares: ActorShares) -> Node | None:
        """Return the node with an actor of these shares on it; None: it has no room.

        A share below 1 GPU takes the fullest device that has room; 1 and more take whole devices.
        """
        cpus, gpus = shares
        if cpus > self.cpus + SLACK:
            return None
        devices = sorted(self.devices)
        if 0 < gpus < 1:
            at = next((i for i, free in enumerate(devices) if free >= gpus - SLACK), None)
            if at is None:
                return None
            devices[at] -= gpus
        elif gpus:
            whole = math.ceil(gpus)
            if sum(free >= 1 - SLACK for free in devices) < whole:
                return None
            devices = devices[:-whole]
        return Node(self.cpus - cpus, tuple(devices), self.memory)


def place(nodes: Sequence[Node], actors: Iterable[ActorShares]) -> list[Node] | None:
    """Put each actor on the first node that has room; return what is then free, or None where one finds none."""
    left = list(nodes)
    for shares in actors:
        for i, node in enumerate(left):
            after = node.less(shares)
            if after is not None:
                left[i] = after
                break
        else:
            return None
    return left


def count_groups(nodes: Sequence[Node], group: Sequence[ActorShares], most: int) -> int:
    """Return how often a group of actors fits, the largest actors first, at most ``most`` times."""
    order = sorted((s for s in group if s != (0.0, 0.0)), key=lambda s: (s[1], s[0]), reverse=True)
    left, count = place(nodes, order), 0
    while left is not None and count < most:
        left, count = place(left, order), count + 1
    return count


def fits_wherever(nodes: Sequence[Node], first: ActorShares, others: Sequence[ActorShares]) -> bool:
    """Return whether ``others`` find room whichever node the first actor goes to: which, is for Ray to choose."""
    choices = [node for node in set(nodes) if node.less(first) is not None]
    return bool(choices) and all(place(_with(nodes, node, first), others) is not None for node in choices)


def _with(nodes: Sequence[Node], node: Node, shares: ActorShares) -> list[Node]:
    left, at = list(nodes), list(nodes).index(node)
    after = node.less(shares)
    assert after is not None
    left[at] = after
    return left


def largest_share(nodes: Sequence[Node], actors: int, fits: Callable[[float], bool]) -> float:
    """Return the largest CPU share up to 1, in steps of 1/10,000, with which ``actors`` actors fit; 0: none."""
    parts = {node.cpus / k for node in set(nodes) for k in range(1, actors + 1)}
    rounded = sorted({math.floor(1e4 * min(1.0, part) + SLACK) / 1e4 for part in parts} - {0.0})
    low, high = 0, len(rounded)  # what fits with one share fits with every smaller one
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(rounded[middle]) else (low, middle)
    return rounded[low - 1] if low else 0.0
