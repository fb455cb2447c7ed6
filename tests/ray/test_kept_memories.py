"""Clients' memories that actors write themselves: the bits of a run whose checkpoints hold them, resumed as well."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.diagnosis.analysis import open_analysis
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.tasks.errors import InputError
from anchorfl.testing import stopped_before
from tests.runs import on_ray, quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]


@pytest.mark.parametrize("method", ["scaffold", "moon", "fedrep"])
def test_a_run_has_numbers_for_them(experiment, finished_run, tmp_path, method):
    """Also where the clients' own models are scored. Stopped and resumed on the way."""
    e = experiment(method, optimizer={"state": "keep"}, federation={"rounds": 4})
    expected = finished_run(e)
    there = on_ray(e, memories=str(tmp_path / "kept"), clients_per_actor=2)
    with stopped_before(3):
        run(there, tmp_path / "run", quiet)
    with pytest.raises(InputError, match=r"where --cluster\.memories said when it was written"):
        run(on_ray(e, clients_per_actor=2), tmp_path / "run", quiet)
    got = run(there, tmp_path / "run", quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    parts = Checkpoints(tmp_path / "run").load().parts
    memories = [parts[name] for name in parts if name.startswith("memory-")]
    assert memories
    assert all(list(one) == ["kept in round"] for one in memories)
    if method == "scaffold":
        analysis = open_analysis(tmp_path / "run", quiet)
        plain = open_analysis(expected.folder, quiet)
        for client in range(e.task.clients):
            mine, theirs = analysis.memory(client), plain.memory(client)
            assert mine.keys() == theirs.keys()
            assert all(mine[name].equal(theirs[name]) for name in mine)
    for path in (tmp_path / "kept").rglob("*.safetensors"):
        path.unlink()
    if method == "scaffold":
        with pytest.raises(InputError, match="what it kept is gone"):
            open_analysis(tmp_path / "run", quiet).memory(0)
