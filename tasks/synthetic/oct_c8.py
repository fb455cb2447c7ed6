"""Synthetic OCT-C8: small grey JPEG files in ``train``, ``val`` and ``test``, one folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchorfl.tasks.images.oct_c8 import FOLDERS, SPLIT_OF
from anchorfl.tasks.synthetic.pictures import picture, write_jpeg

SHARES = {"train": 0.766, "val": 0.117, "test": 0.117}
HEIGHT, WIDTH = 31, 48


def write(folder: Path, rows: int, seed: int) -> None:
    """Write about ``rows`` images, at least 2 per class and split."""
    rng = np.random.default_rng(seed)
    for part in SPLIT_OF:
        each = max(2, round(rows * SHARES[part] / len(FOLDERS)))
        for class_, name in enumerate(FOLDERS):
            for number in range(each):
                path = folder / part / name / f"{name.lower()}_{part}_{1001 + number}.jpg"
                write_jpeg(path, picture(class_, len(FOLDERS), HEIGHT, WIDTH, rng), grey=True)
