"""Several runs of one command on one pool of actors: the same processes, and the bits of serial runs."""

from __future__ import annotations

import pytest
import ray

from anchorfl.pipeline.execution.actor_pool import ActorPool, ActorPools
from anchorfl.pipeline.run.lifecycle import run
from tests.runs import on_ray, quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_running")]


def test_a_run_finds_the_actors_of_the_run_before_it_and_gives_its_own_bits(experiment, tmp_path, monkeypatch):
    servers, start = [], ActorPool._server

    def counted(self):
        servers.append(start(self))
        return servers[-1]

    monkeypatch.setattr(ActorPool, "_server", counted)

    serial = {m: run(experiment(m), tmp_path / m, quiet).checksum for m in ("fedavg", "scaffold")}
    actor_pools = ActorPools()
    for i, (method, per_actor, started) in enumerate((("fedavg", 2, 1), ("scaffold", 2, 1), ("fedavg", 4, 2))):
        e = on_ray(experiment(method), clients_per_actor=per_actor)
        assert run(e, tmp_path / f"ray-{i}", quiet, actor_pools).checksum == serial[method]
        assert len(servers) == started  # the third run has another layout
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(servers[0].scores.remote("any", []))
    actor_pools.close()
