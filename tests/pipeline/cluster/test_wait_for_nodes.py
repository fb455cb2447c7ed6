"""Asking an autoscaler for nodes: told once, waited for, and taken back whatever happens."""

from __future__ import annotations

import dataclasses
import math

import pytest
import ray
import ray.autoscaler.sdk

from anchorfl.pipeline.cluster.ray_cluster import busy_line, wait_for_nodes
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.tasks.errors import InputError

OPTIONS = ClusterOptions(address="auto", wait_for_cpus=4, wait_for_gpus=1, wait_minutes=1.0)


@pytest.fixture
def asked(monkeypatch):
    """Return the list of requests to the autoscaler; each look adds two CPUs, and half the time a GPU."""
    requests: list[list[dict[str, int]]] = []
    looks = iter([{}, {"CPU": 2.0}, {"CPU": 4.0}, {"CPU": 4.0, "GPU": 1.0}])
    monkeypatch.setattr(ray.autoscaler.sdk, "request_resources", lambda bundles: requests.append(bundles))
    monkeypatch.setattr(ray, "cluster_resources", lambda: next(looks, {"CPU": 4.0, "GPU": 1.0}))
    return requests


def test_waits_until_everything_is_there(asked):
    wait_for_nodes(OPTIONS, pause_s=0.0)
    assert asked == [[{"CPU": 1}] * 4 + [{"GPU": 1}], []]


def test_says_what_did_not_come_and_takes_the_request_back(asked):
    with pytest.raises(InputError, match=r"did not get 4 CPUs \(has 0\) and 1 GPUs \(has 0\) within 0 minutes"):
        wait_for_nodes(dataclasses.replace(OPTIONS, wait_minutes=0.0), pause_s=0.0)
    assert asked[-1] == []


def test_nothing_is_asked_for_without_the_option(asked):
    wait_for_nodes(ClusterOptions(address="auto"))
    assert asked == []


def test_the_options_are_checked():
    with pytest.raises(ValueError, match=r"wait_for_cpus and wait_for_gpus need a running cluster"):
        ClusterOptions(wait_for_gpus=1)
    with pytest.raises(ValueError, match=r"cluster.wait_minutes = -1"):
        ClusterOptions(wait_minutes=-1)
    for name in ("wait_minutes", "client_cpus", "client_cache_mb", "client_gpus", "server_gpus"):
        for value in (math.nan, math.inf):
            with pytest.raises(ValueError, match=f"cluster.*{name}"):
                ClusterOptions(**{name: value})


@pytest.mark.parametrize(("free", "line"), [(4.0, ""), (1.5, "others use 2.5 of the cluster's 4 CPUs")])
def test_what_others_use_is_said(monkeypatch, free, line):
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": free})
    assert busy_line(4.0).startswith(line)
    assert bool(busy_line(4.0)) == bool(line)
