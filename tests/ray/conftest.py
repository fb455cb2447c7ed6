"""One Ray for the tests of this folder, and a small preset."""

from __future__ import annotations

from pathlib import Path

import pytest

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.schema import to_toml


@pytest.fixture(scope="session")
def ray_running():
    with ray_cluster.session(ClusterOptions()):
        yield


@pytest.fixture
def preset(experiment, tmp_path, monkeypatch):
    """Return a writer of small FedAlign presets of the toy task into the current folder; keywords replace sections."""
    monkeypatch.chdir(tmp_path)

    def write(name: str = "toy.toml", **sections) -> str:
        base = {"cluster": {"executor": "ray"}, "tracking": {"uri": ""}}
        e = experiment("fedalign", options={"q1": 80.0, "q2": 40.0}, **(base | sections))
        Path(name).write_text(to_toml(e))
        return name

    return write
