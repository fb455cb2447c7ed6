"""Scores on clients' own test rows, as a table in the folder of a run, and their spread over the clients."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from anchorfl.pipeline.storage.atomic_files import write_csv
from anchorfl.tasks.errors import InputError, has_controls
from anchorfl.tasks.files.regular_files import read_text_bytes
from anchorfl.tasks.metrics.scores import MEASURES

CLIENT_SCORES = "client_scores.csv"
PARTS = {"mean": "mean", "worst": "worst", "p10": "10th percentile", "sd": "sd"}
"""Figures over the clients -> their heads in tables. sd: over all of them (ddof 0)."""
FACTS = ("client", "name", "rows")
"""Columns before those of the scores."""


@dataclass(frozen=True, slots=True)
class ClientScore:
    """A client's scores on its own test rows."""

    client: int
    name: str
    """Its name in the user's table; empty: it has none."""
    rows: int
    """Own test rows."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Name of a measure -> score in [0, 1]; empty where no row has a known class."""


def spread(scores: Sequence[ClientScore]) -> dict[str, dict[str, float]]:
    """Return for every measure the figures of ``PARTS``, and ``clients``, the number of those that have it."""
    out = dict[str, dict[str, float]]()
    for name in dict.fromkeys(name for score in scores for name in score.values):
        values = np.array([score.values[name] for score in scores if name in score.values])
        figures = values.mean(), values.min(), np.percentile(values, 10), values.std()
        out[name] = {"clients": float(len(values)), **dict(zip(PARTS, map(float, figures), strict=True))}
    return out


def write_client_scores(folder: Path, scores: Sequence[ClientScore]) -> None:
    """Write ``client_scores.csv``: a line per client, a column per score, empty where a client has none."""
    measures = list(dict.fromkeys(name for score in scores for name in score.values))
    lines = [
        [score.client, score.name, score.rows, *(score.values.get(name, "") for name in measures)] for score in scores
    ]
    write_csv(folder / CLIENT_SCORES, [[*FACTS, *measures], *lines])


def read_client_scores(folder: Path) -> list[ClientScore]:
    """Return the scores of a run folder, [] where it has none. Raise InputError where the file is damaged."""
    path = folder / CLIENT_SCORES
    try:
        text = read_text_bytes(path).decode()
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        head = _checked(next(reader, []))
        return [_score(head, cells) for cells in reader]
    except FileNotFoundError:
        return []
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a copy") from error


def _checked(head: list[str]) -> list[str]:
    """Return the first line. ValueError where its columns are others."""
    if tuple(head[: len(FACTS)]) != FACTS or not set(head[len(FACTS) :]) <= MEASURES.keys():
        raise ValueError(f"columns {', '.join(head)[:100]!r}")
    return head


def _score(head: Sequence[str], cells: Sequence[str]) -> ClientScore:
    """Return a line. ValueError where it is none."""
    filled = dict(zip(head, cells, strict=True))
    values = {name: float(cell) for name, cell in filled.items() if name not in FACTS and cell}
    if not all(0 <= value <= 1 for value in values.values()) or has_controls(filled["name"]):
        raise ValueError(f"client {filled['client'][:20]}")
    return ClientScore(int(filled["client"]), filled["name"], int(filled["rows"]), values)


def names_without_scores(scores: Sequence[ClientScore]) -> list[str]:
    """Return the clients that no score counts: they have no test row, or none with a known class."""
    return [score.name or str(score.client) for score in scores if not score.values]


def worst_first(scores: Sequence[ClientScore], measure: str) -> list[ClientScore]:
    """Return the clients by a measure, the worst first; those without it come last."""
    return sorted(scores, key=lambda score: (score.values.get(measure, math.inf), score.client))
