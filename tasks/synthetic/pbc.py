"""Synthetic PBC: the photographs and both files of reduced arrays, with the original's oddities: a hidden file
that is no image, equal files under two names, and one picture under two classes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from anchorfl.tasks.images.pbc import ARCHIVE, FOLDERS
from anchorfl.tasks.synthetic.pictures import Picture, picture, reduced, write_jpeg

PREFIX = {
    "basophil": ("BA",),
    "eosinophil": ("EO",),
    "erythroblast": ("ERB",),
    "ig": ("IG", "MMY", "MY", "PMY"),
    "lymphocyte": ("LY",),
    "monocyte": ("MO",),
    "neutrophil": ("BNE", "NEUTROPHIL", "SNE"),
    "platelet": ("PLATELET",),
}
HEIGHT, WIDTH = 73, 72


def write(folder: Path, rows: int, seed: int) -> None:
    """Write about ``rows`` images, at least 10 per class, so that every split has each."""
    rng = np.random.default_rng(seed)
    pictures = dict[str, Picture]()
    for class_, name in enumerate(FOLDERS):
        each = max(10, rows // len(FOLDERS))
        for number, stamp in enumerate(rng.choice(900_000, each, replace=False) + 100_000):
            prefix = PREFIX[name][number % len(PREFIX[name])]
            pictures[f"{name}/{prefix}_{stamp}.jpg"] = picture(class_, len(FOLDERS), HEIGHT, WIDTH, rng)
    names = sorted(pictures)
    first = {name: next(n for n in names if n.startswith(f"{name}/")) for name in FOLDERS}
    copies = {"basophil/BA_999999.jpg": first["basophil"], "neutrophil/BNE_999999.jpg": first["eosinophil"]}
    for copy, original in copies.items():
        pictures[copy] = pictures[original]
    for name, pixels in pictures.items():
        write_jpeg(folder / ARCHIVE / name, pixels)
    for copy, original in copies.items():
        shutil.copyfile(folder / ARCHIVE / original, folder / ARCHIVE / copy)
    (folder / ARCHIVE / "neutrophil" / ".DS_169665.jpg").write_bytes(b"no image")
    _write_arrays(folder / "pbc_28.npz", 28, sorted(pictures), pictures)
    _write_arrays(folder / "pbc_64_subset400.npz", 64, names[::2], pictures)


def _write_arrays(path: Path, side: int, names: list[str], pictures: dict[str, Picture]) -> None:
    np.savez_compressed(
        path,
        images=np.stack([reduced(pictures[name], side) for name in names]),
        labels=np.array([list(FOLDERS).index(name.split("/")[0]) for name in names], dtype=np.uint8),
        filenames=np.array(names),
        class_names=np.array(list(FOLDERS)),
    )
