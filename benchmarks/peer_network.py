"""Network, sizes and made-up images of two tasks that peers publish times for; needs torch and NumPy alone.

``femnist``: FLUTE's, 10 of 3,400 writers a round, 28 x 28, 62 classes, batches of 20. ``cifar10``: pfl-research's, 50
users a round with 50 images of 32 x 32 x 3 each, batches of 10. Both: one local epoch of SGD at 0.1 on the network of
Reddi et al. (ICLR 2021), here without dropout.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import nn

LR = 0.1
WIDTH = 128


class PeerTask(NamedTuple):
    """A task's shape."""

    population: int
    selected: int
    """Clients of a round."""
    shape: tuple[int, int, int]
    outputs: int
    """Classes."""
    batch: int


TASKS = {
    "femnist": PeerTask(3400, 10, (1, 28, 28), 62, 20),
    "cifar10": PeerTask(1000, 50, (3, 32, 32), 10, 10),
}


def rows_of(task: PeerTask, client: int) -> int:
    """Return a client's number of images: 50, or as uneven as FEMNIST's writers, 198 on average."""
    if task.population == TASKS["cifar10"].population:
        return 50
    return int(np.clip(np.random.default_rng([7, client]).lognormal(math.log(180), 0.45), 20, 460))


def images(task: PeerTask, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up images [N, C, H, W] in float32 and classes [N] of a client."""
    rng, rows = np.random.default_rng([11, client]), rows_of(task, client)
    label_N = rng.integers(task.outputs, size=rows)
    return rng.random((rows, *task.shape), dtype=np.float32), label_N


def encoder(task: PeerTask) -> nn.Sequential:
    """Return all of the network but its last layer, which is linear: image -> z [B, 128]."""
    channels, height, width = task.shape
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(flat, WIDTH), nn.ReLU(),
    )  # fmt: skip


def clients_of(task: PeerTask, round_: int) -> list[int]:
    """Return the clients of a round, the same for everybody."""
    chosen = np.random.default_rng([3, round_]).choice(task.population, size=task.selected, replace=False)
    return sorted(chosen.tolist())
