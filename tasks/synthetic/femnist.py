"""Synthetic FEMNIST of LEAF (``tasks/images/femnist.py``): JSON files by writer, of blots that belong to the class.

As in LEAF, a file holds at most 100 writers, pixels are fractions of 255, paper is 1 and ink 0. One writer more has 150
samples, so that it is not drawn.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter, shift

from anchorfl.tasks.images.femnist import BELOW, CLASSES, SIDE, WRITERS

PER_FILE = 100
PER_WRITER = 100
"""Samples of a writer on average, where there are enough rows for 50 writers."""


def write(folder: Path, rows: int, seed: int) -> None:
    """Write all_data/all_data_<n>.json: ``rows`` samples of writers with fewer than 150, and one writer with 150.

    Each of 50 writers has at least one sample (ValueError).
    """
    writers = max(sum(WRITERS.values()), -(-rows // PER_WRITER))
    if rows < writers:
        raise ValueError(f"{rows} rows are too few for {writers} writers, ask for {writers} or more")
    rng = np.random.default_rng(seed)
    sizes = [rows // writers + (n < rows % writers) for n in range(writers)]
    sizes.insert(int(rng.integers(0, writers + 1)), BELOW)
    names = [f"f{n:04d}_{int(rng.integers(0, 50)):02d}" for n in range(len(sizes))]
    glyphs = _glyphs()
    label_N = rng.permutation(np.arange(sum(sizes)) % len(CLASSES))
    ends = np.cumsum(sizes)[:-1]
    by_writer = dict(zip(names, np.split(label_N, ends), strict=True))
    (folder / "all_data").mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(names), PER_FILE)):
        users = names[start : start + PER_FILE]
        data = {name: _samples(by_writer[name], glyphs, rng) for name in users}
        content = {"users": users, "num_samples": [len(by_writer[name]) for name in users], "user_data": data}
        (folder / "all_data" / f"all_data_{number}.json").write_text(json.dumps(content))


def _glyphs() -> npt.NDArray[np.float64]:
    """Return a blot for every class, ink 0..1: [C, H, W]; the same in every synthetic data set."""
    noise = np.random.default_rng(62).normal(size=(len(CLASSES), SIDE, SIDE))
    smooth = np.stack([gaussian_filter(image, 2.0) for image in noise])
    smooth[:, [0, 1, 2, 3, -4, -3, -2, -1]] = 0
    smooth[:, :, [0, 1, 2, 3, -4, -3, -2, -1]] = 0
    ink: npt.NDArray[np.float64] = (smooth > np.quantile(smooth, 0.85, axis=(1, 2), keepdims=True)).astype(np.float64)
    return ink


def _samples(labels: npt.NDArray[np.int64], glyphs: npt.NDArray[np.float64], rng: np.random.Generator) -> object:
    """Return pixels and labels of a writer, who has a pressure of the pen and a position on the paper of its own."""
    pressure, offset = rng.uniform(0.6, 1.0), rng.integers(-2, 3, 2)
    x = []
    for label in labels.tolist():
        ink = shift(glyphs[label], offset + rng.integers(-1, 2, 2), order=0) * pressure * rng.uniform(0.8, 1.0)
        x.append((np.rint((1 - ink) * 255) / 255).ravel().tolist())
    return {"x": x, "y": labels.tolist()}
