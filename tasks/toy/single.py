"""Toy texts: 240 synthetic texts of 4 to 20 words in 4 classes, half of the words typical of the class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.text.words import encode_text, token_spec

ROWS, TEST_EVERY = 240, 5
SHORTEST, LONGEST = 4, 20
TOPICS = {
    "engine": ("motor", "wheel", "fuel", "gear", "brake"),
    "fruit": ("apple", "juice", "sweet", "tree", "seed"),
    "music": ("song", "violin", "chord", "singer", "drum"),
    "river": ("water", "bridge", "boat", "bank", "flow"),
}
SHARED = ("the", "of", "and", "new", "day", "good", "year", "many")


def toy_single() -> Task:
    """Return the toy task of texts."""
    return Task(
        name="toy-single",
        title="Toy texts, 4 classes",
        class_names=tuple(TOPICS),
        kind="single",
        payload="text",
        source=Source(files=(), url="made in memory", licence="none needed"),
        folder="",
        read=read,
        fit=fit,
        encode=encode_text,
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the rows, always the same; every fifth is a test row."""
    rng = np.random.default_rng(20230806)
    label_N = rng.permutation(np.arange(ROWS, dtype=np.int32) % len(TOPICS))
    topics = list(TOPICS.values())
    texts = []
    for label in label_N:
        length = int(rng.integers(SHORTEST, LONGEST + 1))
        typical = rng.choice(topics[label], size=length)
        texts.append(" ".join(np.where(rng.random(length) < 0.5, typical, rng.choice(SHARED, size=length))))
    columns = {
        "row": np.arange(ROWS, dtype=np.int64),
        "split": pa.array(["test" if row % TEST_EVERY == 0 else "train" for row in range(ROWS)]),
        "labels": pa.ListArray.from_arrays(np.arange(ROWS + 1, dtype=np.int32), pa.array(label_N)),
        "text": pa.array(texts, type=pa.string()),
    }
    return pa.table(columns)


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: every training word, since no word of so few texts reaches a usual ``min_count``."""
    return token_spec(train["text"], 1, options.max_tokens)
