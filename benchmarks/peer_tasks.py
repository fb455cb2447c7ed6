"""Rounds of two tasks that peers publish times for, ours beside pfl-research where that is installed.

    python -m benchmarks.peer_tasks [--pfl pfl/bin/python] [--repeats 3] [--rounds 6]

The tasks, their network and the made-up images are in ``peer_network.py``; the same clients take part in the same
rounds everywhere. Per way, in a process of its own and one after the other: seconds of a round (least and median,
without the first) and its CPU time over all processes. FLUTE itself is on no package index.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.heads import LinearHead
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.arrays.ragged import IntLists
from anchorfl.tasks.contract import ClientData, Objective
from anchorfl.tasks.ingest.manifest import ClientCounts
from anchorfl.tasks.ingest.prepared import Prepared, Split
from benchmarks.bench_engine import cpu_seconds
from benchmarks.no_op import no_op_spec
from benchmarks.peer_network import LR, TASKS, WIDTH, clients_of, encoder, images, rows_of
from benchmarks.readings import MEGABYTE, pss, reading_of, report

PFL = Path(__file__).with_name("peer_tasks_pfl.py")
BASE = 8
"""Clients of the prepared data whose test and validation rows stand for all."""
WAYS = {"serial": 0, "forked": 2}
"""Executor -> workers."""


@dataclass(frozen=True)
class MadeUp(Prepared):
    """Prepared data whose clients are made up when they are read."""

    task: str = ""

    @classmethod
    def of(cls, prepared: Prepared, name: str) -> MadeUp:
        task = TASKS[name]
        rows = tuple(rows_of(task, client) for client in range(task.population))
        manifest = replace(
            prepared.manifest, class_names=tuple(f"class {c}" for c in range(task.outputs)), examples=rows,
            counts=ClientCounts(IntLists.of([[0]] * len(rows)), IntLists.of([n] for n in rows)),
            classes=IntLists.of([range(task.outputs)] * len(rows)),
        )  # fmt: skip
        return cls(prepared.folder, manifest, task=name)

    def _owner_of_split(self, name: Split) -> int:
        return BASE + (name == "validation")

    def client(self, client: int, objective: Objective) -> ClientData:
        x, label_N = images(TASKS[self.task], client)
        y_NC = torch.from_numpy(np.eye(TASKS[self.task].outputs, dtype=np.float32)[label_N])
        ones_NC = torch.ones_like(y_NC)
        return ClientData(torch.from_numpy(x), y_NC, ones_NC, objective.weights(y_NC, ones_NC))


@dataclass(frozen=True)
class PeerSpec(RunSpec):
    """The run of a peer's task."""

    task: str = ""

    def data(self) -> Prepared:
        return MadeUp.of(super().data(), self.task)

    def model(self) -> Classifier:
        return Classifier(encoder(TASKS[self.task]), LinearHead(WIDTH, TASKS[self.task].outputs), MaskSource())


def spec_of(name: str, way: str) -> PeerSpec:
    """Return the run of a task in a way."""
    task = TASKS[name]
    base = no_op_spec(BASE, BASE, "0.1", forks=WAYS[way])
    e = replace(
        base.experiment, method=FedAvg(),
        task=replace(base.experiment.task, clients=task.population),
        optimizer=OptimizerOptions(
            name="sgd", lr=LR, batch_size=task.batch, skip_zero_rows=False, microbatch_tokens=0, state="reset"
        ),
        federation=replace(base.experiment.federation, clients_per_round=task.selected, epochs=1),
    )  # fmt: skip
    return PeerSpec(e, base.prepared, base.vectors_CP, task=name)


def measure(name: str, way: str, rounds: int) -> None:
    """Report the seconds of every round."""
    task, executor = TASKS[name], executor_for(spec_of(name, way))
    seconds, used = list[float](), list[float]()
    try:
        for round_ in range(1, rounds + 1):
            began, cpu = time.perf_counter(), sum(cpu_seconds().values())
            executor.round(round_, clients_of(task, round_), lambda busy, done, failed: None)
            seconds.append(time.perf_counter() - began)
            used.append(sum(cpu_seconds().values()) - cpu)
        report(way, seconds=seconds, cpu=used, pss=pss())
    finally:
        executor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfl", default="", help="Python of an environment with pfl-research")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--one", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(*options.one, options.rounds)
        return
    rounds = str(options.rounds)
    print("| | round, least, median (s) | CPU (s) | memory, PSS (MB) |\n|---|---|---|---|")
    for name in TASKS:
        commands = {
            way: [sys.executable, "-m", "benchmarks.peer_tasks", "--rounds", rounds, "--one", name, way] for way in WAYS
        }
        if options.pfl:
            commands["pfl-research"] = [options.pfl, str(PFL), name, rounds]
        readings: dict[str, list[dict[str, Any]]] = {way: [] for way in commands}
        for _ in range(options.repeats):
            for way, command in commands.items():
                readings[way].append(reading_of(command))
        for way, each in readings.items():
            seconds = [s for one in each for s in one["seconds"][1:]]
            cpu = statistics.median(s for one in each for s in one["cpu"][1:])
            memory = statistics.median(one["pss"] for one in each) / MEGABYTE
            least, median = min(seconds), statistics.median(seconds)
            print(f"| {name}, {way} | {least:.2f}, {median:.2f} | {cpu:.2f} | {memory:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
