"""Several runs of one command on one crew: the same processes, and the bits of runs on their own."""

from __future__ import annotations

import pytest
import ray

from anchorfl.pipeline.execution.actor_pool import ActorPool, ActorPools
from anchorfl.pipeline.run.lifecycle import run
from tests.runs import quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_running")]


def test_a_run_finds_the_actors_of_the_run_before_it_and_gives_its_own_bits(experiment, tmp_path, monkeypatch):
    servers, start = [], ActorPool._server

    def counted(self):
        servers.append(start(self))
        return servers[-1]

    monkeypatch.setattr(ActorPool, "_server", counted)

    def made(folder, method, actors, actor_pools=None):
        e = experiment(method, cluster={"executor": "ray", "clients_per_actor": actors}, tracking={"uri": "none"})
        return run(e, tmp_path / folder, quiet, actor_pools).checksum

    runs = [("fedavg", 2), ("scaffold", 2), ("fedavg", 4)]
    alone = [made(f"alone-{i}", *each) for i, each in enumerate(runs[:2])]
    assert len(servers) == 2
    actor_pools = ActorPools()
    together = [made(f"together-{i}", *each, actor_pools) for i, each in enumerate(runs)]
    assert together == [*alone, alone[0]]
    assert len(servers) == 4  # the third run has another layout
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(servers[2].scores.remote("any", []))
    actor_pools.close()
