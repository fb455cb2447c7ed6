"""Time and peak memory of ranking a split of AmazonCat-13K's shape: 306,782 rows, 13,330 classes, 5 labels a row.

    python -m benchmarks.rankings [--rows 306782] [--classes 13330]

The scores are one made-up chunk of rows again and again, so that a model's time and memory are not in the figures; the
labels are made up and held sparsely, as a task's are.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from anchorfl.pipeline.execution.system_metrics import peak_resident
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.metrics.ranking import Ranking, propensities

PER_ROW = 5
CHUNK = 512


def made_up(rows: int, classes: int) -> Labels:
    """Return ``PER_ROW`` classes a row, all different."""
    rng = np.random.default_rng(0)
    first_N1 = rng.integers(classes, size=(rows, 1))
    step_N1 = rng.integers(1, max(2, classes // PER_ROW), size=(rows, 1))
    class_NL = (first_N1 + step_N1 * np.arange(PER_ROW)) % classes
    return Labels(np.sort(class_NL).astype(np.int32).ravel(), np.arange(rows + 1) * PER_ROW, classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=306_782)
    parser.add_argument("--classes", type=int, default=13_330)
    options = parser.parse_args()
    labels = made_up(options.rows, options.classes)
    score_BC = np.random.default_rng(1).standard_normal((CHUNK, options.classes), dtype=np.float32)
    counts_C = np.bincount(labels.class_P, minlength=options.classes)
    ranking = Ranking(options.rows, options.classes, propensities(counts_C, options.rows))
    began = time.process_time()
    for start in range(0, options.rows, CHUNK):
        part = labels.take(np.arange(start, min(start + CHUNK, options.rows)))
        ranking.add(score_BC[: len(part)], part)
    scores = ranking.scores()
    used = peak_resident() / 2**20
    print(f"{time.process_time() - began:.1f} CPU s, peak of the process {used:.0f} MiB, {scores.line}")


if __name__ == "__main__":
    main()
