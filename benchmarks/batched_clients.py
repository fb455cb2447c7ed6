"""A round of thousands of one-class clients: computed at once, and through explicit client actors.

    python -m benchmarks.batched_clients                 # EURLex-4K's shape, both ways, a narrow network
    python -m benchmarks.batched_clients --shape amazoncat-13k --rows 1186239 --width 512 --hidden 1024 \
        --piece 16384 --only-batched

Made-up files of the set's width are written and prepared, one client per label; rounds start from the same weights.
Three rounds each, of which the median counts; explicit ones follow on one that starts the actors. All
explicit updates meet at the server, 4 x parameters x clients bytes, so the network is narrow where both are run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.evaluation import EvaluationOptions
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.executor import Executor
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.synthetic.xc import SIZES, write_rows


def experiment(options: argparse.Namespace, folder: Path) -> Experiment:
    size = SIZES[options.shape][1]
    return Experiment(
        task=TaskOptions(
            name=options.shape, root=str(folder), cache=str(folder / "cache"), partition="one_class",
            clients=size.labels, validation=0.0,
        ),
        method=METHODS["fedalc"](weighting="samples", neighbours=options.neighbours),
        model=ModelOptions(width=options.width, feedforward=options.hidden, dropout=0.0, embedding_std=0.05),
        federation=FederationOptions(
            rounds=3, clients_per_round=size.labels, epochs=1, batched_clients=True, batch_rows=options.piece
        ),
        optimizer=OptimizerOptions(name="sgd", lr=0.1, batch_size=0),
        evaluation=EvaluationOptions(metrics="ranking"),
        cluster=ClusterOptions(executor="serial"),
        tracking=TrackingOptions(uri="none"),
    )  # fmt: skip


def write(options: argparse.Namespace, folder: Path) -> None:
    stem, size = SIZES[options.shape]
    size = replace(size, extra=options.labels_per_row - 1)
    write_rows(folder / f"{stem}train.txt", options.rows, size, np.random.default_rng(0))
    write_rows(folder / f"{stem}test.txt", 1000, size, np.random.default_rng(1))


def rounds(executor: Executor, clients: int, count: int) -> list[float]:
    seconds = []
    for round_ in range(1, count + 1):
        began = time.perf_counter()
        outcome = executor.round(round_, range(clients), lambda busy, done, failed: None)
        seconds.append(time.perf_counter() - began)
        assert len(outcome.answered) == clients, outcome.failed
    return seconds


def peak() -> float:
    """Return the most megabytes that this process held since the last call (Linux)."""
    most = system_metrics.peak("process")["process"]
    Path("/proc/self/clear_refs").write_text("5")
    return most


def explicit(run_spec: RunSpec) -> Executor:
    from anchorfl.pipeline.execution.ray_executor import RayExecutor

    experiment = run_spec.experiment
    federation = replace(experiment.federation, batched_clients=False)
    return RayExecutor(
        replace(run_spec, experiment=replace(experiment, federation=federation, cluster=ClusterOptions()))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="eurlex-4k", choices=list(SIZES))
    parser.add_argument("--rows", type=int, default=15_539)
    parser.add_argument("--labels-per-row", type=float, default=5.3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--neighbours", type=int, default=10)
    parser.add_argument("--piece", type=int, default=1024)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--only-batched", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write(options, folder)
        e = experiment(options, folder)
        began = time.perf_counter()
        run_spec = make_run_spec(e, print)
        print(f"prepared in {time.perf_counter() - began:.1f} s, peak {peak():.0f} MB")
        began = time.perf_counter()
        batched = executor_for(run_spec)
        print(f"{options.rows} rows of {e.task.clients} clients batched in {time.perf_counter() - began:.1f} s")
        parameters = sum(p.numel() for p in batched.model.parameters())  # type: ignore[attr-defined]
        seconds = rounds(batched, e.task.clients, 3)
        once = statistics.median(seconds)
        print(f"batched: {once:.2f} s a round (of {', '.join(f'{s:.2f}' for s in seconds)}), {parameters} parameters")
        print(f"peak of executor and rounds: {peak():.0f} MB")
        if options.only_batched:
            return
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray_cluster.start(ClusterOptions())
        actors = explicit(run_spec)
        warm, *after = rounds(actors, e.task.clients, 4)
        taken = statistics.median(after)
        each = ", ".join(f"{s:.1f}" for s in after)
        print(f"explicit actors: {taken:.1f} s a round (of {each}; the first, with their start: {warm:.1f} s)")
        print(f"ratio: {taken / once:.0f}")
        two = executor_for(run_spec)
        rounds(two, e.task.clients, 4)
        got, want = two.snapshot(), actors.snapshot()
        gaps = {k: float((got[k].double() - want[k].double()).abs().max()) for k in want if k.startswith("weights/")}
        print(f"largest difference of a weight after four rounds: {max(gaps.values()):.1e}")
        actors.close()
        ray_cluster.stop()


if __name__ == "__main__":
    main()
