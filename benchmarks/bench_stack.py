"""Time of a client's step one by one and in stacks (``federation.stack``), by network, method and clients a round.

    python -m benchmarks.bench_stack              # CPU seconds, one thread
    python -m benchmarks.bench_stack --gpu        # wall time on a GPU

Digits, all clients in each round. Rounds of the two ways alternate in one process; ratios are medians of the pairs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import NamedTuple

import torch

from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods.scaffold import Scaffold
from anchorfl.pipeline.run.prepare import make_run_spec
from benchmarks.round_ways import check, experiment, nobody, quiet


class Case(NamedTuple):
    """A row of the table."""

    what: str
    method: str
    clients: int
    network: str = ""
    """A residual network in place of the CNN, with BatchNorm."""


CASES = (
    Case("CNN", "fedavg", 10),
    Case("CNN", "fedavg", 30),
    Case("CNN", "fedavg", 100),
    Case("CNN", "scaffold", 30),
    Case("CNN", "fedalign", 30),
    Case("ResNet-8, BatchNorm", "fedavg", 10, "resnet8"),
)
PAIRS = 5


def measure(case: Case, gpu: bool) -> None:
    """Print a row of the table."""
    optimizer = {"skip_zero_rows": False, "microbatch_tokens": 0} if case.network else {}
    model = {"network": case.network, "norm": "batch"} if case.network else {}
    one = experiment(
        "digits/fedalign" if case.method == "fedalign" else "digits/fedavg", optimizer, model=model,
        task={"clients": case.clients, "min_count": 1}, federation={"clients_per_round": case.clients},
        cluster={"executor": "serial", "client_gpus": float(gpu)},
    )  # fmt: skip
    if case.method == "scaffold":
        one = replace(one, method=Scaffold())
    ways = one, replace(one, federation=replace(one.federation, stack=case.clients))
    executors = [SerialExecutor(make_run_spec(way, quiet)) for way in ways]
    weights = sum(p.numel() for p in executors[0].runner.model.parameters())
    clock = time.perf_counter if gpu else time.process_time
    taken: list[list[float]] = [[], []]
    for round_ in range(1, PAIRS + 2):
        for executor, times in zip(executors, taken, strict=True):
            began = clock()
            check(executor.round(round_, range(case.clients), nobody))
            times.append(1e3 * (clock() - began) / case.clients)
    alone, stacked = (times[1:] for times in taken)  # the first round reads the rows
    ratios = [a / b for a, b in zip(alone, stacked, strict=True)]
    ratio = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
    print(
        f"| {case.what} | {weights:,} | {case.method} | {case.clients} | {statistics.median(alone):.2f} |"
        f" {statistics.median(stacked):.2f} | {ratio} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    gpu = parser.parse_args().gpu
    torch.set_num_threads(1)
    unit = "ms" if gpu else "CPU ms"
    print(f"| Network | Weights | Method | Clients | {unit} a client, one by one | stacked | Ratio |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        measure(case, gpu)


if __name__ == "__main__":
    main()
