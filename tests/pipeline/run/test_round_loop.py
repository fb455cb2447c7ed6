"""What happens every so many rounds also happens after the last, and the selected model is the one that was best."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest

from anchorfl.pipeline.execution.cohort import RoundOutcome
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.round_loop import LoopState, RoundLoop, round_metrics
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.sampling import select
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.testing import stopped_before
from tests.runs import quiet, recorded


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


def test_a_run_without_a_fault_has_counted_none(experiment, tmp_path):
    run(experiment(), tmp_path / "run", quiet)
    notes = Checkpoints(tmp_path / "run").load().notes
    assert (notes["failures"], notes["retries"], notes["faults"], notes["best_round"]) == (0, 0, {}, 0)
    assert LoopState().summary() == ""
    assert LoopState(failures=2, retries=1, faults={"crash": 3}).summary(1) == (
        "faults: 3 attempts of clients (3 crash), 1 of them made again, clients left out of a round: 2; started anew"
        " after the loss of the server: 1"
    )


def test_times_are_those_that_passed(experiment, tmp_path):
    began = time.perf_counter()
    run(experiment(), tmp_path / "run", quiet)
    passed, records = time.perf_counter() - began, read_records(tmp_path / "run")[0]
    for name in ("time/round", "time/evaluate"):
        seconds = [record.metrics[name] for record in records]
        assert min(seconds) > 0
        assert sum(seconds) < passed
    assert all(record.metrics["failures/server_restarts"] == 0 for record in records)


def test_the_next_rounds_clients_start_while_a_round_is_scored(experiment, tmp_path, monkeypatch):
    """A whole run lets them train already; one that is driven round by round only has their processes ready."""
    seen = []
    monkeypatch.setattr(SerialExecutor, "warm_up", lambda self, clients: seen.append(("ready", [*clients])))
    monkeypatch.setattr(
        SerialExecutor, "start_next_round", lambda self, round_, clients, backups: seen.append((round_, [*clients]))
    )
    e = experiment(seed=2)
    cohorts = [select(4, 3, round_, e.seed) for round_ in (1, 2, 3)]
    assert len({*map(tuple, cohorts)}) == 3, "three cohorts, to tell them apart"
    run(e, tmp_path / "run", quiet)
    assert seen == [("ready", cohorts[0]), (2, cohorts[1]), (3, cohorts[2])]
    seen.clear()
    monkeypatch.setattr(RoundLoop, "_runs_all_rounds", property(lambda self: False, lambda self, value: None))
    run(e, tmp_path / "stepped", quiet)
    assert seen == [("ready", cohort) for cohort in cohorts]


@pytest.mark.parametrize("notes", [{"best_round": 3}, {"round": 1}, {"best_round": -1}, {"round": "two"}])
def test_a_checkpoint_whose_notes_contradict_it_is_refused(experiment, tmp_path, notes):
    with stopped_before(3):
        run(experiment(), tmp_path / "run", quiet)
    checkpoints = Checkpoints(tmp_path / "run", kept=1)
    found = checkpoints.load()
    assert found.round == 2
    checkpoints.save(2, found.parts, found.notes | notes)
    with pytest.raises(InputError, match="is not of this run"):
        resume(tmp_path / "run", quiet)


def test_a_checkpoint_of_more_rounds_than_the_run_has_is_refused(experiment, tmp_path):
    with stopped_before(3):
        run(experiment(), tmp_path / "run", quiet)
    checkpoints = Checkpoints(tmp_path / "run", kept=1)
    found = checkpoints.load()
    checkpoints.save(2**40, found.parts, found.notes | {"round": 2**40})
    with pytest.raises(InputError, match=rf"is not of this run \(notes: round {2**40} of 3"):
        resume(tmp_path / "run", quiet)


def test_what_a_worker_lacks_is_no_fault_of_the_checkpoint(experiment, tmp_path, monkeypatch):
    """On Ray a resumed run is the first to wait for the server, and was asked to start anew in another folder."""
    with stopped_before(2):
        run(experiment(), tmp_path / "run", quiet)

    def restore(self, state, memories):
        raise PreparedDataError("rows-00000.parquet is damaged; delete the folder and prepare the data again")

    monkeypatch.setattr(SerialExecutor, "restore", restore)
    with pytest.raises(PreparedDataError, match=r"\Arows-00000.parquet is damaged; delete the folder"):
        resume(tmp_path / "run", quiet)


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
    with stopped_before(killed):
        run(e, tmp_path / "run", quiet)
    got = resume(tmp_path / "run", quiet)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["round"] == best
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)


@pytest.mark.parametrize(
    ("method", "options", "what"),
    [
        ("fedrep", {"head_epochs": 2}, r"method.head_epochs = 2"),
        ("fedalign", {"alternate_every": "epoch"}, r"method.alternate_every = 'epoch'"),
    ],
)
def test_steps_do_not_part_a_round_of_phases(experiment, tmp_path, method, options, what):
    e = experiment(method, options=options, federation={"steps": 3})
    message = f"federation.steps = 3: clients of '{method}' train by whole epochs \\({what}\\): leave it out"
    with pytest.raises(InputError, match=message):
        run(e, tmp_path / "run", quiet)


def test_a_run_by_steps_is_one_of_its_own(experiment, tmp_path):
    """Its clients take them, whatever ``epochs`` says; SCAFFOLD counts them."""
    runs = [experiment("scaffold", federation={"steps": 5, "epochs": epochs}) for epochs in (1, 4)]
    checksums = {run(e, tmp_path / str(k), quiet).checksum for k, e in enumerate(runs)}
    assert len(checksums) == 1
    assert checksums != {run(experiment("scaffold"), tmp_path / "epochs", quiet).checksum}


@pytest.mark.parametrize(("answered", "recorded"), [((0, 1, 2), None), ((1, 4), 2.0), ((), 0.0)])
def test_a_round_of_another_size_says_how_many_answered(answered, recorded):
    """Poisson draws are of no fixed number: a table divides the bytes of a round by it."""
    metrics = round_metrics(RoundOutcome(answered), 1.0, 0.1, selected=3)
    assert metrics.get("clients/completed") == recorded
