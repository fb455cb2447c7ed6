"""One checksum from any topology: every method on the digits, in one process, forked workers and Ray actors.

    python -m benchmarks.topologies [--methods fedavg fedalign] [--rounds 3] [--out FILE]

Each method trains three times in every topology: in peace; stopped before its second round and resumed in the next
topology of the list; and with a SIGKILL in its second round: of one of its workers, whose clients train again, or of
the one process, which is resumed. Prints a row per method with its checksum and in how many runs it came out, and names
those in which it did not; exit code 1 where there are any. Clients take one local epoch; methods with one client per
class have ten clients; FedBM does without a text encoder, and FedTSP takes the small one of ``make encoder``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import psutil
from ray.cluster_utils import Cluster

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.execution.actor_pool import ActorPools
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run import lifecycle
from anchorfl.pipeline.run.assemble import from_words
from anchorfl.pipeline.run.prepare import prepare_data
from anchorfl.pipeline.run.round_loop import RoundLoop
from anchorfl.testing import without_pictures
from benchmarks.minilm_concepts import PACKAGE

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
TWO_NODES: Mapping[str, dict[str, object]] = {
    "2 nodes": {"executor": "ray", "clients_per_actor": 2},
    "2 nodes, a tree": {"executor": "ray", "clients_per_actor": 2, "sum_on_nodes": True},
}
ON_DIGITS = [name for name, method in METHODS.items() if "single" in method.supports.kinds]
STRUCK: list[psutil.Process] = []
"""Workers that were killed."""
KILL_AFTER_S = 0.03
"""After the begin of a round, whose clients take some tenths of a second."""


def experiment_of(method: str, rounds: int) -> Experiment:
    words = f"--method.name {method} --federation.rounds {rounds} --federation.epochs 1 --tracking.uri none"
    if METHODS[method].supports.one_class:
        words += " --task.partition one_class --task.clients 10"
    if method == "fedbm":
        words += " --method.lkcc False --method.concept_conditions False --method.cgde False"
    if method == "fedtsp":
        folder = import_module(PACKAGE).get_model_path()
        words += f" --class_embeddings.encoder {folder} --class_embeddings.prompts the_digit_{{name}}"
    return from_words("digits/fedavg", words.split(), "anchorfl run", _quiet).experiment


def _quiet(line: str) -> None:
    pass


def in_topology(e: Experiment, name: str, folder: Path, pools: ActorPools) -> str:
    """Run, or go on in a folder, and return the checksum of the weights."""
    cluster = replace(e.cluster, **(TOPOLOGIES | TWO_NODES)[name])
    with redirect_stdout(io.StringIO()), without_pictures():  # and no progress
        return lifecycle.run(replace(e, cluster=cluster), folder, _quiet, pools).checksum


@contextmanager
def in_round_2(work: Callable[[], None]) -> Iterator[None]:
    """Do something at the begin of the second round of a run in the block."""
    plain = RoundLoop._run_round

    def round_(self: RoundLoop, number: int) -> None:
        if number == 2:
            work()
        plain(self, number)

    with patch.object(RoundLoop, "_run_round", round_):
        yield


def stop() -> None:
    raise KeyboardInterrupt


def stopped(e: Experiment, name: str, folder: Path, pools: ActorPools) -> None:
    """Stop a run before its second round."""
    with in_round_2(stop), suppress(KeyboardInterrupt):
        in_topology(e, name, folder, pools)
        raise RuntimeError(f"{name}: the run was not stopped")


def killed(method: str, rounds: int, folder: Path) -> None:
    """Have a process of its own killed in the second round of a run."""
    words = [sys.executable, "-m", "benchmarks.topologies", "--methods", method, "--rounds", str(rounds)]
    done = subprocess.run([*words, "--die", str(folder)], check=False, capture_output=True, text=True)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{method}: the run was not killed: {done.stderr[-2000:]}")


def kill_a_worker(executor: object) -> None:
    """Kill a forked worker or a client actor of this process, a moment later."""
    me = psutil.Process()

    def is_one(process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            words, parent = process.cmdline(), process.parent()
            if executor == "ray":
                return "ray::ClientActor" in (words or [""])[0]
            return parent not in (None, me) and parent.cmdline() == words  # a fork of the process that forks
        return False

    def strike() -> None:
        time.sleep(KILL_AFTER_S)
        workers = [process for process in me.children(recursive=True) if is_one(process)]
        STRUCK.extend(workers[:1])
        for worker in workers[:1]:
            worker.kill()

    threading.Thread(target=strike).start()


class Table:
    """The checksums of all runs, filled one topology after the other, so that its workers serve all methods."""

    def __init__(self, methods: Sequence[str], rounds: int, parent: Path) -> None:
        self.rounds, self.parent = rounds, parent
        self.found: dict[str, dict[str, str]] = {method: {} for method in methods}
        self.stopped: dict[str, str] = {}
        """Method -> topology in which its last stopped run was."""

    def folder(self, method: str, what: str) -> Path:
        return self.parent / f"{method}-{what}".replace(" ", "-").replace(",", "")

    def fill(self, name: str, cluster: ClusterOptions, pools: ActorPools) -> None:
        """Train every method in a topology: in peace, going on with what was stopped before, stopped, and killed."""
        for method, out in self.found.items():
            e = replace(experiment_of(method, self.rounds), cluster=cluster)
            out[name] = in_topology(e, name, self.folder(method, name), pools)
            self.resume(e, name, pools)
            self.stopped[method] = name
            stopped(e, name, self.folder(method, f"{name} stopped"), pools)
            what, folder = f"{name}, killed", self.folder(method, f"{name} killed")
            if TOPOLOGIES.get(name, {}).get("executor") == "serial":
                killed(method, self.rounds, folder)
                out[what] = in_topology(e, name, folder, pools)
                continue
            struck = len(STRUCK)
            with in_round_2(partial(kill_a_worker, (TOPOLOGIES | TWO_NODES)[name]["executor"])):
                out[what] = in_topology(e, name, folder, pools)
            if len(STRUCK) == struck:
                raise RuntimeError(f"{method}, {name}: no worker was there to be killed")

    def resume(self, e: Experiment, name: str, pools: ActorPools) -> None:
        """Go on in a topology with the run of a method that was stopped in another."""
        before = self.stopped.get(e.method.name)
        if before:
            folder = self.folder(e.method.name, f"{before} stopped")
            self.found[e.method.name][f"{before}, then {name}"] = in_topology(e, name, folder, pools)

    def print(self) -> int:
        """Print a row per method; return how many runs had another checksum."""
        print("| Method | weights, SHA-256 | runs that gave it |\n|---|---|---|")
        differing = 0
        for method, each in self.found.items():
            expected = each["one process"]
            others = [name for name, checksum in each.items() if checksum != expected]
            differing += len(others)
            words = f"; not: {', '.join(others)}" if others else ""
            print(f"| {method} | {expected[:16]} | {len(each) - len(others)} of {len(each)}{words} |")
        print(f"\n{len(STRUCK)} workers and {len(self.found)} single processes were killed")
        return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=ON_DIGITS, choices=ON_DIGITS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="JSON file")
    parser.add_argument("--die", type=Path, default=None, help="folder of a run that ends by SIGKILL in round 2")
    options = parser.parse_args()
    if options.die is not None:
        with in_round_2(lambda: os.kill(os.getpid(), signal.SIGKILL)):
            in_topology(experiment_of(options.methods[0], options.rounds), "one process", options.die, ActorPools())
        return 1  # it was not killed
    with tempfile.TemporaryDirectory() as parent:
        table = Table(options.methods, options.rounds, Path(parent))
        for topologies in (TWO_NODES, TOPOLOGIES):  # a Ray of our own turns this process to loopback
            with ExitStack() as stack:
                cluster = ClusterOptions()
                if topologies is TWO_NODES:
                    stack.enter_context(ray_cluster._loopback_only())
                    here = {"num_cpus": 2, "node_ip_address": "127.0.0.1"}
                    nodes = Cluster(initialize_head=True, head_node_args=here | {"include_dashboard": False})
                    stack.callback(nodes.shutdown)
                    nodes.add_node(**here)
                    cluster = replace(cluster, address=nodes.address)
                stack.enter_context(ray_cluster.session(cluster))
                pools = ActorPools()
                stack.callback(pools.close)
                for method in options.methods:  # before actors hold the CPUs
                    prepare_data(replace(experiment_of(method, options.rounds), cluster=cluster), _quiet)
                for name in topologies:
                    began = time.monotonic()
                    table.fill(name, cluster, pools)
                    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        for method in options.methods:
            table.resume(experiment_of(method, options.rounds), "one process", ActorPools())
    differing = table.print()
    if options.out is not None:
        options.out.write_text(json.dumps(table.found, indent=1), encoding="utf-8")
    return int(bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
