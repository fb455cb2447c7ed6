"""Shares that the cluster has no room for are refused before anything is prepared."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from anchorfl.pipeline.cluster import layout, ray_cluster, ray_watch
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.run import lifecycle
from anchorfl.tasks.errors import InputError
from tests.runs import quiet


class PreparedError(Exception):
    """Stands for data that were prepared."""


@pytest.fixture
def two_cpus(monkeypatch):
    """A Ray of two CPUs and no GPU, which is not started."""

    def prepared(*_):
        raise PreparedError

    monkeypatch.setattr(ray_cluster, "session", lambda _: nullcontext())
    monkeypatch.setattr(ray_watch, "if_ray_dies", lambda *_: nullcontext())
    monkeypatch.setattr(layout, "nodes", lambda: [layout.Node(2.0, (), 1e9)])
    monkeypatch.setattr(lifecycle, "make_run_spec", prepared)


def on_ray(name, gpus):
    e = read_preset(name)
    return replace(e, cluster=replace(e.cluster, executor="ray", client_gpus=gpus))


def test_a_share_of_a_gpu_that_is_not_there(two_cpus, tmp_path):
    with pytest.raises(InputError, match=r"\A10 client actors of 0\.25 GPU .* need 2\.5 GPUs, the cluster has 0: "):
        lifecycle.run(on_ray("digits/fedavg", 0.25), tmp_path, quiet)


@pytest.mark.parametrize(("name", "gpus"), [("digits/fedavg", 0.0), ("voc07/fedalc", 0.5)])
def test_what_fits_goes_on_and_so_do_batched_rounds(two_cpus, tmp_path, name, gpus):
    """These train in this process, which looks for its GPU itself."""
    with pytest.raises(PreparedError):
        lifecycle.run(on_ray(name, gpus), tmp_path, quiet)


def test_clients_share_the_actors_that_the_gpus_hold(two_cpus, tmp_path, monkeypatch):
    """Ten clients of a quarter on two GPUs: 8 places, of which as many as train at a time. Where one has its own actor
    by ``clients_per_actor``, all must fit. The server's share is left out.
    """
    monkeypatch.setattr(layout, "nodes", lambda: [layout.Node(4.0, (1.0,), 1e9)] * 2)
    cluster = on_ray("digits/fedavg", 0.25).cluster
    assert layout.layout(cluster, 10).actors == 8
    assert layout.layout(cluster, 8).actors == 8
    assert layout.layout(replace(cluster, max_concurrent_clients=5), 10).actors == 5
    assert layout.layout(replace(cluster, client_gpus=0.6), 10).actors == 2
    assert layout.layout(replace(cluster, server_gpus=0.5), 10).actors == 6
    assert layout.layout(replace(cluster, client_gpus=0.1), 10).actors == 10
    with pytest.raises(InputError, match=r"10 client actors of 0\.25 GPU"):
        layout.layout(replace(cluster, clients_per_actor=1), 10)
    said = list[str]()
    with pytest.raises(PreparedError):
        lifecycle.run(on_ray("digits/fedavg", 0.25), tmp_path, said.append)
    assert said == ["8 client actors of 0.25 GPU, which take turns for 10 clients"]
