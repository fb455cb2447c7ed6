"""Made-up pictures whose class can be seen: stripes in a direction, a width and a color of the class, and noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Picture = npt.NDArray[np.uint8]


def picture(class_: int, classes: int, height: int, width: int, rng: np.random.Generator) -> Picture:
    """Return RGB [height, width, 3]; two pictures of a class differ in phase, brightness and noise."""
    y_HW, x_HW = np.mgrid[0:height, 0:width] / max(height, width)
    angle = np.pi * class_ / classes
    phase = rng.uniform(0, 2 * np.pi)
    wave_HW = np.sin(2 * np.pi * (2 + class_ % 3) * (x_HW * np.cos(angle) + y_HW * np.sin(angle)) + phase)
    tint_3 = 0.5 + 0.4 * np.cos(2 * np.pi * (class_ / classes + np.arange(3) / 3))
    values = rng.uniform(0.7, 1.0) * (0.6 + 0.4 * wave_HW[..., None]) * tint_3 + rng.normal(0, 0.05, (height, width, 1))
    pixels: Picture = (255 * values.clip(0, 1)).astype(np.uint8)
    return pixels


def write_jpeg(path: Path, pixels: Picture, *, grey: bool = False) -> None:
    """Write one file, its folders made where they are missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert("L") if grey else image).save(path, quality=90)


def reduced(pixels: Picture, side: int) -> Picture:
    """Return the middle square, bicubic, [side, side, 3]; thumbnails are made so."""
    height, width = pixels.shape[:2]
    edge = min(height, width)
    left, top = (width - edge) // 2, (height - edge) // 2
    box = (left, top, left + edge, top + edge)
    return np.asarray(Image.fromarray(pixels).crop(box).resize((side, side), Image.Resampling.BICUBIC))
