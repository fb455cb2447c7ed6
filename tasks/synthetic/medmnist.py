"""Synthetic MedMNIST: the arrays of three splits in the file of the default variant, and in that of 28 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.tasks.images.medmnist import SPLITS, bloodmnist, dermamnist
from anchorfl.tasks.synthetic.pictures import Picture, picture, reduced

SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
HEIGHT, WIDTH = 132, 140


def write(folder: Path, rows: int, seed: int, *, task: str) -> None:
    """Write about ``rows`` images, at least 10 per class, so that every split has each."""
    rng = np.random.default_rng(seed)
    classes = len((bloodmnist if task == "bloodmnist" else dermamnist)().class_names)
    each = max(10, rows // classes)
    pictures: dict[str, list[tuple[int, Picture]]] = {split: [] for split in SPLITS}
    for class_ in range(classes):
        cuts = np.round(np.cumsum(list(SHARES.values())) * each).astype(int)
        for number in range(each):
            split = list(SPLITS)[int(np.searchsorted(cuts, number, side="right"))]
            pictures[split].append((class_, picture(class_, classes, HEIGHT, WIDTH, rng)))
    folder.mkdir(parents=True, exist_ok=True)
    for side in (28, 128):
        arrays: dict[str, Any] = {}
        for split, found in pictures.items():
            order = np.random.default_rng(seed).permutation(len(found))  # files are not sorted by class
            arrays[f"{split}_images"] = np.stack([reduced(found[i][1], side) for i in order])
            arrays[f"{split}_labels"] = np.array([[found[i][0]] for i in order], dtype=np.uint8)
        np.savez_compressed(folder / f"{task}{'' if side == 28 else f'_{side}'}.npz", **arrays)
