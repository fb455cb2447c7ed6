"""MedMNIST's files of PBC and HAM10000: the same images, reduced to squares, in the splits that FedBM's counts are of.

``bloodmnist``: 17,092 images, 11,959 / 1,712 / 3,421 for training, validation and test; ``dermamnist``: 10,015 images,
7,007 / 1,003 / 2,005. Variants by the height and width in pixels: 128 (the paper's), 28, 64, 224. A file has
``train_images`` uint8 [N, side, side, 3], ``train_labels`` [N, 1] and likewise ``val`` and ``test``; classes are
numbered as in ``pbc`` and ``ham10000``. Images of one lesion of HAM10000 are in several splits, where ``ham10000``
keeps them together. Origin: Yang et al., Scientific Data 10:41 (2023), MedMNIST v2 (28 pixels) and MedMNIST+ (others);
terms: CC BY 4.0 (blood), CC BY-NC 4.0 (skin).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import file_names, find_file, variant
from anchorfl.tasks.images.arrays import load_arrays
from anchorfl.tasks.images.folders import table_of
from anchorfl.tasks.images.ham10000 import ham10000
from anchorfl.tasks.images.pbc import pbc
from anchorfl.tasks.images.pixels import encode_images, image_spec, pixel_column
from anchorfl.tasks.options import TaskOptions

SIDES = (128, 28, 64, 224)
"""Height and width of the variants, the default first."""
SPLITS = {"train": "train", "val": "validation", "test": "test"}
"""A split's name in the file -> here."""


def bloodmnist() -> Task:
    """Return the BloodMNIST task."""
    return _task("bloodmnist", "BloodMNIST, microscopic images of blood cells", pbc, "CC BY 4.0")


def dermamnist() -> Task:
    """Return the DermaMNIST task."""
    licence = "CC BY-NC 4.0, not for commercial use"
    return _task("dermamnist", "DermaMNIST, dermatoscopic images of skin lesions", ham10000, licence)


def _task(name: str, title: str, original: Callable[[], Task], licence: str) -> Task:
    """Return a task with the classes and words of the set that its images are from."""
    files = "|".join(f"{side}={name}{'' if side == 28 else f'_{side}'}.npz" for side in SIDES)
    return Task(
        name=name,
        title=title,
        class_names=original().class_names,
        kind="single",
        payload="image",
        source=Source(files=(f"{{{files}}}",), url="https://medmnist.com", licence=licence),
        folder="medmnist",
        read=partial(read, task=original, name=name),
        fit=partial(fit, name=name),
        encode=encode_images,
        wording=original().wording,
    )


def read(folder: Path | None, options: TaskOptions, *, task: Callable[[], Task], name: str) -> Table:
    """Return one row per image: the training images in the order of the file, then validation and test.

    Raises InputError with the path, array and row.
    """
    if folder is None:
        raise ValueError(f"{name} needs the folder of its files")
    bad, made = BadRows.of(options), _of(name)
    path, side, classes = find_file(folder, *file_names(made, options)), _side(name, options), len(task().class_names)
    images, labels, splits = [], [], []
    for short, split in SPLITS.items():
        arrays = load_arrays(path, {f"{short}_images": 4, f"{short}_labels": 2})
        part, label_N1 = arrays[f"{short}_images"], arrays[f"{short}_labels"]
        if part.dtype != np.uint8 or part.shape[1:] != (side, side, 3) or label_N1.shape[1] != 1:
            raise InputError(
                f"{path}: {short}_images and _labels are {part.dtype} {part.shape} and {label_N1.shape}, not uint8"
                f" (rows, {side}, {side}, 3) and (rows, 1); get the file again"
            )
        images.append(part)
        labels.append(label_N1[:, 0].astype(np.int64))
        splits.append(np.full(len(part), split))
    label_N, split_N = np.concatenate(labels), np.concatenate(splits)
    good_N = (label_N >= 0) & (label_N < classes)
    for row in np.flatnonzero(~good_N).tolist():
        fault = f"label {label_N[row]} is none of 0..{classes - 1}; get the file again"
        bad.meet(f"{path}: row {row} of all splits: {fault}")
    row_N = np.flatnonzero(good_N)
    pixels = pixel_column(np.concatenate(images)[row_N])
    return bad.noted(table_of(row_N, label_N[row_N], split_N[row_N], {"image": pixels}))


def fit(train: Table, options: TaskOptions, *, name: str) -> InputSpec:
    """Return the spec: RGB of the file's height and width; nothing is learnt from the rows."""
    return image_spec(options, _side(name, options))


def _side(name: str, options: TaskOptions) -> int:
    return int(variant(_of(name), options))


def _of(name: str) -> Task:
    return bloodmnist() if name == "bloodmnist" else dermamnist()
