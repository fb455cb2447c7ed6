"""What happens every so many rounds also happens after the last, and the selected model is the one that was best."""

from __future__ import annotations

import dataclasses
import json

import pytest

from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.round_loop import RoundLoop
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from tests.runs import interrupted_before, quiet, recorded


@pytest.mark.parametrize(("every", "scored"), [(1, [0, 1, 2, 3]), (2, [0, 2, 3]), (3, [0, 3]), (7, [0, 3])])
def test_the_last_round_is_scored_kept_and_saved_whatever_the_interval(experiment, tmp_path, every, scored):
    e = experiment(evaluation={"every": every, "save_state_every": every}, cluster={"checkpoint_every": every})
    result = run(e, tmp_path / "run", quiet)
    rounds = recorded(tmp_path / "run")
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    assert [line["round"] for line in rounds if "test/f1_macro" in line] == scored
    assert result.scores["test"]["f1_macro"] == rounds[-1]["test/f1_macro"]
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.kept() == scored[1:]
    assert checkpoints.load().round == 3


@pytest.fixture
def best_in(monkeypatch):
    """Return a function that makes one round the best by its validation score, and the later ones worse and worse."""

    def make(best):
        plain = RoundLoop._evaluate

        def evaluate(self, round_):
            scores, seconds = plain(self, round_)
            scores["validation"].values["f1_macro"] = 1 / (1 + abs(round_ - best))
            return scores, seconds

        monkeypatch.setattr(RoundLoop, "_evaluate", evaluate)

    return make


@pytest.mark.parametrize("best", [1, 2, 3])
@pytest.mark.parametrize("killed", [3, 4])
def test_the_best_model_between_two_checkpoints_survives_a_kill(experiment, tmp_path, best_in, best, killed):
    """Saved with the next checkpoint, which is that of round 2; a later one that is worse does not replace it."""
    e = experiment(evaluation={"model_selection": "best_validation"}, federation={"rounds": 5, "epochs": 1})
    best_in(best)
    expected = run(e, tmp_path / "whole", quiet)
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, checkpoint_every=2))
    with interrupted_before(killed):
        run(e, tmp_path / "run", quiet)
    got = resume(tmp_path / "run", quiet)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["round"] == best
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
