"""Synthetic HAM10000: metadata, photographs in two folders, the 8 x 8 grey table and the thumbnails."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from anchorfl.tasks.images.ham10000_rows import CODES, KAGGLE, SIDE
from anchorfl.tasks.synthetic.pictures import Picture, picture, reduced, write_jpeg

SHARES = (0.10, 0.10, 0.15, 0.08, 0.15, 0.34, 0.08)
"""Shares of the classes: nevi are the most, as in the original, but less extremely."""
HEIGHT, WIDTH = 45, 60
FIRST = 24306
"""The original's lowest image number."""


def write(folder: Path, rows: int, seed: int) -> None:
    """Write about ``rows`` images, at least 20 per class; a lesion has one or two."""
    rng = np.random.default_rng(seed)
    class_N = np.repeat(np.arange(len(CODES)), [max(20, round(rows * share)) for share in SHARES])
    number_N = FIRST + rng.permutation(len(class_N))
    images = [f"ISIC_{number:07d}" for number in number_N]
    pictures = [picture(c, len(CODES), HEIGHT, WIDTH, rng) for c in class_N.tolist()]
    folder.mkdir(parents=True, exist_ok=True)
    _write_metadata(folder, images, class_N.tolist(), rng)
    middle = sorted(images)[len(images) // 2]
    for image, pixels in zip(images, pictures, strict=True):
        write_jpeg(folder / f"HAM10000_images_part_{1 if image < middle else 2}" / f"{image}.jpg", pixels)
    _write_table(folder, class_N.tolist(), pictures)
    some = sorted(range(0, len(images), 2), key=lambda i: images[i])
    np.savez_compressed(
        folder / "ham10000_thumbs_64.npz",
        images=np.stack([reduced(pictures[i], 64) for i in some]),
        labels=class_N[some].astype(np.uint8),
        image_ids=np.array([images[i] for i in some]),
        source_size=np.array([f"{WIDTH}x{HEIGHT}"] * len(some)),
        class_names=np.array(CODES),
    )


def _write_metadata(folder: Path, images: list[str], classes: list[int], rng: np.random.Generator) -> None:
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization"]
    lesion, left, before = -1, 0, -1
    for image, class_ in zip(images, classes, strict=True):
        if left == 0 or class_ != before:
            lesion, left, before = lesion + 1, int(rng.integers(1, 3)), class_
        left -= 1
        age = "" if rng.random() < 0.05 else f"{5 * int(rng.integers(0, 18))}.0"
        sex, site = rng.choice(["male", "female", "unknown"]), rng.choice(["scalp", "back", "lower extremity"])
        lines.append(f"HAM_{lesion:07d},{image},{CODES[class_]},histo,{age},{sex},{site}")
    _write_gz(folder / "HAM10000_metadata.csv.gz", "\n".join(lines) + "\n")


def _write_table(folder: Path, classes: list[int], pictures: list[Picture]) -> None:
    lines = [",".join([*(f"pixel{i:04d}" for i in range(SIDE * SIDE)), "label"])]
    for class_, pixels in zip(classes, pictures, strict=True):
        grey = reduced(pixels, SIDE).mean(2).round().astype(int).ravel().tolist()
        lines.append(",".join(str(value) for value in [*grey, KAGGLE.index(CODES[class_])]))
    _write_gz(folder / "hmnist_8_8_L.csv.gz", "\r\n".join(lines) + "\r\n")


def _write_gz(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
