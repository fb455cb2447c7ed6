"""``evaluation.patience``: the run ends by its options alone, in the same round on every layout, also when resumed."""

from __future__ import annotations

import json

import pytest

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run import lifecycle
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.errors import LostError
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment, stopped_before
from tests.runs import quiet


def patient(patience, *, rounds=30, cluster=None, **evaluation):
    return small_experiment("fedavg", federation={"rounds": rounds}, evaluation={"patience": patience} | evaluation,
                            cluster=cluster or {})  # fmt: skip


def expected_end(scores, patience):
    """Return the number of the round, among the scored ones, in which the rule of the option's help ends a run."""
    best, since = -1.0, 0
    for number, score in scores:
        best, since = (score, 0) if score > best else (best, since + 1)
        if since == patience:
            return number
    return scores[-1][0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Validation scores of 30 rounds, by round."""
    folder = tmp_path_factory.mktemp("whole")
    run(patient(0), folder, quiet)
    return [(r.round, r.metrics["validation/f1_macro"]) for r in read_records(folder)[0] if r.round]


@pytest.mark.parametrize(("patience", "every"), [(1, 1), (2, 1), (1, 3)])
def test_it_ends_where_the_scores_say(tmp_path, finished_run, whole, patience, every):
    end = expected_end([(n, score) for n, score in whole if n % every == 0 or n == 30], patience)
    e = patient(patience, every=every)
    got = run(e, tmp_path, quiet)
    assert got.checksum == finished_run(patient(0, rounds=end)).checksum
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["rounds"], result["digest"]) == (end, digest(e))
    assert result.get("stopped", "") == (
        f"after round {end}: no better validation score in {patience} scored rounds" if end < 30 else ""
    )


@pytest.mark.parametrize("cluster", [{"executor": "forked"}, {"checkpoint_every": 4}])
def test_the_round_is_the_same_on_every_layout_and_saved(tmp_path, finished_run, cluster):
    plain, got = finished_run(patient(2)), run(patient(2, cluster=cluster), tmp_path, quiet)
    assert (got.checksum, got.scores) == (plain.checksum, plain.scores)
    index = json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text())
    assert index["round"] == json.loads((tmp_path / "result.json").read_text())["rounds"]


def test_a_server_that_is_lost_in_the_test_of_the_last_model_is_made_good(tmp_path, finished_run, monkeypatch):
    expected, plain, lost = finished_run(patient(2, test="last")), SerialExecutor.scores, []

    def vanishing(self, splits):
        if splits == ["test"] and not lost:
            lost.append(self.server)
            self.server = None
            raise LostError("the server actor is gone")
        return plain(self, splits)

    def recover(self):
        self.server = type(lost[0])(lost[0].run_spec)

    monkeypatch.setattr(SerialExecutor, "scores", vanishing)
    monkeypatch.setattr(SerialExecutor, "recover", recover)
    got = run(patient(2, test="last"), tmp_path, quiet)
    assert lost
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)


def test_a_resumed_run_ends_in_the_same_round(tmp_path, finished_run):
    plain = finished_run(patient(2))
    end = json.loads((plain.folder / "result.json").read_text())["rounds"]
    assert 2 < end < 30
    with stopped_before(end):
        run(patient(2), tmp_path, quiet)
    got = resume(tmp_path, quiet)
    assert (got.checksum, got.scores) == (plain.checksum, plain.scores)
    (tmp_path / "result.json").unlink()  # a kill behind the last checkpoint
    again = resume(tmp_path, quiet)
    assert (again.checksum, again.scores) == (plain.checksum, plain.scores)


def test_a_finished_run_that_is_called_again_keeps_its_result(tmp_path, monkeypatch):
    """It was deleted first, so that an interruption left no finished run."""
    e = small_experiment("fedavg", evaluation={"patience": 1}, federation={"rounds": 30})
    run(e, tmp_path, quiet)
    before = (tmp_path / "result.json").read_bytes()
    assert b"stopped" in before

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(lifecycle, "_draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(e, tmp_path, quiet)
    assert (tmp_path / "result.json").read_bytes() == before


def test_the_best_round_can_be_the_result_and_is_tested_once(tmp_path, whole):
    got = run(patient(2, model_selection="best_validation", test="last"), tmp_path, quiet)
    end = expected_end(whole, 2)
    best = max(score for n, score in whole if n <= end)
    assert got.scores["validation"]["f1_macro"] == pytest.approx(best)
    assert "test" in got.scores
    assert json.loads((tmp_path / "result.json").read_text())["round"] == min(n for n, s in whole if s == best)


def test_it_needs_validation_rows_and_no_negative_numbers():
    with pytest.raises(ValueError, match=r"evaluation\.patience = 3 needs validation rows"):
        small_experiment(evaluation={"patience": 3}, task={"validation": 0.0})
    with pytest.raises(ValueError, match=r"evaluation\.patience = -1: must be at least 0"):
        small_experiment(evaluation={"patience": -1})


def test_a_sweep_refuses_it():
    from anchorfl.pipeline.config.schema import to_toml
    from anchorfl.tuning.search.options import SweepOptions
    from anchorfl.tuning.search.search_space import space_of
    from anchorfl.tuning.sweep.plan import SweepPlan

    e = patient(3)
    with pytest.raises(InputError, match="ends trials by its scheduler"):
        SweepPlan("x", e, space_of(e), SweepOptions(), to_toml(e))
