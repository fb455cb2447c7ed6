"""Messages harmed or lost, a node lost, an object store that is too small, kills at random instants: same bits."""

from __future__ import annotations

import dataclasses
import json
import sys
import time

import pytest
import ray
import torch
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, ObjectLostError, OutOfDiskError

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.errors import LostError
from benchmarks.chaos import in_peace, until_killed
from tests.processes import checksum_of, python
from tests.runs import quiet

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test module
SHORT = ("--federation.rounds", "6", "--federation.epochs", "1", "--tracking.uri", "none")


def wide(experiment):
    """Make an experiment of three rounds with wide layers, and so with large messages."""
    federation = {"rounds": 3, "clients_per_round": 4, "epochs": 1}
    model, rows = {"width": 256, "feedforward": 256}, {"width": 256}
    return experiment("scaffold", federation=federation, model=model, class_embeddings=rows)


def on_ray(e):
    return dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="ray", clients_per_actor=2))


def changed(ref, place, change):
    """Return what a call gives, with the first tensor of its sums changed; of an update, where it is of one client."""
    part = ray.get(ref)
    if part.sums is None:
        (client,) = part.whole
        update = messages.unpack(part.whole[client])
        name, first = next(iter(update.weights.items()))
        update = dataclasses.replace(update, weights=update.weights | {name: change(first)})
        return ray.put(dataclasses.replace(part, whole={client: messages.pack(update)}))
    sums = messages.unpack(part.sums)
    values = next(iter(sums["sums"].values()))["values"]
    name, first = next(iter(values.items()))
    values[name] = change(first)
    return ray.put(dataclasses.replace(part, sums=messages.pack(sums)))


def harmed(ref, place):
    """Cut one tensor short."""
    return changed(ref, place, lambda first: first.reshape(-1)[:1])


def poisoned(ref, place):
    """Flip one bit of an exponent to what is no number."""

    def change(first):
        values = first.clone().reshape(-1)
        values[0] = torch.nan
        return values.view(first.shape)

    return changed(ref, place, change)


@ray.remote(num_cpus=0)
class Owner:
    """Keeps a message, and takes it along when it dies."""

    def keep(self, value):
        return [ray.put(value)]


def dropped(ref, place=0):
    """Drop a message with the process that it belonged to, as a lost node does."""
    owner = Owner.remote()
    (gone,) = ray.get(owner.keep.remote(ref))
    ray.kill(owner)
    for _ in range(200):
        try:
            ray.get(gone, timeout=5)
        except (ObjectLostError, GetTimeoutError):
            return gone
        time.sleep(0.1)
    raise AssertionError("the object outlives its owner by 20 s")


@pytest.mark.usefixtures("shared_actors")
@pytest.mark.parametrize(
    ("harm", "part"),
    [
        (harmed, 0),
        pytest.param(poisoned, 0, marks=pytest.mark.slow),
        pytest.param(dropped, 0, marks=pytest.mark.slow),
        (dropped, 1),
    ],
)
def test_messages_harmed_or_lost_between_client_and_server(experiment, tmp_path, monkeypatch, harm, part):
    """An update (part 0) or a client's memory (1): asked for again, or fetched from the checkpoint; same bits."""
    e = wide(experiment)
    expected, harms, plain = run(e, tmp_path / "serial", quiet), [], RayExecutor._replies

    def on_the_way(self, *given):
        for call, reply in plain(self, *given):
            if not harms and 2 in call.clients and self.memories:  # in round 2
                harms.append((harm, len(call.clients)))
                parts, index = list(call.parts), list(call.clients).index(2)
                at = part and 1 + index
                parts[at] = harm(parts[at], index)
                call.parts = tuple(parts)
            yield call, reply

    monkeypatch.setattr(RayExecutor, "_replies", on_the_way)
    got = run(on_ray(e), tmp_path / "ray", quiet)
    ((done, clients),) = harms
    assert done is harm
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    records = read_records(tmp_path / "ray")[0]
    # of a sum, all clients send theirs once more
    assert sum(r.metrics.get("failures/rejected", 0) for r in records) == (clients if harm is not dropped else 0)
    assert sum(r.metrics["failures/server_restarts"] for r in records) == (harm is dropped)


def no_room(value):
    raise OutOfDiskError("Local disk is full")


@pytest.mark.usefixtures("shared_actors")
def test_a_lost_object_is_no_fault_of_the_client_that_needed_it(experiment, monkeypatch):
    """No client is retried, and none left out, because what the server or the driver kept is gone or finds no room."""
    from anchorfl.pipeline.run.prepare import make_run_spec

    e = wide(experiment)
    run_spec = dataclasses.replace(make_run_spec(e, quiet), experiment=on_ray(e))
    executor = RayExecutor(run_spec)
    executor.round(1, [0, 1, 2, 3], lambda *_: None)
    state, memory = executor.snapshot(), executor.memory(1)
    with monkeypatch.context() as store:
        store.setattr(ray, "put", no_room)
        with pytest.raises(LostError, match="free disk space there, or start the node with"):
            executor.restore(state, {1: memory})
    executor.memories[1] = dropped(executor.memories[1])
    with pytest.raises(LostError, match="is gone"):
        executor.round(2, [0, 1, 2, 3], lambda *_: None)
    executor.close()


NODE = """
import dataclasses, threading, time
import ray
from ray.cluster_utils import Cluster
made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
nodes = [made.add_node(num_cpus=2), made.add_node(num_cpus=2)]
ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
from anchorfl.pipeline.run import round_loop as rounds
from anchorfl.pipeline.cli.main import main
plain, lost = rounds.RoundLoop._run_round, []
def losing(self, number):
    if number == 3 and not lost:
        lost.append(number)
        threading.Timer(0.05, lambda: made.remove_node(nodes[0], allow_graceful=False)).start()
    plain(self, number)
rounds.RoundLoop._run_round = losing
words = ["--federation.rounds", "6", "--federation.epochs", "1", "--tracking.uri", "none"]
print(main(["run", "digits/fedalign", "--output", "lost", "--cluster.clients_per_actor", "2", *words]), lost)
print(main(["run", "digits/fedalign", "--output", "whole", "--cluster.executor", "serial", *words]))
ray.shutdown()
made.shutdown()
"""


@pytest.mark.slow
def test_a_lost_node(tmp_path):
    """One of the two nodes on which clients and server may run is gone in round 3."""
    done = python(NODE, tmp_path)
    assert "0 [3]" in done.stdout, done.stdout + done.stderr[-3000:]
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("lost", "whole")]
    assert results[0]["checksum"] == results[1]["checksum"]
    assert results[0]["scores"] == results[1]["scores"]


STORE = """
import ray
ray.init(num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, logging_level="ERROR",
         log_to_driver=False, _node_ip_address="127.0.0.1")
from anchorfl.pipeline.cli.main import main
big = ["--model.width", "1024", "--federation.clients_per_round", "10"]
words = [*big, "--federation.rounds", "2", "--federation.epochs", "1", "--tracking.uri", "none"]
print(main(["run", "digits/fedalign", "--output", "small", "--cluster.clients_per_actor", "5", *words]))
print(main(["run", "digits/fedalign", "--output", "whole", "--cluster.executor", "serial", *words]))
"""


@pytest.mark.slow
def test_an_object_store_that_is_smaller_than_what_a_round_keeps(tmp_path):
    """Updates and memories of ten clients are some times its size: Ray moves them to the disk; same bits."""
    done = python(STORE, tmp_path)
    assert done.stdout.count("\n0\n") == 2, done.stdout + done.stderr[-3000:]
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("small", "whole")]
    kept = sum(p.stat().st_size for p in (tmp_path / "small" / "checkpoint").glob("memory-*"))
    assert kept > 80 * 2**20
    assert results[0]["checksum"] == results[1]["checksum"]


FULL = """
import sys, ray
ray.init(num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, logging_level="ERROR",
         log_to_driver=False, _node_ip_address="127.0.0.1")
from anchorfl.pipeline.cli.main import main
print(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_an_object_store_without_room_on_a_full_disk(tmp_path):
    """It says what mends it and blames no client: the bits of one process, after a resume where it had to stop."""
    words = ["--model.width", "1024", "--federation.clients_per_round", "10", "--federation.rounds", "2",
             "--federation.epochs", "1", "--tracking.uri", "none", "--cluster.clients_per_actor", "5"]  # fmt: skip
    run = ["run", "digits/fedalign", "--output", "full", *words]
    full = python(FULL, tmp_path, *run, RAY_local_fs_capacity_threshold="0.001")
    said = full.stdout + full.stderr
    assert "free disk space there, or start the node with a larger --object-store-memory" in said, said[-3000:]
    assert "left out of round" not in said
    code = full.stdout.splitlines()[-1]
    assert code in {"0", "3"}, said[-3000:]
    if code == "3":
        full = python(FULL, tmp_path, "resume", "full")
    serial = ["--output", "whole", "--cluster.executor", "serial"]
    whole = python(FULL, tmp_path, "run", "digits/fedalign", *words, *serial)
    assert checksum_of(full) == checksum_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4])
def test_kills_at_random_instants(tmp_path, seed):
    """Two kills each; ``python -m benchmarks.chaos`` does many more."""
    words = ["run", "digits/fedavg", *SHORT, "--cluster.clients_per_actor", "5"]
    (tmp_path / "peace").mkdir()
    peace = in_peace(words, tmp_path / "peace")
    one, _ = until_killed(words, peace, tmp_path / "storm", seed, kills=2)
    assert one.kills
    assert one.same, one.said
