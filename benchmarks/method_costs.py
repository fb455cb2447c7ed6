"""Bytes that every method sends on one small task, as multiples of FedAvg's.

    python -m benchmarks.method_costs                # the table of docs/methods/README.md; two minutes

The fourth round of the digits with the options of ``digits/fedavg`` and every method's own defaults. Methods for
clients of one class each have such clients, and FedAvg on positive labels beside them. Left out: FedBM and FedTSP,
which need a text encoder, and methods for multi-label tasks alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import anchorfl
from anchorfl.pipeline.methods import METHODS

ROUNDS = 4
SIDES = ("communication/download_bytes", "communication/upload_bytes")


def sent(method: str, folder: Path) -> list[float]:
    """Return the bytes of the last round, down and up."""
    options = {"method.name": method, "federation.rounds": ROUNDS, "cluster.executor": "serial", "tracking.uri": "none"}
    if METHODS[method].supports.one_class:
        options |= {"task.partition": "one_class", "task.clients": 0}
    rounds = anchorfl.run("digits/fedavg", options, folder=folder).to_pandas()
    return [float(rounds[side].iloc[-1]) for side in SIDES]


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        methods = [
            name for name, m in METHODS.items() if name not in ("fedbm", "fedtsp") and "single" in m.supports.kinds
        ]
        found = {method: sent(method, Path(folder) / method) for method in methods}
    print("| Method | Beside | Down | Up |\n|---|---|---|---|")
    for method, sides in found.items():
        beside = "fedavg-positive" if METHODS[method].supports.one_class else "fedavg"
        ratios = [f"{bytes_ / base:.3f}" for bytes_, base in zip(sides, found[beside], strict=True)]
        print(f"| `{method}` | `{beside}` | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
