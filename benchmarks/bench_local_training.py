"""Local training against the plain loop with the same mathematics: CPU seconds of one client's round, paired.

    ANCHORFL_DATA=... python -m benchmarks.bench_local_training [--pairs 2] [--epochs 1]

Each saving of docs/adr/0006 alone, all three, these with linear layers by oneDNN (docs/speed.md), and none (the plain
loop), for FedAvg and FedAlign on R8-8.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.pipeline.training.server import Server

OFF = {"skip_zero_rows": False, "microbatch_tokens": 0, "lookup_dropout": False, "onednn": False}
VARIANTS = {
    "plain loop": {},
    "skip zero rows": {"skip_zero_rows": True},
    "micro-batches": {"microbatch_tokens": 1024},
    "look-up dropout": {"lookup_dropout": True},
    "all three": {"skip_zero_rows": True, "microbatch_tokens": 1024, "lookup_dropout": True},
    "all three, oneDNN": {"skip_zero_rows": True, "microbatch_tokens": 1024, "lookup_dropout": True, "onednn": True},
}


def seconds(preset: str, switches: dict, epochs: int) -> float:
    """Return the CPU seconds of client 0's first round."""
    experiment = read_preset(preset)
    experiment = dataclasses.replace(
        experiment,
        optimizer=dataclasses.replace(experiment.optimizer, **(OFF | switches)),
        federation=dataclasses.replace(experiment.federation, epochs=epochs),
        cluster=dataclasses.replace(experiment.cluster, executor="serial"),
    )
    run_spec = make_run_spec(experiment, lambda _: None)
    sent, runner = Server(run_spec).broadcast(1), ClientRunner(run_spec)
    runner._client(0)
    began = time.process_time()
    runner.fit(0, 1, sent, {})
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    one_thread()
    for preset in ("r8-8/fedavg", "r8-8/fedalign"):
        times = {name: [] for name in VARIANTS}
        for _ in range(options.pairs):
            for name, switches in VARIANTS.items():
                times[name].append(seconds(preset, switches, options.epochs))
        plain = statistics.median(times["plain loop"])
        for name, taken in times.items():
            middle = statistics.median(taken)
            shown = ", ".join(f"{t:.2f}" for t in taken)
            print(f"{preset:<14} {name:<16} {middle:7.2f} CPU s   {plain / middle:5.1f} x   ({shown})", flush=True)


if __name__ == "__main__":
    main()
