"""What the first step of an optimizer costs a process: torch's own, and ours, which does without torch's compiler.

    python -m benchmarks.first_step [--repeats 5]

Each in a process of its own, in turn: CPU seconds of making the optimizer and of its first step, and by how much the
process grew.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

from anchorfl.pipeline.algorithm.optimizers import Adam

KINDS = {"torch.optim.Adam": torch.optim.Adam, "anchorfl.pipeline.algorithm.optimizers.Adam": Adam}


def once(name: str) -> None:
    """In this process; prints seconds and MB."""
    net, before = nn.Linear(4, 4), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    net(torch.ones(1, 4)).sum().backward()
    began = time.process_time()
    KINDS[name](net.parameters(), fused=True).step()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps([time.process_time() - began, grown]))


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
            each.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    for name, each in found.items():
        seconds, grown = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{name:<26} {seconds:6.3f} CPU s  {grown:6.1f} MB")


if __name__ == "__main__":
    main()
