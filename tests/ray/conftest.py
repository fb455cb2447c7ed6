"""One Ray for the tests of this folder, actors that the tests of a module take turns on, and a small preset."""

from __future__ import annotations

import functools

import pytest
import ray
from ray.exceptions import RayActorError

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.cluster.layout import layout
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.execution.actor_pool import ActorPools
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from tests.ray.sweeps import write_preset


@pytest.fixture(scope="session")
def ray_running():
    with ray_cluster.session(ClusterOptions()):
        yield


ACTOR_POOLS = ActorPools()


@pytest.fixture(scope="session")
def _actor_pools(ray_running):
    yield ACTOR_POOLS
    ACTOR_POOLS.close()


@pytest.fixture
def shared_actors(_actor_pools, monkeypatch):
    """Let runs find the actors of the run before: each process takes seconds to import torch.

    Their data are to be prepared in this process: Ray Data would wait for the CPUs of the actors.
    """
    begin = RayExecutor.__init__

    def on_shared(self, run_spec, actor_pool=None):
        e = run_spec.experiment
        begin(self, run_spec, actor_pool or _actor_pools.actor_pool(layout(e.cluster, e.task.clients)))

    monkeypatch.setattr(RayExecutor, "__init__", on_shared)
    yield
    if _actor_pools._pool is not None:
        try:
            ray.get(_actor_pools._pool.server.__ray_ready__.remote())
        except RayActorError:  # the test ended it
            _actor_pools.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """Leave the CPUs of the shared actors to a test that does without them."""
    if nextitem is not None and "shared_actors" not in nextitem.fixturenames:
        ACTOR_POOLS.close()


@pytest.fixture
def preset(experiment, tmp_path, monkeypatch):
    """Return a writer of small FedAlign presets of the toy task into the current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(write_preset, experiment)
