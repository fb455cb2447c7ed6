"""Clients that answer in each round, of 10, where the process of one dies.

    python -m benchmarks.crash_scenario [--repeat 3]

10 clients, all of them in each of 8 rounds, 2 actors, a tenth of a second of work each beside the toy task's training;
the process of client 3 dies in round 2: at its first attempt, which the retry mends, or at both. Whole runs through the
product's door, counted from their journals. ``crash_scenario_flower.py`` is the same under Flower.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.config.class_embeddings import ClassEmbeddingOptions
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.experiment import Experiment, FederationOptions
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.options import TaskOptions
from benchmarks.readings import machine

CLIENTS, ROUNDS, SLOTS, DYING, ROUND, WORK_S = 10, 8, 2, 3, 2, 0.1


@dataclass(frozen=True, kw_only=True)
class Dying(Averaging):
    """FedAvg whose client ``DYING`` dies at its first ``times`` attempts of round ``ROUND``; each of its attempts
    leaves a file in ``folder``.
    """

    name = "fedavg"
    times: int
    folder: str

    def trainer(self, ctx):
        return DyingTrainer(ctx, self)


class DyingTrainer(AveragingTrainer):
    def __init__(self, ctx, method):
        super().__init__(ctx)
        self.method = method

    def update(self):
        time.sleep(WORK_S)
        if self.ctx.card.client == DYING:
            before = len(list(Path(self.method.folder).iterdir()))
            (Path(self.method.folder) / str(before)).touch()
            if ROUND - 1 <= before < ROUND - 1 + self.method.times:
                os._exit(1)
        return super().update()


def once(times: int, folder: Path) -> tuple[dict[str, list[int]], str]:
    """Run once; return clients answering and retried per round, and the checksum of the weights."""
    attempts = folder / "attempts"
    attempts.mkdir()
    e = Experiment(
        task=TaskOptions(
            name="toy-single", clients=CLIENTS, classes_per_client=2, min_count=1, cache=str(folder / "c")
        ),
        method=Dying(times=times, folder=str(attempts)),
        model=ModelOptions(width=16, heads=2, feedforward=8),
        class_embeddings=ClassEmbeddingOptions(width=16),
        federation=FederationOptions(rounds=ROUNDS, clients_per_round=CLIENTS, epochs=1),
        optimizer=OptimizerOptions(lr=0.001, batch_size=16),
        cluster=ClusterOptions(executor="ray", clients_per_actor=CLIENTS // SLOTS, max_concurrent_clients=SLOTS),
        tracking=TrackingOptions(uri="none"),
    )
    with redirect_stdout(StringIO()):
        checksum = run(e, folder / "run").checksum
    metrics = [r.metrics for r in read_records(folder / "run")[0] if r.round]
    failed, retried = ([int(m[f"failures/{what}"]) for m in metrics] for what in ("dropped_clients", "retries"))
    return {"answering": [CLIENTS - n for n in failed], "retried": retried}, checksum[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--deaths", type=int, nargs="+", default=[0, 1, 2], help="attempts of round 2 that die")
    options = parser.parse_args()
    for times in options.deaths:
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory() as name:
                counts, checksum = once(times, Path(name))
            print(json.dumps({"deaths": times, **counts, "weights": checksum}), flush=True)
    print(json.dumps(machine("anchorfl", "ray", "torch")))


if __name__ == "__main__":
    main()
