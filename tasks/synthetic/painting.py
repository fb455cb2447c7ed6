"""Made-up photographs: on a noisy ground, one striped disc for every class that is present.

Colors, width and angle of the stripes belong to the class, the place is by chance: a network without a sense of place
can learn them, and what two classes have in common is nothing but the ground.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.synthetic.pictures import write_jpeg


def paint(classes: Sequence[int], height: int, width: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return an RGB image [H, W, 3] that shows the given classes."""
    image_HW3 = rng.normal(rng.uniform(90, 160), 12, (height, width, 3))
    down_H1, across_W = np.arange(height)[:, None], np.arange(width)
    radius = max(3.0, 0.3 * min(height, width))
    for number in classes:
        look = np.random.default_rng((20, number))  # the look belongs to the class in every synthetic data set
        colors_23, period, angle = look.uniform(0, 255, (2, 3)), look.uniform(3, 8), look.uniform(0, np.pi)
        top, left = rng.uniform(radius, height - radius), rng.uniform(radius, width - radius)
        along_HW = across_W * np.cos(angle) + down_H1 * np.sin(angle)
        stripe_HW = np.sin(2 * np.pi * along_HW / period) > 0
        disc_HW = (down_H1 - top) ** 2 + (across_W - left) ** 2 < radius**2
        image_HW3[disc_HW] = colors_23[stripe_HW.astype(int)][disc_HW]
    return image_HW3.clip(0, 255).astype(np.uint8)


def save(path: Path, classes: Sequence[int], rng: np.random.Generator) -> None:
    """Write such an image, of 48..64 x 40..56 pixels, as JPEG."""
    write_jpeg(path, paint(classes, int(rng.integers(40, 57)), int(rng.integers(48, 65)), rng))


def label_sets(rows: int, group_C: Ints, rng: np.random.Generator) -> Bools:
    """Return bool [N, C]: every row has one class, the classes in turn, and often more of the same group; group_C: the
    group of every class.
    """
    classes = len(group_C)
    main_N = rng.permutation(np.arange(rows) % classes)
    y_NC: Bools = (rng.random((rows, classes)) < 0.25) & (group_C[main_N][:, None] == group_C)
    y_NC |= rng.random((rows, classes)) < 0.5 / classes
    y_NC[np.arange(rows), main_N] = True
    return y_NC
