"""What a part of a diagnosis gives, and how it is written: tables as CSV, numbers per round for the records."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """metrics: round -> name -> value, for MLflow; lines: what a person is told; facts: what to keep beside the tables
    (which clients, how many rows).
    """

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A CSV file; numbers to 6 significant digits, nothing where a value is NaN."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: object) -> object:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return value
