"""A batched run whose process is no place to train goes on in an actor, with the same bits."""

from __future__ import annotations

import dataclasses

import pytest
import ray

from anchorfl.pipeline.cluster import layout
from anchorfl.pipeline.cluster.layout import batched_share
from anchorfl.pipeline.cluster.placement import Node
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.execution.batched_actor import BatchedActorExecutor
from anchorfl.pipeline.execution.batched_executor import BatchedExecutor
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import InputError
from tests.pipeline.one_class import SGD
from tests.runs import figures, quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_running")]


@pytest.fixture
def batched(experiment):
    """Return an experiment of five one-class clients, in this process."""
    e = experiment("fedalc", "toy-multi", options={"lambda_": 300.0, "neighbours": 2})
    task = dataclasses.replace(e.task, clients=5, partition="one_class", validation=0.2)
    federation = dataclasses.replace(e.federation, rounds=3, clients_per_round=5, epochs=1, batched_clients=True)
    return dataclasses.replace(e, task=task, federation=federation, optimizer=SGD)


def on_ray(e, **cluster):
    return dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="ray", **cluster))


@pytest.fixture
def no_cpus_here(monkeypatch):
    monkeypatch.setattr(layout, "driver_has_no_cpus", lambda: True)


@pytest.mark.usefixtures("no_cpus_here")
@pytest.mark.parametrize(
    "lost_in", ["", "round", *(pytest.param(when, marks=pytest.mark.slow) for when in ("scores", "snapshot"))]
)
def test_same_bits_also_where_the_actor_is_lost(batched, finished_run, tmp_path, monkeypatch, lost_in):
    expected, killed = finished_run(batched), []
    if lost_in:
        plain = getattr(BatchedActorExecutor, lost_in)

        def losing(self, *given):
            if not killed:
                killed.append(lost_in)
                ray.kill(self.actor)
            return plain(self, *given)

        monkeypatch.setattr(BatchedActorExecutor, lost_in, losing)
    got = run(on_ray(batched), tmp_path / "ray", quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    records = [read_records(result.folder)[0] for result in (expected, got)]
    kept = [[(r.round, figures(r.metrics) | {"failures/server_restarts": 0}) for r in of] for of in records]
    assert kept[0] == kept[1]
    assert sum(r.metrics["failures/server_restarts"] for r in records[1]) == len(killed) == bool(lost_in)


def test_the_cpus_of_this_process_are_used(batched):
    executor = executor_for(make_run_spec(on_ray(batched), quiet))
    assert isinstance(executor, BatchedExecutor)


@pytest.mark.usefixtures("no_cpus_here")
def test_what_a_trial_has_is_used(batched):
    assert isinstance(executor_for(make_run_spec(on_ray(batched), quiet), placed=True), BatchedExecutor)


@pytest.mark.usefixtures("no_cpus_here")
def test_wrong_options_are_said_as_in_this_process(batched):
    e = on_ray(batched)
    e = dataclasses.replace(e, optimizer=dataclasses.replace(e.optimizer, momentum=0.5))
    with pytest.raises(InputError, match=r"federation\.batched_clients needs optimizer\.momentum = 0"):
        executor_for(make_run_spec(e, quiet))


def test_a_gpu_that_torch_does_not_see_is_said(batched, monkeypatch):
    """Ray's GPUs may be logical ones: then it trains on the CPU, and the run says so."""
    executor = BatchedActorExecutor(make_run_spec(on_ray(batched), quiet), (0.5, 0.0))
    try:
        plain = executor.round(1, [0, 1, 2], lambda *_: None)
    finally:
        executor.close()
    assert WITHOUT_GPU not in plain.counts
    with monkeypatch.context() as patch:
        patch.setattr(layout, "nodes", lambda: [Node(2.0), Node(2.0, (1.0,))])
        assert batched_share(ClusterOptions(client_gpus=0.5)) == (1.0, 0.5)
        assert batched_share(ClusterOptions(server_gpus=1.0, client_gpus=0.5, client_cpus=2.0)) == (2.0, 1.0)
        for options, message in (
            (
                {"client_gpus": 1.0, "client_cpus": 3.0},
                r"needs 3 CPUs and 1 GPUs on one node \(nodes: 2 CPUs and 0 GPUs",
            ),
            ({"client_gpus": 0.5, "client_cpus": 3.0}, r"needs 3 CPUs and 0\.5 GPUs"),
        ):
            with pytest.raises(InputError, match=message):
                batched_share(ClusterOptions(**options))
    with pytest.raises(InputError, match=r"a batched run needs 1 CPUs and 0\.5 GPUs on one node"):
        executor_for(make_run_spec(on_ray(batched, client_gpus=0.5), quiet))
