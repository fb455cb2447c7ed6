"""Synthetic Mulan sets: made-up rows in ARFF files with an XML list of labels, with the file names of each set.

A row has one label or two that belong together; its features are its labels' patterns and noise. Attribute names hold
quotes and escaped apostrophes as those of birds do, and the XML file has an order of its own, as that of yeast.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import numpy.typing as npt

PER_LABEL = 4
"""Words that belong to a label."""
NOISE = 0.1
"""Share of the other words that a row has."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a data set."""

    stem: str
    """Beginning of the file names."""
    features: int
    """Kept small."""
    labels: int
    """Labels, as in the real set, at most one for ten rows."""
    words: bool = False
    """True: bags of words."""
    sparse: bool = False
    """True: in sparse rows."""
    one_file: bool = False
    """True: no split."""


SHAPES = {
    "scene": Shape("scene", 24, 6),
    "yeast": Shape("yeast", 20, 14),
    "delicious": Shape("delicious", 100, 983, words=True),
    "corel5k": Shape("Corel5k", 100, 374, words=True, sparse=True),
    "emotions": Shape("emotions", 20, 6),
    "enron": Shape("enron", 80, 53, words=True),
    "medical": Shape("medical", 80, 45, words=True, sparse=True),
    "birds": Shape("birds", 24, 19),
    "cal500": Shape("CAL500", 20, 174, one_file=True),
}


def write(folder: Path, rows: int, seed: int, task: str = "scene") -> None:
    """Write the files of a data set with ``rows`` rows in all, a third of them test rows."""
    rng = np.random.default_rng(seed)
    shape = SHAPES[task]
    labels = min(shape.labels, max(2, rows // 10))
    names = [f"Maker\\'s {n}" if n % 3 == 1 else f"Label{n}" for n in range(labels)]
    y_NC = _labels(rows, labels, rng)
    x_NF = (_words if shape.words else _measured)(y_NC, shape.features, rng)
    kind = "{0,1}" if shape.words else "numeric"
    head = [f"@relation {task}", "", *(f"@attribute Att{f + 1} {kind}" for f in range(shape.features))]
    head += [f"@attribute '{name}' {{0,1}}" if "'" in name else f"@attribute {name} {{0,1}}" for name in names]
    lines = _lines(np.concatenate([x_NF, y_NC], axis=1), shape.sparse)
    cut = rows - rows // 3
    parts = {"": lines} if shape.one_file else {"-train": lines[:cut], "-test": lines[cut:]}
    for part, chosen in parts.items():
        (folder / f"{shape.stem}{part}.arff").write_text("\n".join([*head, "", "@data", *chosen]) + "\n")
    shown = [quoteattr(name.replace("\\'", "'")) for name in names[::-1]]
    listed = "".join(f"<label name={name}></label>\n" for name in shown)
    (folder / f"{shape.stem}.xml").write_text(
        f'<?xml version="1.0" encoding="utf-8"?>\n<labels xmlns="http://mulan.sourceforge.net/labels">\n{listed}</labels>'
    )


def _labels(rows: int, labels: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return 0/1 [N, C]: every label in turn, half of the rows with its partner."""
    main_N = np.arange(rows) % labels
    y_NC = np.zeros((rows, labels))
    y_NC[np.arange(rows), main_N] = 1
    pair_N = np.flatnonzero(rng.random(rows) < 0.5)
    y_NC[pair_N, np.minimum(main_N[pair_N] ^ 1, labels - 1)] = 1
    return y_NC


def _words(y_NC: npt.NDArray[np.float64], features: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    own_CF = np.zeros((y_NC.shape[1], features))
    for word in range(PER_LABEL):
        own_CF[np.arange(len(own_CF)), (np.arange(len(own_CF)) * PER_LABEL + word) % features] = 1
    noise_NF = rng.random((len(y_NC), features)) < NOISE
    return ((y_NC @ own_CF > 0) | noise_NF).astype(np.float64)


def _measured(y_NC: npt.NDArray[np.float64], features: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return measurements with six decimals, and a last feature that never changes."""
    pattern_CF = rng.standard_normal((y_NC.shape[1], features))
    x_NF = np.round(5 + y_NC @ pattern_CF + 0.5 * rng.standard_normal((len(y_NC), features)), 6)
    x_NF[:, -1] = 2
    return x_NF


def _lines(value_NA: npt.NDArray[np.float64], sparse: bool) -> list[str]:
    rows: list[Any] = value_NA.tolist()
    if not sparse:
        return [",".join(f"{value:.10g}" for value in row) for row in rows]
    listed = ([f"{column} {value:g}" for column, value in enumerate(row) if value] for row in rows)
    return ["{" + ",".join(row) + "}" for row in listed]
