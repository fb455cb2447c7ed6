"""One Ray for the tests of this folder."""

from __future__ import annotations

import pytest

from pipeline import cluster
from pipeline.experiment import ClusterOptions


@pytest.fixture(scope="session")
def ray_running():
    started = cluster.start(ClusterOptions())
    yield
    if started:
        cluster.stop()
