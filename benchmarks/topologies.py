"""One checksum from any topology: every method on the digits, in one process, forked workers and Ray actors.

    python -m benchmarks.topologies [--methods fedavg fedalign] [--rounds 3] [--out FILE]

Each method trains in every topology of ``TOPOLOGIES``; and once more in each, stopped before its second round and
resumed in the next topology of the list. Prints a row per method with its checksum and in how many runs it came out,
and names those in which it did not; exit code 1 where there are any. Clients take one local epoch; methods with one
client per class have ten clients; FedBM does without a text encoder.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.execution.actor_pool import ActorPools
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.assemble import from_words
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.round_loop import RoundLoop

TOPOLOGIES: Mapping[str, dict[str, object]] = {
    "one process": {"executor": "serial"},
    "1 fork": {"executor": "forked", "max_concurrent_clients": 1},
    "2 forks": {"executor": "forked", "max_concurrent_clients": 2},
    "4 forks": {"executor": "forked", "max_concurrent_clients": 4},
    "1 actor": {"executor": "ray", "clients_per_actor": 10},
    "2 actors": {"executor": "ray", "clients_per_actor": 5},
    "5 actors": {"executor": "ray", "clients_per_actor": 2},
    "an actor per client": {"executor": "ray", "clients_per_actor": 1},
    "a tree of 5 actors": {"executor": "ray", "clients_per_actor": 2, "sum_on_nodes": True},
}


def experiment_of(method: str, rounds: int) -> Experiment:
    words = f"--method.name {method} --federation.rounds {rounds} --federation.epochs 1 --tracking.uri none"
    if METHODS[method].supports.one_class:
        words += " --task.partition one_class --task.clients 10"
    if method == "fedbm":
        words += " --method.lkcc False --method.concept_conditions False --method.cgde False"
    return from_words("digits/fedavg", words.split(), "anchorfl run", _quiet).experiment


def _quiet(line: str) -> None:
    pass


def in_topology(e: Experiment, name: str, folder: Path, pools: ActorPools) -> str:
    """Run, or go on in a folder, and return the checksum of the weights."""
    cluster = replace(ClusterOptions(), **TOPOLOGIES[name])
    with redirect_stdout(io.StringIO()):  # its progress
        return run(replace(e, cluster=cluster), folder, _quiet, pools).checksum


def stopped(e: Experiment, name: str, folder: Path, pools: ActorPools) -> None:
    """Stop a run before its second round."""
    plain = RoundLoop._run_round

    def stopping(self: RoundLoop, round_: int) -> None:
        if round_ == 2:
            raise KeyboardInterrupt
        plain(self, round_)

    with patch.object(RoundLoop, "_run_round", stopping):
        try:
            in_topology(e, name, folder, pools)
        except KeyboardInterrupt:
            return
    raise RuntimeError(f"{name}: the run was not stopped")


def checksums(method: str, rounds: int, pools: ActorPools) -> dict[str, str]:
    """Return the checksum of every run of a method, by what it ran in."""
    e, names, out = experiment_of(method, rounds), list(TOPOLOGIES), {}
    with tempfile.TemporaryDirectory() as parent:
        for number, name in enumerate(names):
            out[name] = in_topology(e, name, Path(parent) / f"{number}", pools)
            after = names[(number + 1) % len(names)]
            folder = Path(parent) / f"{number}-resumed"
            stopped(e, name, folder, pools)
            out[f"{name}, then {after}"] = in_topology(e, after, folder, pools)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    options = parser.parse_args()
    found, differing = dict[str, dict[str, str]](), 0
    with ExitStack() as stack:
        stack.enter_context(ray_cluster.session(ClusterOptions()))
        pools = ActorPools()
        stack.callback(pools.close)
        print("| Method | weights, SHA-256 | runs that gave it |\n|---|---|---|")
        for method in options.methods:
            found[method] = each = checksums(method, options.rounds, pools)
            expected = each["one process"]
            others = [name for name, checksum in each.items() if checksum != expected]
            differing += len(others)
            words = f"; not: {', '.join(others)}" if others else ""
            print(f"| {method} | {expected[:16]} | {len(each) - len(others)} of {len(each)}{words} |", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int(bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
