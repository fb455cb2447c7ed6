"""Synthetic Kvasir-v2: small JPEG files of several sizes under random names, one folder per class."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np

from anchorfl.tasks.images.kvasir import FOLDERS
from anchorfl.tasks.synthetic.pictures import picture, write_jpeg

SIZES = ((29, 36), (51, 64), (54, 96))
"""Heights and widths, in the ratios of the originals."""


def write(folder: Path, rows: int, seed: int) -> None:
    """Write about ``rows`` images, at least 10 per class, so that every split has each."""
    rng = np.random.default_rng(seed)
    for class_, name in enumerate(FOLDERS):
        for number in range(max(10, rows // len(FOLDERS))):
            height, width = SIZES[number % len(SIZES)]
            path = folder / name / f"{uuid.UUID(bytes=rng.bytes(16), version=4)}.jpg"
            write_jpeg(path, picture(class_, len(FOLDERS), height, width, rng))
