"""The result of a part of a diagnosis: tables as CSV, and numbers per round for the records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anchorfl.pipeline.storage.atomic_files import write_csv

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of one part of a diagnosis, beside the files that it wrote."""

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """Round -> name -> value, for MLflow."""
    lines: tuple[str, ...] = ()
    """Lines to print."""
    facts: dict[str, object] = field(default_factory=dict)
    """Facts to keep beside the tables: which clients, how many rows."""


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file; numbers to 6 significant digits, nothing where a value is NaN."""
    write_csv(path, [header, *([_cell(value) for value in row] for row in rows)], "\n")


def share_text(value: float) -> str:
    """Return a share or a correlation with three decimals, ``none`` where it is NaN."""
    return "none" if np.isnan(value) else f"{value:.3f}"


def _cell(value: object) -> object:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return value
