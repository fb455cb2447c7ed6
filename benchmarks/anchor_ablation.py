"""What each part of Anchor is worth: macro F1 on validation rows with and without it, in settings of the suite.

    ANCHORFL_DATA=data python -m benchmarks.anchor_ablation anchor-runs            # what is missing; then the table
    ANCHORFL_DATA=data python -m benchmarks.anchor_ablation anchor-runs --show     # the table of what is there

A figure is the mean of the last five rounds, in percent, over the seeds; the test split is not scored. A row's options
are Anchor's but for those that it names.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import anchorfl
from anchorfl.pipeline.config.presets import shipped
from anchorfl.pipeline.storage.run_record import read_records

SETTINGS = (
    "suite-digits-masks-2", "suite-digits-skew-masks", "suite-digits-missing", "suite-digits-one-class",
    "suite-scene-masks-2", "suite-yeast-masks-2", "suite-r8-uncovered",
)  # fmt: skip
ROWS = {
    "Anchor": {},
    "no expected labels": {"method.expected": 0.0},
    "nothing certain": {"method.certain": 0.0},
    "no shares": {"method.shares": False},
    "plain cross-entropy": {"method.gamma": 0.0},
    "no control variates": {"method.control_variates": False},
    "labels alone": {
        "method.expected": 0.0, "method.certain": 0.0, "method.gamma": 0.0, "method.control_variates": False,
    },
}  # fmt: skip
MISSING = "suite-digits-missing"
"""The one setting of these in which labels are missing."""
SEEDS = (4321, 4322, 4323)
LAST = 5
"""Rounds at the end of which the mean is taken."""


def runs(out: Path) -> Iterator[tuple[str, str, int, Path]]:
    """Yield setting, row, seed and folder of every run whose part is of use in its setting; multi-label, that is
    ``expected`` alone.
    """
    for setting in SETTINGS:
        multi = setting.startswith(("suite-scene", "suite-yeast"))
        for name, options in ROWS.items():
            of_use = not options.keys() - {"method.expected"} if multi else True
            if of_use and (name != "no shares" or setting == MISSING):
                for seed in SEEDS:
                    yield setting, name, seed, out / f"{setting}-{name.replace(' ', '-')}-{seed}"


def score(folder: Path) -> float | None:
    """Return the mean validation score of the last rounds; None where the run has not ended."""
    if not (folder / "result.json").exists():
        return None
    values = [record.metrics["validation/f1_macro"] for record in read_records(folder)[0]]
    return 100 * statistics.mean(values[-LAST:])


def table(out: Path) -> str:
    """Return the table as Markdown."""
    found: dict[tuple[str, str], list[float]] = {}
    for setting, name, _, folder in runs(out):
        if (value := score(folder)) is not None:
            found.setdefault((setting, name), []).append(value)
    shown = {federation: data for data, federation in shipped().papers["suite"].data.items()}
    lines = [f"| | {' | '.join(shown[setting] for setting in SETTINGS)} |", "|---" * (1 + len(SETTINGS)) + "|"]
    for name in ROWS:
        cells = [found.get((setting, name), []) for setting in SETTINGS]
        texts = [f"{statistics.mean(v):.1f} ± {statistics.stdev(v):.1f}" if len(v) > 1 else "-" for v in cells]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    for setting, name, seed, folder in runs(options.out):
        if not options.show and score(folder) is None:
            chosen = {"seed": seed, "cluster.executor": "serial", "tracking.uri": "none", "evaluation.test": "never"}
            anchorfl.run(f"{setting}/anchor", ROWS[name] | chosen, folder=folder)
    print(table(options.out))


if __name__ == "__main__":
    main()
