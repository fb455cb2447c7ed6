"""A federation in numbers, as papers' tables of data sets have it, beside what is published of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from anchorfl.pipeline import terminal
from anchorfl.pipeline.config.preset_files import STATISTICS
from anchorfl.pipeline.config.presets import shipped
from anchorfl.tasks.ingest.prepared import SERVER_SPLITS, Prepared, training_counts

WORDS = {
    "features": "features of a sparse row",
    "rows_per_client": "rows of a client, mean",
    "classes_per_client": "identified classes of a client, mean",
    "imbalance": "rows of the smallest class / the largest, all splits",
}
SHOWN = {name: WORDS.get(name, name.replace("_", " ")) for name in STATISTICS}
"""Statistics -> as they are shown."""


def statistics_of(data: Prepared) -> dict[str, float]:
    """Return the statistics of a federation, by ``SHOWN``. Training rows are those of clients, each once."""
    manifest = data.manifest
    training, count_C = training_counts(data)
    for split in SERVER_SPLITS:
        count_C = count_C + data.split_counts(split)
    largest = int(count_C.max(initial=0))
    return {
        "clients": len(manifest.examples),
        "classes": len(manifest.class_names),
        **({"features": math.prod(manifest.spec.shape)} if manifest.spec.kind == "sparse" else {}),
        "training_rows": training,
        "validation_rows": manifest.validation,
        "test_rows": manifest.test,
        "rows_per_client": float(np.mean(manifest.examples)),
        "classes_per_client": float(np.mean([len(classes) for classes in manifest.classes])),
        "imbalance": float(count_C.min(initial=largest) / largest) if largest else float("nan"),
    }


def published_statistics(preset: str) -> Mapping[str, float]:
    """Return what the paper of a shipped preset says of its data set; {} where it says nothing, or there is none."""
    found = shipped().presets.get(preset)
    if found is None or found.paper is None:
        return {}
    label = next(label for label, name in found.paper.data.items() if name == found.federation.name)
    label = found.paper.beside.get(label, label)
    both = found.paper.statistics
    return both.get(label, both.get(label.partition(",")[0], {}))


def statistics_table(data: Prepared, published: Mapping[str, float]) -> str:
    """Return the statistics as text, beside the published ones where there are some."""
    rows = [["", "here", *(["published"] if published else [])]]
    for name, value in statistics_of(data).items():
        beside = [_number(published[name]) if name in published else "-"] if published else []
        rows.append([SHOWN[name], _number(value), *beside])
    return terminal.table(rows, right=rows[0][1:])


def _number(value: float) -> str:
    """Return whole numbers with separators, others with four decimals below 1 and one above; a dash for NaN."""
    if math.isnan(value):
        return "-"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.4f}" if value < 1 else f"{value:,.1f}"
