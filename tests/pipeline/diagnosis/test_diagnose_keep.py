"""``evaluation.save_state_every``: the states of some rounds stay, and nothing else changes."""

from __future__ import annotations

import pytest

from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.round_loop import final_checksum
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.tasks.errors import InputError
from anchorfl.testing import stopped_before
from tests.runs import quiet


def kept(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "server_states").iterdir())}


def test_every_second_round_and_the_last_and_the_result_is_the_same(experiment, tmp_path):
    plain = run(experiment("fedalign", federation={"rounds": 5}), tmp_path / "plain", quiet)
    assert not (tmp_path / "plain" / "server_states").exists()
    got = run(
        experiment("fedalign", federation={"rounds": 5}, evaluation={"save_state_every": 2}), tmp_path / "kept", quiet
    )
    assert (got.checksum, got.scores) == (plain.checksum, plain.scores)
    assert list(kept(tmp_path / "kept")) == ["00002.safetensors", "00004.safetensors", "00005.safetensors"]
    checkpoints = Checkpoints(tmp_path / "kept")
    assert checkpoints.kept() == [2, 4, 5]
    assert final_checksum(checkpoints.read_kept(5)) == plain.checksum
    assert final_checksum(checkpoints.read_kept(4)) != plain.checksum
    (tmp_path / "kept" / "server_states" / "00002.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"00002\.safetensors is damaged"):
        checkpoints.read_kept(2)
    with pytest.raises(InputError, match=r"00003\.safetensors is missing: evaluation\.save_state_every"):
        checkpoints.read_kept(3)


@pytest.mark.parametrize("after_keeping", [False, True])
def test_stopped_and_resumed_it_gives_the_same_files(experiment, tmp_path, monkeypatch, after_keeping):
    """Stopped before a round, or between its kept state and the checkpoint that says that it is done."""
    e = experiment("fedalign", federation={"rounds": 4}, evaluation={"save_state_every": 2})
    run(e, tmp_path / "whole", quiet)
    plain = Checkpoints.save

    def save(self, round_, changed, notes):
        if round_ == 2:
            raise KeyboardInterrupt
        plain(self, round_, changed, notes)

    with stopped_before(3), monkeypatch.context() as patched:
        if after_keeping:
            patched.setattr(Checkpoints, "save", save)
        run(e, tmp_path / "parts", quiet)
    assert list(kept(tmp_path / "parts")) == ["00002.safetensors"]
    resume(tmp_path / "parts", quiet)
    assert kept(tmp_path / "parts") == kept(tmp_path / "whole")


def test_runs_that_keep_and_runs_that_do_not_are_one_group(experiment, tmp_path):
    for seed, keep in ((1, 0), (2, 1)):
        e = experiment("fedavg", seed=seed, federation={"rounds": 1}, evaluation={"save_state_every": keep})
        run(e, tmp_path / str(seed), quiet)
    assert len(compare([tmp_path / "1", tmp_path / "2"], None).groups) == 1


def test_a_negative_number_is_refused():
    with pytest.raises(InputError, match=r"evaluation\.save_state_every = -1: must be at least 0"):
        override(read_preset("digits/fedavg"), ["--evaluation.save_state_every", "-1"])
