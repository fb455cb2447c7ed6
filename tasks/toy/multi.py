"""Toy skies: 240 synthetic 4x4 images, 5 classes, multi-label with classes that come together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table, fixed_lists
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.options import TaskOptions

ROWS, TEST_EVERY, SIDE = 240, 5, 4
NOISE = 0.3
CLASSES = ("moon", "rain", "snow", "sun", "wind")
WEATHER = np.array(
    [  # chance of each class in three kinds of weather
        [0.1, 0.9, 0.1, 0.2, 0.7],
        [0.2, 0.1, 0.0, 0.9, 0.4],
        [0.7, 0.1, 0.8, 0.1, 0.1],
    ]
)


def toy_multi() -> Task:
    """Return the toy task of multi-label images."""
    return Task(
        name="toy-multi",
        title="Toy skies, 5 labels",
        class_names=CLASSES,
        kind="multi",
        payload="pixels",
        source=Source(files=(), url="made in memory", licence="none needed"),
        folder="",
        read=read,
        fit=fit,
        encode=encode,
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the rows, always the same: each class adds a fixed pattern to noise; every fifth is a test row."""
    rng = np.random.default_rng(20230806)
    pattern_CD = rng.standard_normal((len(CLASSES), SIDE * SIDE))
    chance_NC = WEATHER[rng.integers(len(WEATHER), size=ROWS)]
    y_NC = rng.random((ROWS, len(CLASSES))) < chance_NC
    y_NC[np.arange(ROWS), np.where(y_NC.any(1), y_NC.argmax(1), chance_NC.argmax(1))] = True  # no row without a class
    pixels_ND = y_NC @ pattern_CD + NOISE * rng.standard_normal((ROWS, SIDE * SIDE))
    columns = {
        "row": np.arange(ROWS, dtype=np.int64),
        "split": pa.array(["test" if row % TEST_EVERY == 0 else "train" for row in range(ROWS)]),
        "labels": Labels.of_matrix(y_NC).lists(),
        "pixels": fixed_lists(pixels_ND.astype(np.float32)),
    }
    return pa.table(columns)


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: one image of 4x4; nothing is learnt from the rows."""
    return InputSpec("image", (1, SIDE, SIDE))


def encode(table: Table, spec: InputSpec) -> Table:
    """Return the table with ``x`` in place of ``pixels``."""
    return table.rename_columns(["x" if name == "pixels" else name for name in table.column_names])
