"""Cost of a round by population and by clients per round: 10 to 100,000 clients, 1 to 10,000 of them in a round.

    python -m benchmarks.scale                        # the table, in forked workers; a quarter of an hour on two cores
    python -m benchmarks.scale --executor serial      # in one process
    python -m benchmarks.scale --picture scale.png    # and the curves

Clients load 1.94 MB of weights and send them back (``benchmarks/no_op.py``). A population shares the rows of a thousand
clients of the digits, so that it need not be prepared; every client has a file to read and a place in the manifest, all
the same. Per case, in a process of its own: seconds of the first round, in which every client's rows are read; CPU time
of all processes and seconds on the clock for a client of a later round, of clients that were there before; memory (PSS)
of all processes, and the driver's own peak.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.arrays.ragged import IntLists
from anchorfl.tasks.ingest.manifest import ClientCounts
from anchorfl.tasks.ingest.prepared import Prepared, Split
from benchmarks.bench_engine import cpu_seconds
from benchmarks.no_op import no_op_spec
from benchmarks.readings import MEGABYTE, pss, reading_of, report

BASE = 1000
"""Clients whose rows there are."""
CASES = [
    (population, selected)
    for population in (10, 100, 1_000, 10_000, 100_000)
    for selected in (1, 10, 100, 1_000, 10_000)
    if selected <= population
]
"""(population, clients of a round)."""
LATER = 3
"""Rounds after the first that are measured."""


@dataclass(frozen=True)
class Crowd(Prepared):
    """The prepared data of a thousand clients, as those of many more."""

    @classmethod
    def of(cls, prepared: Prepared, population: int) -> Crowd:
        manifest, times = prepared.manifest, -(-population // BASE)
        classes, counts = manifest.classes, manifest.counts
        many = IntLists.of((list(classes) * times)[:population])
        known = (IntLists.of((list(lists) * times)[:population]) for lists in (counts.classes, counts.rows))
        examples = (manifest.examples * times)[:population]
        return cls(prepared.folder, replace(manifest, examples=examples, classes=many, counts=ClientCounts(*known)))

    def _owner_of(self, client: int) -> int:
        return client % BASE

    def _owner_of_split(self, name: Split) -> int:
        return BASE + (name == "validation")


@dataclass(frozen=True)
class CrowdSpec(RunSpec):
    """A run of so many clients."""

    def data(self) -> Prepared:
        return Crowd.of(super().data(), self.experiment.task.clients)


def spec_of(population: int, selected: int, executor: str) -> CrowdSpec:
    """Return the run of a case."""
    base = no_op_spec(BASE, min(selected, BASE), "1.94", forks=0 if executor == "serial" else 2)
    e = replace(
        base.experiment,
        task=replace(base.experiment.task, clients=population),
        federation=replace(base.experiment.federation, clients_per_round=selected),
    )
    return CrowdSpec(e, base.prepared, base.vectors_CP)


def measure(population: int, selected: int, executor: str) -> None:
    """Report the readings of a case."""
    executor_ = executor_for(spec_of(population, selected, executor))
    clients = list(range(0, population, population // selected))[:selected]
    seconds, first = list[float](), 0.0
    try:
        executor_.warm_up(clients)
        for round_ in range(1, LATER + 2):
            began, cpu = time.perf_counter(), sum(cpu_seconds().values())
            executor_.round(round_, clients, lambda busy, done, failed: None)
            if round_ == 1:
                first, used = time.perf_counter() - began, 0.0
            else:
                seconds.append(time.perf_counter() - began)
                used += sum(cpu_seconds().values()) - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        case = [population, selected]
        report(case, first=first, seconds=statistics.median(seconds), cpu=used / LATER, pss=pss(), driver=peak)
    finally:
        executor_.close()


def row(case: tuple[int, int], r: dict[str, Any]) -> str:
    """Return a row of the table."""
    population, selected = case
    each = [1e3 * r[name] / selected for name in ("first", "seconds", "cpu")]
    return (
        f"| {population:,} | {selected:,} | {r['first']:.2f} | {r['seconds']:.3f} | {each[1]:.2f} | {each[2]:.2f}"
        f" | {r['pss'] / MEGABYTE:,.0f} | {r['driver'] / MEGABYTE:,.0f} |"
    )


def draw(readings: dict[tuple[int, int], dict[str, Any]], path: Path) -> None:
    """Draw time and memory over the clients of a round, a line for each population."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for population in sorted({p for p, _ in readings}):
        cases = sorted(case for case in readings if case[0] == population)
        selected = [case[1] for case in cases]
        left.plot(selected, [readings[c]["seconds"] for c in cases], marker="o", label=f"{population:,} clients")
        right.plot(selected, [readings[c]["pss"] / MEGABYTE for c in cases], marker="o")
    left.set(xscale="log", yscale="log", xlabel="clients of a round", ylabel="seconds of a round")
    right.set(xscale="log", ylim=(0, None), xlabel="clients of a round", ylabel="memory of all processes (MB)")
    left.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", choices=("forked", "serial"), default="forked")
    parser.add_argument("--picture", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    parser.add_argument("--one", type=int, nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(*options.one, options.executor)
        return
    print(
        "| population | in a round | first round, s | later rounds, s | ms a client | CPU ms a client | PSS, MB"
        " | driver's peak, MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    readings = dict[tuple[int, int], dict[str, Any]]()
    for case in CASES:
        words = ["--executor", options.executor, "--one", *map(str, case)]
        readings[case] = reading_of([sys.executable, "-m", "benchmarks.scale", *words])
        print(row(case, readings[case]), flush=True)
    if options.picture:
        draw(readings, options.picture)
    if options.out:
        options.out.write_text(json.dumps([r for r in readings.values()], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
