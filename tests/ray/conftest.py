"""One Ray for the tests of this folder, and a small preset."""

from __future__ import annotations

import functools

import pytest

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
from tests.ray.sweeps import write_preset


@pytest.fixture(scope="session")
def ray_running():
    with ray_cluster.session(ClusterOptions()):
        yield


@pytest.fixture
def preset(experiment, tmp_path, monkeypatch):
    """Return a writer of small FedAlign presets of the toy task into the current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(write_preset, experiment)
