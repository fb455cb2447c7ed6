"""What each part of Anchor is worth, and what others would add: macro F1 on validation rows, in settings of the suite.

    ANCHORFL_DATA=data python -m benchmarks.anchor_ablation anchor-runs            # what is missing; then the table
    ANCHORFL_DATA=data python -m benchmarks.anchor_ablation anchor-runs --show     # the table of what is there

A figure is the mean of the last five rounds, in percent, over the seeds; the test split is not scored. A row's options
are Anchor's but for those that it names; parts that Anchor does without are in ``anchor_parts``. Their names come from
a text encoder (``make encoder``).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import anchorfl
from anchorfl.pipeline.config.presets import shipped
from anchorfl.pipeline.storage.run_record import read_records
from benchmarks.minilm_concepts import PACKAGE

MISSING = "suite-digits-missing"
"""The one setting of these in which labels are missing."""
SINGLE = (
    "suite-digits-masks-2", "suite-digits-skew-masks", MISSING, "suite-digits-one-class", "suite-r8-uncovered",
)  # fmt: skip
MULTI = ("suite-scene-masks-2", "suite-yeast-masks-2", "suite-es-categories")
SETTINGS = (*SINGLE[:-1], *MULTI, SINGLE[-1])
SKEWED = ("suite-digits-skew-0.1", "suite-ham10000-skew-0.05", "suite-ham10000-skew-0.1", "suite-pbc-skew-0.05")
"""Every row has its label, and counts are skewed: nothing is expected there."""
ALONE = "suite-scene-one-class"
"""A client a class, several classes a row: their correlation can be collected."""
EVERY = (*SETTINGS, *SKEWED, ALONE)
NAMED = tuple(setting for setting in SETTINGS if "yeast" not in setting)
"""Those whose classes have names: yeast's are numbered."""
OPEN = tuple(setting for setting in SETTINGS if "one-class" not in setting)
"""Those in which some row of a client has no label, or not all of them."""
NAMES = {"class_embeddings.init": "language_model"}
"""``main`` adds the encoder, all-MiniLM-L6-v2."""
PARTS = "benchmarks.anchor_parts"


class Row(NamedTuple):
    """Anchor with other options."""

    options: Mapping[str, Any] = MappingProxyType({})
    settings: tuple[str, ...] = SETTINGS
    """Those in which they change something."""


WITHOUT = {
    "Anchor": Row(settings=(*SETTINGS, *SKEWED, ALONE)),
    "no expected labels": Row({"method.expected": 0.0}),
    "nothing certain": Row({"method.certain": 0.0}, SINGLE),
    "no shares": Row({"method.shares": False}, (MISSING,)),
    "plain cross-entropy": Row({"method.gamma": 0.0}, (*SINGLE, *SKEWED)),
    "no control variates": Row({"method.control_variates": False}, (*SETTINGS, *SKEWED)),
    "labels alone": Row(
        {"method.expected": 0.0, "method.certain": 0.0, "method.gamma": 0.0, "method.control_variates": False},
        (*SETTINGS, *SKEWED),
    ),
}
WITH = {
    "class embeddings from names": Row(NAMES, NAMED),
    "from names, and frozen": Row(NAMES | {"method.name": f"{PARTS}:Frozen"}, NAMED),
    "random and frozen": Row({"method.name": f"{PARTS}:Frozen"}),
    "random, through a layer": Row({"class_embeddings.width": 384}, NAMED),
    "from names, by adapters": Row(NAMES | {"class_embeddings.lora_rank": 4, "method.name": f"{PARTS}:Adapted"}, NAMED),
    "pulled back to names": Row(NAMES | {"method.name": f"{PARTS}:Pulled"}, NAMED),
    "from names, and slow": Row(NAMES | {"method.name": f"{PARTS}:Slow"}, NAMED),
    "spread out by the server": Row({"method.name": f"{PARTS}:Spread"}, (*SETTINGS, ALONE)),
    "spread out by correlation": Row({"method.name": f"{PARTS}:SpreadApart"}, (ALONE,)),
    "a simplex": Row({"method.name": f"{PARTS}:Simplex"}, SINGLE),
    "full weight of expected labels": Row({"method.name": f"{PARTS}:Sure"}),
    "pseudo-labels for expected ones": Row({"method.name": f"{PARTS}:Pseudo", "method.expected": 0.0}),
    "pseudo-labels beside them": Row({"method.name": f"{PARTS}:Pseudo"}),
    "pseudo-labels by shares": Row({"method.name": f"{PARTS}:ByShare", "method.expected": 0.0}, OPEN),
    "a mean over pseudo-labels alone": Row({"method.name": f"{PARTS}:OwnMean", "method.expected": 0.0}, OPEN),
    "prototypes' tags beside them": Row({"method.name": f"{PARTS}:Tagged"}, MULTI),
    "logits adjusted by known shares": Row({"method.name": f"{PARTS}:Adjusted"}, MULTI),
    "expected labels that grow": Row({"method.name": f"{PARTS}:Growing"}),
    "class rows of those who know": Row({"method.name": f"{PARTS}:RowsOfKnowing"}),
    "corrections as far as they agree": Row({"method.name": f"{PARTS}:AgreeingOnly"}, OPEN),
    "corrections in full": Row({"method.name": f"{PARTS}:Full"}, (*SINGLE, *SKEWED)),
    "corrections of all weights": Row({"method.name": f"{PARTS}:Controlled"}, (*SETTINGS, *SKEWED)),
    "FedDyn for control variates": Row({"method.name": f"{PARTS}:Bent"}, (*SETTINGS, *SKEWED)),
    "FedDyn for them, alpha 0.1": Row({"method.name": f"{PARTS}:Bent", "method.alpha": 0.1}, (*SETTINGS, *SKEWED)),
    "of all weights, in full": Row({"method.name": f"{PARTS}:ControlledInFull"}, (*SETTINGS, *SKEWED)),
}
SEEDS = (4321, 4322, 4323)
LAST = 5
"""Rounds at the end of which the mean is taken."""


def runs(out: Path) -> Iterator[tuple[str, str, int, Path]]:
    """Yield setting, row, seed and folder of every run."""
    for setting in EVERY:
        for name, row in (WITHOUT | WITH).items():
            if setting in row.settings:
                for seed in SEEDS:
                    yield setting, name, seed, out / f"{setting}-{name.replace(' ', '-')}-{seed}"


def score(folder: Path) -> float | None:
    """Return the mean validation score of the last rounds; None where the run has not ended."""
    if not (folder / "result.json").exists():
        return None
    values = [record.metrics["validation/f1_macro"] for record in read_records(folder)[0]]
    return 100 * statistics.mean(values[-LAST:])


TABLES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "without": ([*WITHOUT], SETTINGS),
    "with": (["Anchor", *WITH], SETTINGS),
    "skewed": ([name for name, row in (WITHOUT | WITH).items() if {*SKEWED} <= {*row.settings}], SKEWED),
    "alone": ([name for name, row in (WITHOUT | WITH).items() if ALONE in row.settings], (ALONE,)),
}
"""Table -> its rows and settings."""


def table(out: Path, of: str) -> str:
    """Return one of ``TABLES`` as Markdown; rows without a run are left out."""
    rows, settings = TABLES[of]
    found: dict[tuple[str, str], list[float]] = {}
    for setting, name, _, folder in runs(out):
        if (value := score(folder)) is not None:
            found.setdefault((setting, name), []).append(value)
    shown = {federation: data for data, federation in shipped().papers["suite"].data.items()}
    lines = [f"| | {' | '.join(shown[setting] for setting in settings)} |", "|---" * (1 + len(settings)) + "|"]
    for name in rows:
        cells = [found.get((setting, name), []) for setting in settings]
        texts = [f"{statistics.mean(v):.1f} ± {statistics.stdev(v):.1f}" if len(v) > 1 else "-" for v in cells]
        if any(cells):
            lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--rows", nargs="+", choices=WITHOUT | WITH, default=[*WITHOUT, *WITH], help="rows to train")
    parser.add_argument("--settings", nargs="+", choices=EVERY, default=EVERY, help="settings to train in")
    options = parser.parse_args()
    for setting, name, seed, folder in runs(options.out):
        asked = not options.show and name in options.rows and setting in options.settings
        if asked and score(folder) is None:
            chosen = {"seed": seed, "cluster.executor": "serial", "tracking.uri": "none", "evaluation.test": "never"}
            part = (WITHOUT | WITH)[name].options
            if part.items() >= NAMES.items():
                chosen["class_embeddings.encoder"] = str(import_module(PACKAGE).get_model_path())
            anchorfl.run(f"{setting}/anchor", {**part, **chosen}, folder=folder)
    print(*(table(options.out, name) for name in TABLES), sep="\n\n")


if __name__ == "__main__":
    main()
