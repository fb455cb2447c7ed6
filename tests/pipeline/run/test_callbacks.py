"""Callbacks: called once a round with copies, they change no bit, end a run early, and fail by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import anchorfl
from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.run_record import read_metadata, read_records
from anchorfl.testing import small_experiment, stopped_before
from tests.runs import quiet, recorded


def test_they_see_every_round_once_and_change_nothing(tmp_path):
    e, seen = small_experiment("fedalign", model={"dropout": 0.5}), []

    def meddle(report):
        seen.append((report.round, report.rounds, report.folder))
        report.metrics.clear()
        for values in report.per_class.values():
            values.clear()
        torch.rand(7)
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.set_grad_enabled(False)

    plain = run(e, tmp_path / "plain", quiet)
    got = run(e, tmp_path / "got", quiet, callbacks=[meddle])
    assert (got.checksum, got.scores) == (plain.checksum, plain.scores)
    assert recorded(tmp_path / "got") == recorded(tmp_path / "plain")
    assert seen == [(number, 3, tmp_path / "got") for number in range(4)]


def test_a_resumed_run_reports_the_round_of_its_checkpoint_and_what_it_computes(tmp_path):
    """A kill may have come before they had that one."""
    e, seen = small_experiment(), []
    with stopped_before(2):
        run(e, tmp_path, quiet, callbacks=[lambda report: seen.append(report.round)])
    resume(tmp_path, quiet, callbacks=[lambda report: seen.append(report.round)])
    assert seen == [0, 1, 1, 2, 3]


def test_a_run_that_a_callback_ended_is_the_same_when_it_is_called_again(tmp_path):
    """As a notebook's cell is; it went on by a round each time. Likewise after a kill in its last breath."""
    e, stop = small_experiment(federation={"rounds": 6}), [lambda report: report.round >= 2]
    first = run(e, tmp_path, quiet, callbacks=stop)
    for again in (run(e, tmp_path, quiet, callbacks=stop), (tmp_path / "result.json").unlink()):
        assert again is None or again.checksum == first.checksum
    assert resume(tmp_path, quiet, callbacks=stop).checksum == first.checksum
    assert json.loads((tmp_path / "result.json").read_text())["rounds"] == 2


def test_a_run_that_goes_on_after_such_an_end_is_not_finished_until_it_is(tmp_path, finished_run):
    """Interrupted again, it was held to be finished, with the scores of the first end."""
    e = small_experiment(federation={"rounds": 4})
    run(e, tmp_path, quiet, callbacks=[lambda report: report.round == 2])

    def fails(report):
        assert report.round < 3

    with pytest.raises(anchorfl.CallbackError):
        run(e, tmp_path, quiet, callbacks=[fails])
    assert not anchorfl.Run(tmp_path).finished
    assert resume(tmp_path, quiet).checksum == finished_run(e).checksum
    assert json.loads((tmp_path / "result.json").read_text())["rounds"] == 4


@pytest.mark.parametrize(
    ("executor", "every", "end"),
    [
        ("serial", {"evaluation": {"every": 2}}, 2),
        ("serial", {"cluster": {"checkpoint_every": 2}}, 2),
        ("forked", {}, 1),
    ],
)
def test_true_ends_the_run_where_it_is_scored_and_saved(tmp_path, finished_run, executor, every, end):
    """Up to there it is the whole run; its result says why, and no table takes it for one."""
    cluster = {"executor": executor} | every.get("cluster", {})
    e = small_experiment("fedavg", evaluation=every.get("evaluation", {}), cluster=cluster, federation={"rounds": 5})

    def enough(report):
        return report.round == 1

    got = run(e, tmp_path / "run", quiet, callbacks=[enough])
    short = small_experiment("fedavg", federation={"rounds": end})
    assert got.checksum == finished_run(short).checksum
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    why = f"after round {end} by callback {enough.__qualname__}"
    assert (result["rounds"], result["stopped"]) == (end, why)
    assert result["digest"] == f"{why}: {digest(e)}"
    assert [record.round for record in read_records(tmp_path / "run")[0]] == list(range(end + 1))
    assert read_metadata(tmp_path / "run")["status"] == "FINISHED"
    assert resume(tmp_path / "run", quiet).checksum == got.checksum
    assert "stopped after round" in repr(anchorfl.Run(tmp_path / "run"))


@pytest.mark.parametrize("killed", [0, 3])
def test_an_end_that_waits_for_a_scored_round_is_not_forgotten(tmp_path, killed):
    """Called again, or after a kill, it went on to the next scored round."""
    e = small_experiment("fedavg", evaluation={"every": 3, "save_state_every": 4}, federation={"rounds": 6})

    def enough(report):
        return report.round == 1

    if killed:
        with stopped_before(killed):
            run(e, tmp_path, quiet, callbacks=[enough])
        resume(tmp_path, quiet, callbacks=[enough])
    for _ in range(2):
        run(e, tmp_path, quiet, callbacks=[enough])
        assert json.loads((tmp_path / "result.json").read_text())["rounds"] == 3
        assert [path.name for path in (tmp_path / "server_states").iterdir()] == ["00003.safetensors"]
    assert run(e, tmp_path, quiet).checksum == run(e, tmp_path / "whole", quiet).checksum


def test_true_before_the_first_round_ends_the_run_after_it(tmp_path):
    """It ended untrained, without scores and without a checkpoint."""
    result = run(small_experiment(), tmp_path, quiet, callbacks=[lambda report: True])
    assert json.loads((tmp_path / "result.json").read_text())["rounds"] == 1
    assert set(result.scores) >= {"validation"}


def test_a_comparison_of_numpy_is_an_answer(tmp_path):
    e = small_experiment("fedavg")
    run(e, tmp_path / "run", quiet, callbacks=[lambda report: np.float64(report.round) > 0.5, lambda report: 1])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rounds"] == 1


@pytest.mark.parametrize(
    ("method", "select"), [("fedavg", "last"), ("fedavg", "best_validation"), ("fedproto", "last")]
)
def test_a_run_that_ends_early_is_tested_once(tmp_path, finished_run, method, select):
    """With ``evaluation.test = last``, on the server's weights and on clients' own models."""
    evaluation = {"test": "last", "model_selection": select}
    e = small_experiment(method, evaluation=evaluation, federation={"rounds": 5})
    got = run(e, tmp_path / "run", quiet, callbacks=[lambda report: report.round == 3])
    assert got.scores == finished_run(small_experiment(method, evaluation=evaluation)).scores
    assert set(got.scores) == {"validation", "test"}


def test_true_after_the_last_round_is_no_early_end(tmp_path):
    run(small_experiment(), tmp_path, quiet, callbacks=[lambda report: True if report.round == 3 else 1])
    assert "stopped" not in json.loads((tmp_path / "result.json").read_text())


def test_one_that_fails_is_named_and_the_run_goes_on_from_there(tmp_path, finished_run):
    e = small_experiment()

    class Plot:
        def __call__(self, report):
            if report.round == 2:
                raise OSError("no screen\nat all")

    with pytest.raises(
        anchorfl.CallbackError, match=r"callback .*Plot failed after round 2: OSError: no screen; the rou"
    ):
        run(e, tmp_path / "run", quiet, callbacks=[Plot()])
    assert read_metadata(tmp_path / "run")["status"] == "FAILED"
    assert [record.round for record in read_records(tmp_path / "run")[0]] == [0, 1, 2]
    assert resume(tmp_path / "run", quiet).checksum == finished_run(e).checksum
