"""Confusion matrix of the global model: true class by decision. Shape suffixes: N test rows, C classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchorfl.pipeline.diagnosis.analysis import Analysis
from anchorfl.pipeline.diagnosis.figures import draw_confusion
from anchorfl.pipeline.diagnosis.result import PartResult, write_table
from anchorfl.pipeline.training.evaluation import logits_of
from anchorfl.tasks.metrics.classification import count_confusion


def confusion(analysis: Analysis, out: Path) -> PartResult:
    """Write ``confusion.csv``, test rows by true class and decision, and ``confusion.png``, shares of the true class.

    After the last completed round; for single-label tasks.
    """
    if analysis.prepared.manifest.kind != "single":
        return PartResult({}, ("confusion: classes of this task do not exclude each other",))
    server = analysis.at(analysis.last.round)
    rows = analysis.prepared.split("test", server.objective)
    known_N = (rows.y_NC * rows.known_NC).any(-1)
    server.model.load_state_dict(server.state.weights)
    predicted_N = logits_of(server.model, rows).argmax(-1)[known_N]
    count_CC = count_confusion(rows.y_NC[known_N].argmax(-1).numpy(), predicted_N.numpy(), len(analysis.class_names))
    table = ([name, *line] for name, line in zip(analysis.class_names, count_CC.tolist(), strict=True))
    write_table(out / "confusion.csv", ("true class", *analysis.class_names), table)
    draw_confusion(count_CC, analysis.class_names, out / "confusion.png")
    off_CC = count_CC - np.diag(np.diag(count_CC))
    true, taken = np.unravel_index(int(off_CC.argmax()), off_CC.shape)
    right = 100 * np.trace(count_CC) / max(1, count_CC.sum())
    summary = f"confusion after round {analysis.last.round}: {right:.1f} % of {count_CC.sum()} test rows right"
    if off_CC.any():
        names = analysis.class_names
        summary += f"; most often {names[true]} is predicted as {names[taken]} ({off_CC[true, taken]} rows)"
    return PartResult({}, (summary,))
