"""Scores of every class of a finished run, as a table in its folder."""

from __future__ import annotations

from pathlib import Path

from anchorfl.pipeline.storage.atomic_files import write_csv
from anchorfl.pipeline.storage.run_record import with_final_scores

PER_CLASS = "per_class.csv"


def write_per_class(folder: Path) -> None:
    """Write ``per_class.csv``: one line per round and class, one column per score."""
    records = [r for r in with_final_scores(folder) if r.per_class]
    columns = sorted({key for r in records for key in r.per_class})
    rows: list[list[object]] = [["round", "class", *columns]]
    for r in records:
        for name in next(iter(r.per_class.values())):
            scores = (f"{r.per_class[c][name]:.6f}" if c in r.per_class else "" for c in columns)
            rows.append([r.round, name, *scores])
    write_csv(folder / PER_CLASS, rows)
