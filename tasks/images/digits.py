"""Digits: 1797 scanned handwritten digits of 8x8 grey pixels, ten classes, single-label, bundled with scikit-learn.

Origin: test part of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), licence CC BY 4.0.
There is no published split of these: a fifth of the rows (359), stratified by class, is the test set. It is drawn
with a seed of the task's own, so that every run is tested on the same rows whatever its seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table, fixed_lists, list_parts
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.stratify import stratified_holdout
from anchorfl.tasks.prompts import Wording

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDING = Wording(
    ("handwriting image", "handwriting sample", "handwriting scan"), {name: f"digit {name}" for name in CLASSES}
)
TEST_SHARE = 0.2
TEST_SEED = 8
BRIGHTEST = 16
"""Pixels are whole numbers 0..16."""


def digits() -> Task:
    """Return the digits task."""
    return Task(
        name="digits",
        title="Handwritten digits, 8x8 (scikit-learn)",
        class_names=CLASSES,
        kind="single",
        payload="pixels",
        source=Source(
            files=(),
            url="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
            licence="CC BY 4.0",
        ),
        folder="",
        read=read,
        fit=fit,
        encode=encode,
        wording=WORDING,
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows in scikit-learn's order; ``pixels`` are 64 floats 0..16, row by row of the image."""
    from sklearn.datasets import load_digits  # slow to import, and only this function needs it

    pixels_ND, label_N = load_digits(return_X_y=True)
    row_N = np.arange(len(label_N), dtype=np.int64)
    test = stratified_holdout(label_N, row_N, TEST_SHARE, np.random.default_rng(options.seed_of_split(TEST_SEED)))
    label_list = pa.ListArray.from_arrays(
        np.arange(len(label_N) + 1, dtype=np.int32), pa.array(label_N.astype(np.int32))
    )
    columns = {
        "row": row_N,
        "split": pa.array(np.where(np.isin(row_N, test), "test", "train").tolist()),
        "labels": label_list,
        "pixels": fixed_lists(pixels_ND.astype(np.float32)),
    }
    return pa.table(columns)


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: one grey image of 8x8; nothing is learnt from the rows. InputError on another ``image_size``."""
    if options.image_size not in (0, 8):
        raise InputError(f"[task] image_size = {options.image_size}: digits are images of 8x8; leave it at 0")
    return InputSpec("image", (1, 8, 8))


def encode(table: Table, spec: InputSpec) -> Table:
    """Return the table with ``x`` in [0, 1] in place of ``pixels``."""
    values, _ = list_parts(table["pixels"])
    x = fixed_lists((values.astype(np.float32) / np.float32(BRIGHTEST)).reshape(-1, 64))
    return table.drop_columns(["pixels"]).append_column("x", x)
