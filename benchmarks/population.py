"""Seconds and memory by population: 100 clients a round out of a thousand, and out of ten thousand or more.

    python -m benchmarks.population [--populations 1000 10000] [--rounds 40] [--state keep]

A made-up table of 20 rows a client, each client a subject of its own; FedAvg trains a small network for one epoch.
Every population is a process of its own with a Ray of its own. Printed: seconds to prepare and to start, seconds of a
round (median without the first two), memory (PSS) of all processes after five rounds and after the last, files and
megabytes of the prepared data.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.prepare import make_run_spec, resolve_options
from anchorfl.pipeline.training.sampling import select
from anchorfl.tasks.options import TaskOptions
from benchmarks.readings import MEGABYTE, pss, reading_of, report

ROWS, FEATURES, CLASSES, CHOSEN, ACTORS = 20, 32, 10, 100, 2


def write(path: Path, clients: int) -> None:
    """Write the rows of ``clients`` subjects, and a thousand test rows of one more."""
    rng, rows = np.random.default_rng(0), clients * ROWS + 1000
    subject = np.minimum(np.arange(rows) // ROWS, clients)
    label = rng.integers(CLASSES, size=rows)
    values = rng.normal(size=(rows, FEATURES)).astype(np.float32) + np.eye(CLASSES, FEATURES, dtype=np.float32)[label]
    columns: dict[str, Any] = {f"f{i}": values[:, i] for i in range(FEATURES)}
    columns |= {"label": [f"class {c}" for c in label], "who": [f"client {s}" for s in subject]}
    columns["part"] = np.where(np.arange(rows) < clients * ROWS, "train", "test")
    pq.write_table(pa.table(columns), path)


def experiment(folder: Path, clients: int, state: Literal["keep", "reset"]) -> Experiment:
    return Experiment(
        task=TaskOptions(
            file=str(folder / "made.parquet"), label_columns="label", client_column="who", split_column="part",
            validation=0.0,
            cache=str(folder / "cache"), clients=clients,
        ),
        method=METHODS["fedavg"](),
        model=ModelOptions(width=64),
        federation=FederationOptions(clients_per_round=CHOSEN, epochs=1),
        optimizer=OptimizerOptions(state=state),
        tracking=TrackingOptions(uri="none"),
    )  # fmt: skip


def one(clients: int, rounds: int, state: Literal["keep", "reset"]) -> None:
    """Train one population in this process, and report it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "made.parquet", clients)
        began = time.perf_counter()
        e = resolve_options(experiment(folder, clients, state), lambda line: None)
        per_actor = -(-e.task.clients // ACTORS)
        e = dataclasses.replace(e, cluster=ClusterOptions(executor="ray", clients_per_actor=per_actor))
        ray_cluster.start(e.cluster)
        run_spec = make_run_spec(e, lambda line: None)
        prepared = time.perf_counter() - began
        executor, taken, memory = RayExecutor(run_spec), [], {}
        for round_ in range(1, rounds + 1):
            chosen = select(e.task.clients, CHOSEN, round_, e.seed)
            began = time.perf_counter()
            outcome = executor.round(round_, chosen, lambda busy, done, failed: None)
            taken.append(time.perf_counter() - began)
            if outcome.failed:
                raise RuntimeError(f"clients failed: {outcome.failed}")
            if round_ in (5, rounds):
                memory[round_] = pss()
        files = [path.stat().st_size for path in (folder / "cache").rglob("*") if path.is_file()]
        sizes = {"files": len(files), "bytes": sum(files)}
        report(e.task.clients, prepared=prepared, seconds=taken, pss=memory, **sizes)
        executor.close()
        ray_cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--populations", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--state", default="reset", choices=["keep", "reset"], help="of a client's Adam")
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one, options.rounds, options.state)
        return
    for clients in options.populations:
        words = ["--one", str(clients), "--rounds", str(options.rounds), "--state", options.state]
        got = reading_of([sys.executable, "-m", "benchmarks.population", *words])
        early, late = (got["pss"][key] / MEGABYTE for key in ("5", str(options.rounds)))
        print(
            f"{got['case']:>7,} clients: prepared in {got['prepared']:.1f} s ({got['files']:,} files,"
            f" {got['bytes'] / MEGABYTE:.0f} MB), first round {got['seconds'][0]:.1f} s, then"
            f" {1e3 * statistics.median(got['seconds'][2:]):.0f} ms; memory {early:,.0f} MB after 5 rounds,"
            f" {late:,.0f} MB after {options.rounds}",
            flush=True,
        )


if __name__ == "__main__":
    main()
