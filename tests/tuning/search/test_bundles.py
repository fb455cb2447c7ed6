"""What a trial reserves: where its own process trains, that has the GPU share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.execution.forked_executor import worker_gpus
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.trial import _at_once, bundles


def with_cluster(name, **options):
    e = read_preset(name)
    return replace(e, cluster=replace(e.cluster, **options))


@pytest.mark.parametrize(
    ("name", "executor"), [("digits/fedavg", "serial"), ("voc07/fedalc", "forked"), ("voc07/fedalc", "ray")]
)
@pytest.mark.parametrize(("client", "server", "share"), [(0.5, 0.0, 0.5), (0.25, 1.0, 1.0), (0.0, 0.0, None)])
def test_a_process_that_trains_has_the_larger_share(name, executor, client, server, share):
    """Also of batched rounds, which have no actors on Ray."""
    e = with_cluster(name, executor=executor, client_gpus=client, server_gpus=server)
    assert e.federation.batched_clients == (executor != "serial")
    assert bundles(e, SweepOptions(cpus=2)) == [{"CPU": 2} | ({"GPU": share} if share else {})]


@pytest.mark.parametrize(
    ("cluster", "share"),
    [
        ({"client_gpus": 0.25}, 1.0),
        ({"client_gpus": 0.1, "server_gpus": 0.2}, 0.6),
        ({"client_gpus": 0.25, "max_concurrent_clients": 1}, 0.25),
        ({"client_gpus": 0.0}, None),
    ],
    ids=str,
)
def test_forked_workers_have_a_share_each_beside_the_servers(cluster, share):
    """They had one together: four trials of four workers each were put on one GPU."""
    e = with_cluster("digits/fedavg", executor="forked", **cluster)
    assert bundles(e, SweepOptions(cpus=4)) == [{"CPU": 4} | ({"GPU": share} if share else {})]


@pytest.mark.parametrize(
    ("client", "server", "gpus", "workers"),
    [(0.5, 0.5, "0", ["0"]), (0.5, 0.0, "0", ["0", "0"]), (0.25, 0.5, "3,5", ["3", "3", "5", "5", "5", "5"]),
     (1.0, 0.5, "0,1", ["1"])],
)  # fmt: skip
def test_workers_share_the_first_gpu_with_the_server(monkeypatch, client, server, gpus, workers):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    options = ClusterOptions(executor="forked", client_gpus=client, server_gpus=server)
    assert worker_gpus(options) == workers


def test_a_gpu_without_room_for_a_client_is_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InputError, match=r"server_gpus = 0\.5 leaves a client of cluster\.client_gpus = 1 no room"):
        worker_gpus(ClusterOptions(executor="forked", client_gpus=1.0, server_gpus=0.5))


@pytest.mark.parametrize(
    ("name", "cluster", "expected"),
    [
        ("digits/fedavg", {"executor": "serial"}, 1),
        ("digits/fedavg", {"executor": "forked", "max_concurrent_clients": 3}, 3),
        ("digits/fedavg", {"executor": "forked", "max_concurrent_clients": 30}, 5),
        ("digits/fedavg", {"executor": "ray", "max_concurrent_clients": 3}, 4),
        ("voc07/fedalc", {"executor": "ray"}, 1),
    ],
    ids=["serial", "forked", "more workers than clients", "actors", "batched"],
)
def test_clients_that_share_a_trials_seconds(name, cluster, expected):
    """Of four slots, which only actors are in."""
    e = with_cluster(name, **cluster)
    assert _at_once(RunSpec(e, "", None), 4) == expected


def test_actors_have_shares_of_their_own():
    e = with_cluster("digits/fedavg", executor="ray", client_gpus=0.25, server_gpus=0.5)
    slot = {"CPU": 0.45, "GPU": 0.25}
    assert bundles(e, SweepOptions(slots=2)) == [{}, {"CPU": 0.1, "GPU": 0.5}, slot, slot]
