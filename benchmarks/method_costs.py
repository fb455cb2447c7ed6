"""Cost of every method on one small task, as multiples of FedAvg's: bytes each way, and CPU time of a round.

    python -m benchmarks.method_costs                # the table of docs/methods/README.md; five minutes

Rounds of the digits with the options of ``digits/fedavg`` and every method's own defaults, one after the other in this
process. Methods for clients of one class each have such clients, and FedAvg on positive labels beside them. FedBM is
left out: it needs a text encoder. Bytes are exact. Time is CPU time of the whole round, evaluation included: the least
of the rounds but the first, of two runs, the second when every other method has had its turn.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import anchorfl
from anchorfl.pipeline.methods import METHODS

ROUNDS = 4
SIDES = {"down": "communication/download_bytes", "up": "communication/upload_bytes"}


def reading(method: str, folder: Path) -> dict[str, float]:
    """Return a round's bytes each way, and the least CPU seconds that one took."""
    options = {"method.name": method, "federation.rounds": ROUNDS, "cluster.executor": "serial", "tracking.uri": "none"}
    if METHODS[method].supports.one_class:
        options |= {"task.partition": "one_class", "task.clients": 0}
    ends: list[float] = []

    def note(report: anchorfl.RoundReport) -> bool:
        ends.append(time.process_time())
        return False

    rounds = anchorfl.run("digits/fedavg", options, folder=folder, callbacks=[note]).to_pandas()
    cpu = min(end - begin for begin, end in itertools.pairwise(ends))
    return {side: float(rounds[metric].iloc[-1]) for side, metric in SIDES.items()} | {"time": cpu}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    repeats = parser.parse_args().repeats
    found: dict[str, dict[str, float]] = {}
    for _ in range(repeats):
        for method in METHODS:
            if method == "fedbm":
                continue
            with tempfile.TemporaryDirectory() as folder:
                new = reading(method, Path(folder) / "run")
            found[method] = new | {"time": min(new["time"], found.get(method, new)["time"])}
    print("| Method | Beside | Down | Up | CPU time |\n|---|---|---|---|---|")
    for method, cost in found.items():
        beside = "fedavg-positive" if METHODS[method].supports.one_class else "fedavg"
        ratios = [f"{cost[key] / found[beside][key]:.{2 if key == 'time' else 3}f}" for key in cost]
        print(f"| `{method}` | `{beside}` | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
