"""The states that ``evaluation.save_state_every`` keeps are the same bytes on Ray."""

from __future__ import annotations

import dataclasses

import pytest

from anchorfl.pipeline.run.lifecycle import run
from tests.runs import quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]


def test_serial_and_ray_keep_the_same_bytes(experiment, tmp_path):
    e = experiment("fedalign", evaluation={"save_state_every": 2})
    run(e, tmp_path / "serial", quiet)
    run(dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="ray")), tmp_path / "ray", quiet)
    ray, serial = (tmp_path / name / "server_states" for name in ("ray", "serial"))
    for name in ("00002.safetensors", "00003.safetensors"):
        assert (ray / name).read_bytes() == (serial / name).read_bytes()
