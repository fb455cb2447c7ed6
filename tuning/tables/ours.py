"""Our figures of the presets, as ``tuning/ours.csv`` has them.

The file is made from the records of finished runs that are kept in ``benchmarks/results``, by what ``anchorfl table
... --show`` computes of them: ``python -m benchmarks.reproducibility`` writes it, and a test holds the two equal.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch, which reading the file does without
    from anchorfl.tuning.tables.statistics import Table

OURS = Path(__file__).resolve().parents[1] / "ours.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class OurFigure:
    """A metric of a preset, over the seeds of its finished runs."""

    preset: str
    metric: str
    """Name in ``published.csv``."""
    mean: str
    """Percent, two digits."""
    sd: str
    """Points (ddof 1), two digits; empty: one seed."""
    seeds: str
    """Seeds with blanks between them."""
    cpu_hours: str
    """Mean of a run: training, scores and aggregation, two digits."""
    options: str
    """Options of the runs that are not the preset's, as ``anchorfl run`` takes them; empty: none."""
    records: str
    """Folder of the records."""


def figures_of(table: Table, records: str) -> list[OurFigure]:
    """Return the figures of a table's rows that have a finished run."""
    return [
        OurFigure(
            preset=entry.row.preset,
            metric=entry.metric.published,
            mean=f"{entry.mean:.2f}",
            sd="" if entry.sd is None else f"{entry.sd:.2f}",
            seeds=" ".join(map(str, entry.scores)),
            cpu_hours=_two_digits(table.cost(entry.row).hours),
            options=shlex.join(table.options_of(entry.row)),
            records=records,
        )
        for entry in table.entries
        if entry.mean is not None
    ]


def _two_digits(hours: float | None) -> str:
    if hours is None:
        return ""
    return f"{hours:.2f}" if hours >= 0.1 else f"{hours:.2g}"


def csv_text(figures: Iterable[OurFigure]) -> str:
    """Return the text of the file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(f.name for f in fields(OurFigure))
    writer.writerows(map(astuple, figures))
    return text.getvalue()


def read_ours(file: Path = OURS) -> list[OurFigure]:
    """Return what the file holds."""
    with file.open(encoding="utf-8", newline="") as stream:
        return [OurFigure(**line) for line in csv.DictReader(stream)]
