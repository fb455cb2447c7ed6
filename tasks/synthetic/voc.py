"""Synthetic PASCAL VOC 2007 and 2012 (``tasks/images/voc.py``): the development kit's lists and painted JPEGs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.images.voc import ABSENT, CLASSES, DIFFICULT, GROUPS, PRESENT
from anchorfl.tasks.synthetic.painting import label_sets, save

DIFFICULT_SHARE = 0.1
SHARES = {2007: {"train": 0.25, "val": 0.25, "test": 0.5}, 2012: {"train": 0.5, "val": 0.5}}
"""Share of the rows of every set, as in the development kits."""


def write(folder: Path, rows: int, seed: int) -> None:
    """Write VOC2007/ImageSets/Main and VOC2007/JPEGImages with so many images."""
    _write(folder, rows, seed, 2007)


def write_2012(folder: Path, rows: int, seed: int) -> None:
    """Write VOC2012/ImageSets/Main and VOC2012/JPEGImages with so many images."""
    _write(folder, rows, seed, 2012)


def _write(folder: Path, rows: int, seed: int, year: int) -> None:
    rng = np.random.default_rng(seed)
    value_NC = _values(rows, rng)
    gaps = 1 + np.cumsum(rng.integers(1, 4, rows))
    images = [f"{n:06d}" if year == 2007 else f"{2007 + n % 5}_{n:06d}" for n in gaps.tolist()]
    lists = folder / f"VOC{year}" / "ImageSets" / "Main"
    lists.mkdir(parents=True, exist_ok=True)
    ends = np.rint(np.cumsum(list(SHARES[year].values())) * rows).astype(int).tolist()
    order = rng.permutation(rows)
    sets = {
        part: np.sort(order[start:end]) for part, start, end in zip(SHARES[year], [0, *ends[:-1]], ends, strict=True)
    }
    for part, index in {**sets, "trainval": np.sort(np.concatenate([sets["train"], sets["val"]]))}.items():
        (lists / f"{part}.txt").write_text("".join(f"{images[i]}\n" for i in index))
        for c, name in enumerate(CLASSES):
            lines = [f"{images[i]} {value_NC[i, c]:2d}\n" for i in index]  # two blanks before 0 and 1
            (lists / f"{name.replace(' ', '')}_{part}.txt").write_text("".join(lines))
    for image, value_C in zip(images, value_NC, strict=True):
        save(folder / f"VOC{year}" / "JPEGImages" / f"{image}.jpg", np.flatnonzero(value_C != ABSENT).tolist(), rng)


def _values(rows: int, rng: np.random.Generator) -> npt.NDArray[np.int8]:
    """Return 1, 0 or -1 of every image and class; every image has a 1."""
    group = [next(i for i, names in enumerate(GROUPS.values()) if name in names) for name in CLASSES]
    y_NC = label_sets(rows, np.array(group), rng)
    value_NC = np.where(y_NC, PRESENT, ABSENT).astype(np.int8)
    more_N = y_NC.sum(1) > 1
    difficult_NC = y_NC & more_N[:, None] & (rng.random(y_NC.shape) < DIFFICULT_SHARE)
    difficult_NC[np.arange(rows), y_NC.argmax(1)] = False
    value_NC[difficult_NC] = DIFFICULT
    return value_NC
