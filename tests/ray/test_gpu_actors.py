"""Client actors that share one GPU give the bits of one process on it. ``pytest -m gpu`` runs them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from anchorfl.pipeline.run.lifecycle import run
from tests.runs import on_ray, quiet

pytestmark = [
    pytest.mark.ray,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch sees no CUDA device"),
    pytest.mark.usefixtures("ray_running"),
]


@pytest.mark.parametrize("method", ["fedavg", "fedalign", "scaffold"])
def test_actors_with_parts_of_a_gpu_give_one_checksum(experiment, tmp_path, method):
    e = experiment(method)
    alone = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, client_gpus=1.0))
    expected = run(alone, tmp_path / "serial", quiet)
    shared = on_ray(e, clients_per_actor=2)
    shared = dataclasses.replace(shared, cluster=dataclasses.replace(shared.cluster, client_gpus=0.25))
    got = run(shared, tmp_path / "ray", quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
