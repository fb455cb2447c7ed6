"""FedALC and the label correlation of VOC 2007, from the image lists alone: the images are not needed.

    python -m benchmarks.voc_label_lists FOLDER [--out runs/voc-lists] [--noise 0.7] [--rounds 300]
    python -m benchmarks.voc_label_lists FOLDER --alphas 0.001,0.003,0.01,0.1,1

FOLDER: that of ``VOC2007/ImageSets/Main``, or the archive of these lists. The labels, their counts and the split
(trainval, test) are the real ones; **the inputs are made up**: 20 numbers per image, 1 where the class is there and 0
where it is not, with normal noise. So the scores say nothing about images; the class rows, which see the clients' pull
and the server's push, can be laid beside the correlation of the labels. Trains FedALC, FedAwS and FedALC-fixed with one
client per class and writes the picture of ``anchorfl diagnose --parts embeddings`` for each. With ``--alphas``:
FedALC-fixed at each attraction, seeds 0, 1, 2, by the scores on validation rows (a quarter of the training rows).
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.evaluation import EvaluationOptions
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.diagnosis.diagnose import DiagnoseOptions, diagnose
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import resolve_options
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.images.voc import ABSENT, CLASSES, SETS, labels_of
from anchorfl.tasks.options import TaskOptions

SHARED = {"weighting": "samples", "server": "adam", "server_lr": 0.01, "server_eps": 1e-9}
METHOD_OPTIONS = {
    "fedalc": SHARED | {"regularizer": "hinge_const", "neighbours": 19, "lambda_": 200.0},
    "fedaws": SHARED | {"regularizer": "hinge_const", "neighbours": 19, "lambda_": 200.0},
    "fedalc-fixed": SHARED,
}


def write(lists: Path, path: Path, noise: float) -> None:
    """Write the table: a label column per class, an input column per class, the split."""
    table = labels_of(lists, SETS[2007, "trainval"], 2007, BadRows(False))
    y_NC = (np.stack(table["value"].to_numpy()) != ABSENT).astype(np.int64)  # difficult objects are present
    x_NC = y_NC + noise * np.random.default_rng(0).standard_normal(y_NC.shape)
    columns = {f"label {name}": y_NC[:, c] for c, name in enumerate(CLASSES)}
    columns |= {f"input {c}": x_NC[:, c].astype(np.float32) for c in range(len(CLASSES))}
    pq.write_table(pa.table(columns | {"split": table["split"]}), path)


def experiment(table: Path, name: str, rounds: int) -> Experiment:
    return Experiment(
        task=TaskOptions(
            file=str(table),
            label_columns="label *",
            split_column="split",
            partition="one_class",
            clients=0,
            validation=0.05,
        ),
        method=METHODS[name](**METHOD_OPTIONS[name]),
        model=ModelOptions(width=64, feedforward=128, dropout=0.1),
        federation=FederationOptions(rounds=rounds, clients_per_round=0, epochs=1, batched_clients=True),
        optimizer=OptimizerOptions(name="sgd", lr=0.1, batch_size=0),
        evaluation=EvaluationOptions(metrics="ranking", every=10),
        cluster=ClusterOptions(executor="serial"),
        tracking=TrackingOptions(uri="none"),
    )


def attraction(e: Experiment, alpha: float, out: Path) -> None:
    """Print the validation scores of FedALC-fixed with this alpha: mean and sd over the seeds."""
    scores = []
    for seed in (0, 1, 2):
        folder = out / f"alpha-{alpha:g}-s{seed}"
        method, task = replace(e.method, alpha=alpha), replace(e.task, validation=0.25)
        e = resolve_options(replace(e, method=method, task=task, seed=seed, output=str(folder)))
        validation = run(e, folder, lambda line: None).scores["validation"]
        scores.append([100 * validation[name] for name in ("map", "p_at_1", "p_at_3")])
    means, deviations = np.mean(scores, 0), np.std(scores, 0, ddof=1)
    both = zip(("mAP", "P@1", "P@3"), means, deviations, strict=True)
    print(f"alpha {alpha:g}: " + ", ".join(f"{name} {mean:.2f} ± {sd:.2f}" for name, mean, sd in both), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/voc-lists"))
    parser.add_argument("--noise", type=float, default=0.7)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--alphas", type=lambda text: [float(word) for word in text.split(",")], default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        lists = options.folder
        if lists.is_file():
            with tarfile.open(lists) as tar:
                tar.extractall(name, filter="data")
            lists = Path(name)
        options.out.mkdir(parents=True, exist_ok=True)
        table = options.out / "voc2007-lists.parquet"
        write(lists, table, options.noise)
    for alpha in options.alphas:
        attraction(experiment(table.resolve(), "fedalc-fixed", options.rounds), alpha, options.out)
    for method in () if options.alphas else METHOD_OPTIONS:
        e = resolve_options(experiment(table.resolve(), method, options.rounds))
        folder = options.out / method
        result = run(replace(e, output=str(folder)), folder, lambda line: None)
        scores = result.scores["test"]
        print(f"{method}: P@1 {100 * scores['p_at_1']:.2f}, mAP {100 * scores['map']:.2f} (made-up inputs)")
        for line in diagnose(folder, DiagnoseOptions(parts=("embeddings",)), lambda line: None):
            print(line)


if __name__ == "__main__":
    main()
