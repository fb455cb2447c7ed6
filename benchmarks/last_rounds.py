"""Swings of a kept run's rounds: its best, its last, and of its last rounds the mean, the sd and the largest fall.

Reads an archive of benchmarks/keep_records.py; --only shows the runs whose names start so.

    python -m benchmarks.last_rounds benchmarks/results/pbc.tar.xz --metric validation/f1_macro --rounds 10
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.keep_records import read


class Swing(NamedTuple):
    """A metric's best and last value, and mean, sd (ddof 1; 0 of one round) and largest fall from one round to the
    next (0 where it never falls) over the last rounds; percent."""

    best: float
    last: float
    mean: float
    sd: float
    fall: float


def swing(lines: Sequence[str], metric: str, count: int) -> Swing:
    """Return how `metric` swings over the last `count` rounds that have it. Raise ValueError where no round has it."""
    metrics = [json.loads(line)["metrics"] for line in lines]
    values = [100 * float(entry[metric]) for entry in metrics if metric in entry]
    if not values:
        raise ValueError(f"no round has {metric}; the first has {', '.join(sorted(metrics[0]))}")
    tail = values[-count:]
    fall = max([0.0, *(before - after for before, after in pairwise(tail))])
    sd = statistics.stdev(tail) if len(tail) > 1 else 0.0
    return Swing(max(values), values[-1], statistics.mean(tail), sd, fall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--metric", default="validation/f1_macro")
    parser.add_argument("--rounds", type=int, default=10, help="how many rounds at the end count as the last")
    parser.add_argument("--only", default="", help="start of the runs' names")
    options = parser.parse_args()
    runs = {name: files for name, files in read(options.archive).items() if name.startswith(options.only)}
    if not runs:
        parser.exit(2, f"{options.archive}: no run whose name starts with {options.only!r}\n")
    swings, without = {}, []
    for name, files in sorted(runs.items()):
        try:
            swings[name] = swing(files["metrics.jsonl"].decode().splitlines(), options.metric, options.rounds)
        except ValueError as error:
            without.append(f"{name}: {error}")
    if not swings:
        parser.exit(2, f"{options.archive}, {without[0]}\n")
    print(
        f"{options.metric}, percent; mean ± sd, and largest fall to the next round, of the last {options.rounds} rounds"
    )
    for name, of in swings.items():
        print(f"{name}  best {of.best:.2f}, last {of.last:.2f}, {of.mean:.2f} ± {of.sd:.2f}, fall {of.fall:.2f}")
    if without:
        print(f"{len(without)} runs have no round with {options.metric}")


if __name__ == "__main__":
    main()
