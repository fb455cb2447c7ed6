"""Checkpoints: whole or not at all, checked by checksum, and nothing else left behind."""

from __future__ import annotations

import pytest
import torch

from pipeline.checkpoint import Checkpoints
from tasks.contract import InputError


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weights/w": torch.full((3, 2), value), "step": torch.tensor(4), "mask": torch.tensor([True, False])}


def test_what_is_saved_is_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    checkpoints.save(
        1, {"state": tensors(1.0), "memory-00000": tensors(0.1), "memory-00003": tensors(0.3)}, {"best": 1}
    )
    checkpoints.save(2, {"state": tensors(2.0), "memory-00003": tensors(0.33)}, {"best": 2})
    found = checkpoints.load()
    assert found is not None
    assert (found.round, found.notes) == (2, {"best": 2})
    expected_parts = {"state": tensors(2.0), "memory-00000": tensors(0.1), "memory-00003": tensors(0.33)}
    assert found.parts.keys() == expected_parts.keys()
    for name, expected in expected_parts.items():
        got = found.parts[name]
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[k], expected[k]) and got[k].dtype == expected[k].dtype for k in got)


def test_old_files_go_and_foreign_drafts_do_not_matter(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"state": tensors(1.0), "memory-00000": tensors(0.1)}, {})
    (tmp_path / "checkpoint" / ".state-000002.safetensors.tmp").write_bytes(b"half")  # a kill while writing round 2
    assert checkpoints.load().round == 1
    checkpoints.save(2, {"state": tensors(2.0), "memory-00000": tensors(0.2)}, {})
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == [
        "checkpoint.json", "memory-00000-000002.safetensors", "state-000002.safetensors",
    ]  # fmt: skip


def test_a_kill_before_the_index_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    """The index is written last: without it the new files do not exist."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"state": tensors(1.0), "memory-00000": tensors(0.1)}, {})

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.checkpoint.json.dumps", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, {"state": tensors(2.0), "memory-00000": tensors(0.2)}, {})
    monkeypatch.undo()
    found = Checkpoints(tmp_path).load()
    assert found.round == 1
    assert torch.equal(found.parts["memory-00000"]["weights/w"], tensors(0.1)["weights/w"])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "state-000001.safetensors").write_bytes(b"x" * 90), "does not have the checksum"),
        (lambda f: (f / "state-000001.safetensors").unlink(), "is missing, though checkpoint.json names it"),
        (lambda f: (f / "checkpoint.json").write_text("{"), "is damaged"),
        (
            lambda f: (f / "checkpoint.json").write_text('{"format": 99}'),
            "has format 99, this version reads 1",
        ),
    ],
)
def test_damage_is_named(tmp_path, harm, message):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"state": tensors(1.0)}, {})
    harm(tmp_path / "checkpoint")
    with pytest.raises(InputError, match=message):
        checkpoints.load()


def test_parts_may_share_storage(tmp_path):
    """The selected model of this round is the state of this round: the same tensors in two files."""
    checkpoints = Checkpoints(tmp_path)
    state = tensors(1.0)
    checkpoints.save(1, {"state": state, "selected": state}, {})
    found = checkpoints.load()
    assert torch.equal(found.parts["selected"]["weights/w"], state["weights/w"])


def test_a_client_that_keeps_nothing_has_no_file(tmp_path):
    """Nor keeps one that it had: thousands of clients in a round are one file, not thousands."""
    checkpoints, one = Checkpoints(tmp_path), {"w": torch.ones(2)}
    checkpoints.save(1, {"state": one, "client-00000": one, "client-00001": {}}, {})
    assert set(checkpoints.load().parts) == {"state", "client-00000"}
    checkpoints.save(2, {"state": one, "client-00000": {}}, {})
    assert set(checkpoints.load().parts) == {"state"}
    assert len(list((tmp_path / "checkpoint").glob("*.safetensors"))) == 1
