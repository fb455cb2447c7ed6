"""CPU seconds and memory of an optimizer's first step: torch's own, and ours, which does without torch's compiler.

    python -m benchmarks.first_step [--repeats 5]

Each in a process of its own, in turn: CPU seconds of making the optimizer and of its first step, and by how much the
process grew.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from torch import nn

from anchorfl.pipeline.algorithm.optimizers import Adam
from anchorfl.pipeline.execution.system_metrics import peak_resident
from benchmarks.readings import MEGABYTE, reading_of, report

KINDS = {"torch.optim.Adam": torch.optim.Adam, "anchorfl.pipeline.algorithm.optimizers.Adam": Adam}


def once(name: str) -> None:
    """Report CPU seconds and MB of making an optimizer and of its first step."""
    net, before = nn.Linear(4, 4), peak_resident()
    net(torch.ones(1, 4)).sum().backward()
    began = time.process_time()
    KINDS[name](net.parameters(), fused=True).step()
    report(name, values=[time.process_time() - began, (peak_resident() - before) / MEGABYTE])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        once(options.one)
        return
    found: dict[str, list[list[float]]] = {name: [] for name in KINDS}
    for _ in range(options.repeats):
        for name, each in found.items():
            command = [sys.executable, "-m", "benchmarks.first_step", "--one", name]
            each.append(reading_of(command)["values"])
    for name, each in found.items():
        seconds, grown = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{name:<26} {seconds:6.3f} CPU s  {grown:6.1f} MB")


if __name__ == "__main__":
    main()
