"""Memory of the driver of a Ray run whose clients all keep as much as the model: SCAFFOLD's control variates.

    python -m benchmarks.driver_memory [--clients 10 40 160] [--width 2000] [--memories]

Digits on few rows, two rounds of every client, each run in a process of its own. Printed: what a client keeps, and the
most memory of its own that the driver has (resident, without Ray's object store, which processes share), above what it
has before the first round, in MB. --memories: clients write what they keep themselves (``cluster.memories``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path

import psutil

import anchorfl
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from benchmarks.readings import MEGABYTE, reading_of, report

ROUNDS = 2


class Peak(threading.Thread):
    """The most private memory that this process has from now on."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before, self.peak, self.ends = self._now(), 0, threading.Event()

    def run(self) -> None:
        while not self.ends.wait(0.02):
            self.peak = max(self.peak, self._now())

    @staticmethod
    def _now() -> int:
        memory = psutil.Process().memory_info()
        return int(memory.rss - memory.shared)


def one(clients: int, width: int, folder: Path, memories: bool) -> None:
    """Run with so many clients, and report."""
    options = {
        "task.partition": "iid", "task.clients": clients, "federation.clients_per_round": clients,
        "federation.epochs": 1, "model.width": width,
        "federation.rounds": ROUNDS, "optimizer.batch_size": 256, "cluster.executor": "ray", "tracking.uri": "none",
        "cluster.checkpoint_every": 1, "evaluation.test": "never",
        "cluster.memories": str(folder.parent / "memories") if memories else "",
    }  # fmt: skip
    seen: list[Peak] = []

    def begin(record: object) -> None:
        if not seen:  # after round 0: Ray has started, and the first weights are scored
            seen.append(Peak())
            seen[0].start()

    anchorfl.run("suite-digits-masks-2/scaffold", options, folder=folder, callbacks=[begin])
    seen[0].ends.set()
    kept = [path.stat().st_size for path in (folder.parent / "memories").rglob("*.safetensors")]
    kept = kept or [sum(v.nbytes for v in Checkpoints(folder).load().parts["memory-00000"].values())]  # type: ignore[union-attr]
    keeps = kept[0] / MEGABYTE
    report(clients, keeps=keeps, driver=(seen[0].peak - seen[0].before) / MEGABYTE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 40, 160])
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--memories", action="store_true")
    parser.add_argument("--in", dest="folder", type=Path, help="of one run, in this process")
    options = parser.parse_args()
    if options.folder is not None:
        one(options.clients[0], options.width, options.folder, options.memories)
        return
    for clients in options.clients:
        with tempfile.TemporaryDirectory() as folder:
            words = ["--clients", str(clients), "--width", str(options.width), "--in", f"{folder}/run"]
            words += ["--memories"] * options.memories
            found = reading_of([sys.executable, "-m", "benchmarks.driver_memory", *words])
            print(
                f"{found['case']} clients keep {found['keeps']:.1f} MB each: driver {found['driver']:.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
