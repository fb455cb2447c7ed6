"""How much a kept run's rounds swing: its best, its last, and the mean and sd of its last rounds.

Reads an archive of benchmarks/keep_records.py; --only shows the runs whose names start so.

    python -m benchmarks.last_rounds benchmarks/results/pbc.tar.xz --metric validation/f1_macro --rounds 10
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.keep_records import read


def swing(lines: Sequence[str], metric: str, count: int) -> tuple[float, float, float, float]:
    """Best, last, mean and sd (ddof 1; 0 of one round) of `metric`, in percent.

    Mean and sd over the last `count` rounds that have the metric. ValueError where no round has it.
    """
    metrics = [json.loads(line)["metrics"] for line in lines]
    values = [100 * float(entry[metric]) for entry in metrics if metric in entry]
    if not values:
        raise ValueError(f"no round has {metric}; the first has {', '.join(sorted(metrics[0]))}")
    tail = values[-count:]
    return max(values), values[-1], statistics.mean(tail), statistics.stdev(tail) if len(tail) > 1 else 0.0


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
    print(f"{options.metric}, percent; mean ± sd of the last {options.rounds} rounds")
    for name, files in sorted(runs.items()):
        try:
            best, last, mean, sd = swing(files["metrics.jsonl"].decode().splitlines(), options.metric, options.rounds)
        except ValueError as error:
            parser.exit(2, f"{options.archive}, {name}: {error}\n")
        print(f"{name}  best {best:.2f}, last {last:.2f}, {mean:.2f} ± {sd:.2f}")


if __name__ == "__main__":
    main()
