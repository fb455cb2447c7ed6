"""The default of a table of one's own, FedAvg and FedAlign, and logistic regression on all rows: scene and yeast.

Each is written as a user would bring it, in four forms: ``k2`` and ``k3``, ten clients that identify two or three
classes; ``own``, eight clients by a column; ``half``, these with half of the training labels empty. Macro F1 of the
test split, mean and standard deviation over seeds; nothing is chosen by it. Records go to a JSON lines file, so that
an interrupted run of this goes on.

    python -m benchmarks.own_tables --records runs/own_tables.jsonl [--sets scene] [--seeds 0 1 2] [--runs default]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler

from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tuning.cli import main as anchorfl

FORMS = {
    "k2": ["--task.classes_per_client", "2"],
    "k3": ["--task.classes_per_client", "3"],
    "own": ["--task.client_column", "site"],
    "half": ["--task.client_column", "site"],
}
"""Form of a table -> what its user types beside file, labels and split."""
RUNS = {"default": [], "fedavg": ["--method.name", "fedavg"], "fedalign": ["--method.name", "fedalign"]}
"""What is compared -> how it is asked for."""
CENTRAL = "logistic regression, all clients' rows"
CLIENTS, EMPTY = 8, 0.5
"""Clients of ``own`` and ``half``; share of the training labels that are empty in ``half``."""

Floats = npt.NDArray[np.float64]


def arrays(name: str) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Return features [N, F], labels [N, C] and test rows (bool [N]) of a data set of the Mulan authors."""
    task = find_task(name)
    table = task.read(raw_folder(task, TaskOptions(name=name)), TaskOptions(name=name))
    x = [np.asarray(pairs).reshape(-1, 2) for pairs in table[task.payload].to_pylist()]
    x_NF = np.zeros((len(x), int(max(row[:, 0].max(initial=0) for row in x))))
    y_NC = np.zeros((len(x), 1 + max(max(classes, default=0) for classes in table["labels"].to_pylist())))
    for i, (row, classes) in enumerate(zip(x, table["labels"].to_pylist(), strict=True)):
        x_NF[i, row[:, 0].astype(int) - 1] = row[:, 1]
        y_NC[i, classes] = 1
    return x_NF, y_NC, np.asarray(table["split"].to_pylist()) == "test"


def write_table(path: Path, form: str, x_NF: Floats, y_NC: Floats, test_N: npt.NDArray[np.bool_]) -> Floats:
    """Write the table of a form, and return its labels with NaN where they are empty."""
    rng = np.random.default_rng(0)
    site_N = rng.integers(0, CLIENTS, len(x_NF))
    y_NC = y_NC.copy()
    if form == "half":
        y_NC[(rng.random(y_NC.shape) < EMPTY) & ~test_N[:, None]] = np.nan
    columns = {f"x{i}": x_NF[:, i] for i in range(x_NF.shape[1])}
    columns |= {
        f"label_{c}": pa.array(y_NC[:, c], pa.int64(), from_pandas=True, safe=False) for c in range(y_NC.shape[1])
    }
    columns["split"] = np.where(test_N, "test", "train")
    if "--task.client_column" in FORMS[form]:
        columns["site"] = [f"site {s}" for s in site_N]
    pq.write_table(pa.table(columns), path)
    return y_NC


def central(x_NF: Floats, y_NC: Floats, test_N: npt.NDArray[np.bool_]) -> float:
    """Return the macro F1 of one logistic regression a class, on all training rows whose label is there."""
    scaled_NF = StandardScaler().fit(x_NF[~test_N]).transform(x_NF)
    scores = []
    for y_N in y_NC.T:
        train_N = ~test_N & ~np.isnan(y_N)
        model = LogisticRegression(class_weight="balanced", max_iter=5000).fit(scaled_NF[train_N], y_N[train_N])
        scores.append(f1_score(y_N[test_N], model.predict(scaled_NF[test_N]), zero_division=0))
    return float(np.mean(scores))


def score(run: str, form: str, file: Path, seed: int, folder: Path) -> float:
    """Return the test macro F1 of a run as ``anchorfl run`` makes it."""
    options = ["--task.file", str(file), "--task.label_columns", "label_*", "--task.split_column", "split"]
    options += [
        *FORMS[form],
        *RUNS[run],
        "--seed",
        str(seed),
        "--output",
        str(folder),
        "--task.cache",
        str(folder / "cache"),
    ]
    if anchorfl(["run", *options, "--cluster.executor", "serial", "--tracking.uri", "none"]):
        sys.exit(f"{run} on {file.name}, {form}, seed {seed} failed")
    return float(json.loads((folder / "result.json").read_text())["scores"]["test"]["f1_macro"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["scene", "yeast"])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS)
    asked = parser.parse_args()
    asked.records.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.records.read_text().splitlines() if asked.records.exists() else []
    done = {tuple(key): value for key, value in map(json.loads, lines)}
    for name in asked.sets:
        x_NF, y_NC, test_N = arrays(name)
        for form in asked.forms:
            with tempfile.TemporaryDirectory() as scratch:
                file = Path(scratch) / f"{name}-{form}.parquet"
                given_NC = write_table(file, form, x_NF, y_NC, test_N)
                for run, seed in [(CENTRAL, 0), *((run, seed) for seed in asked.seeds for run in asked.runs)]:
                    key = (name, form, run, seed)
                    if key not in done:
                        folder = Path(scratch) / f"{run}-{seed}"
                        done[key] = (
                            central(x_NF, given_NC, test_N) if run == CENTRAL else score(run, form, file, seed, folder)
                        )
                        with asked.records.open("a") as stream:
                            stream.write(json.dumps([key, done[key]]) + "\n")
    print("| set, form | " + " | ".join([*asked.runs, CENTRAL]) + " |\n|---" + "|---:" * (len(asked.runs) + 1) + "|")
    for name in asked.sets:
        for form in asked.forms:
            cells = []
            for run in asked.runs:
                scores = [100 * done[name, form, run, seed] for seed in asked.seeds]
                spread = f" ± {np.std(scores, ddof=1):.2f}" if len(scores) > 1 else ""
                cells.append(f"{np.mean(scores):.2f}{spread}")
            print(f"| {name}, {form} | {' | '.join(cells)} | {100 * done[name, form, CENTRAL, 0]:.2f} |")


if __name__ == "__main__":
    main()
