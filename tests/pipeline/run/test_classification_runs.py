"""Runs that are scored as FedBM's tables are: what is recorded, which round is chosen by what, compared, predicted."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from anchorfl.pipeline.config.evaluation import EvaluationOptions
from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.config.schema import with_options
from anchorfl.pipeline.execution.executor import RoundOutcome, SerialExecutor
from anchorfl.pipeline.results.compare import compare, load_run
from anchorfl.pipeline.results.predict import predict
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.round_loop import RoundLoop
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.evaluation import logits_of
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.scores import FAMILIES, Scores
from anchorfl.testing import stopped_before
from anchorfl.tuning.search.options import SweepOptions, resolve_metric
from tests.runs import quiet

NAMES = [measure.name for measure in FAMILIES["classification"].measures]
SPLITS = ("validation", "test")


@pytest.fixture
def classed(experiment):
    """Return a maker of small experiments on the toy texts that are scored by classification."""

    def make(select="last", method="fedavg", **sections):
        return experiment(method, evaluation={"metrics": "classification", "model_selection": select}, **sections)

    return make


def test_scores_are_those_of_the_logits(classed):
    executor = SerialExecutor(make_run_spec(classed(), quiet))
    executor.round(1, [0, 1, 2], lambda *_: None)
    server, got = executor.server, executor.scores(SPLITS)
    for name in SPLITS:
        rows = server.splits[name]
        logits_NC = logits_of(server.model, rows)
        prob_NC, y_NC = server.objective.scores(logits_NC).double().numpy(), rows.y_NC.numpy()
        assert y_NC.any(0).all()
        assert list(got[name].values) == NAMES
        assert got[name].values["accuracy"] == pytest.approx((prob_NC.argmax(1) == y_NC.argmax(1)).mean())
        assert got[name].values["auc"] == pytest.approx(roc_auc_score(y_NC, prob_NC), abs=1e-6)


def test_records_result_digest_and_weights(classed, experiment, finished_run, tmp_path, capsys):
    plain = finished_run(experiment())
    capsys.readouterr()
    result = run(classed(), tmp_path / "run", quiet)
    assert result.checksum == plain.checksum
    assert digest(classed()) != digest(experiment())
    records = read_records(tmp_path / "run")[0]
    for record in records:
        assert [n for n in record.metrics if n.startswith(SPLITS)] == [f"{s}/{n}" for s in SPLITS for n in NAMES]
        assert set(record.per_class) == {f"{s}/{n}" for s in SPLITS for n in ("f1", "precision", "recall", "auc")}
    last = result.scores["test"]
    assert last == {n: records[-1].metrics[f"test/{n}"] for n in NAMES}
    shown = f"test F1 {100 * last['f1_macro']:5.2f}  acc {100 * last['accuracy']:5.2f}"
    assert f"round 3/3  {shown}  AUC {100 * last['auc']:5.2f}  0:00 left" in capsys.readouterr().out
    for name in ("f1_macro", "accuracy"):
        assert last[name] == plain.scores["test"][name]


class Scripted:
    """An executor whose scores are written down; asked: the splits that were asked for, round by round."""

    def __init__(self, validation, test):
        self.said, self.asked, self.round_ = {"validation": validation, "test": test}, [], 0

    def round(self, round_, selected, on_progress, backup_clients=()):
        self.round_ = round_
        return RoundOutcome(tuple(selected), loss=1.0)

    def warm_up(self, clients):
        """Nothing to start."""

    def start_next_round(self, round_, selected, backup_clients=()):
        """Start nothing ahead."""

    def scores(self, splits):
        self.asked.append(tuple(splits))
        return {s: Scores("classification", self.said[s][self.round_]) for s in splits}

    def snapshot(self):
        return {"weights/round": np.array(self.round_)}

    def memory_later(self, client):
        return dict


class Silent:
    def __getattr__(self, name):
        return lambda *_, **__: None


def chosen(e, validation, test):
    """(round, asked) of a run with these scores in rounds 0, 1, 2, ..."""
    e = replace(e, federation=replace(e.federation, rounds=len(validation) - 1))
    executor = Scripted(validation, test)
    loop = RoundLoop(e, (), executor, Silent(), Silent(), Silent())
    state = loop.run()
    assert int(state["weights/round"]) == (loop.state.best_round or loop.state.round)
    return int(state["weights/round"]), executor.asked


def figures(**values):
    return dict.fromkeys(NAMES, 0.5) | values


@pytest.mark.parametrize(
    ("select", "round_"), [("last", 4), ("best_validation", 2), ("best_validation_f1", 2), ("best_validation_sum", 1)]
)
@pytest.mark.parametrize("test", ["always", "last", "never"])
def test_the_rule_picks_the_first_best_and_never_reads_the_test_split(classed, select, round_, test):
    """Round 0 is best of all and does not count; rounds 1 and 3 have the same sum, and round 2 the best F1."""
    validation = [
        figures(f1_macro=0.99, sum=0.99), figures(f1_macro=0.6, sum=0.8), figures(f1_macro=0.9, sum=0.7),
        figures(f1_macro=0.6, sum=0.8), figures(f1_macro=0.8, sum=0.75),
    ]  # fmt: skip
    for best in range(5):
        tested = [figures(f1_macro=float(r == best), sum=float(r == best)) for r in range(5)]
        e = classed(select)
        e = replace(e, evaluation=replace(e.evaluation, test=test))
        got, asked = chosen(e, validation, tested)
        assert got == round_
        if test == "never" or (test == "last" and select != "last"):
            assert set(asked) == {("validation",)}


@pytest.mark.parametrize("select", ["best_validation_sum", "best_validation_f1"])
def test_a_chosen_round_survives_an_interruption(classed, tmp_path, select):
    figure = {"best_validation_sum": "sum", "best_validation_f1": "f1_macro"}[select]
    e = classed(select, federation={"rounds": 5})
    whole = run(e, tmp_path / "whole", quiet)
    records = [r for r in read_records(tmp_path / "whole")[0] if r.round]
    best = max(records, key=lambda r: (r.metrics[f"validation/{figure}"], -r.round))
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["round"] == best.round
    assert whole.scores["test"] == {n: best.metrics[f"test/{n}"] for n in NAMES}
    with stopped_before(3):
        run(e, tmp_path / "parts", quiet)
    again = resume(tmp_path / "parts", quiet)
    assert (again.checksum, again.scores) == (whole.checksum, whole.scores)


def test_what_metrics_do_not_have_is_refused(experiment, classed):
    lacking = (
        r"'best_validation_sum': runs with evaluation.metrics = 'threshold' have no sum of five scores; set metrics"
    )
    with pytest.raises(ValueError, match=lacking + r" to 'classification', or select to 'best_validation'"):
        EvaluationOptions(model_selection="best_validation_sum")
    with pytest.raises(InputError, match=r"'ranking' have no macro F1; set metrics to 'threshold' or 'classification'"):
        with_options(
            experiment(), {"evaluation.metrics": "ranking", "evaluation.model_selection": "best_validation_f1"}
        )
    assert EvaluationOptions(model_selection="best_validation_f1").chosen_by.name == "f1_macro"
    assert EvaluationOptions(model_selection="best_validation", metrics="ranking").chosen_by.name == "p_at_1"
    with pytest.raises(InputError, match=r"'best_validation_sum' needs validation rows: set task.validation above 0"):
        with_options(classed("best_validation_sum"), {"task.validation": 0.0})
    e = classed()
    with pytest.raises(InputError, match=r"'classification' is for single-label tasks, and 'toy-multi' is multi-label"):
        make_run_spec(replace(e, task=replace(e.task, name="toy-multi")), quiet)


def test_a_sweep_takes_every_figure():
    assert [resolve_metric(SweepOptions(metric=name), "classification") for name in NAMES] == NAMES
    assert resolve_metric(SweepOptions(), "classification") == "f1_macro"
    with pytest.raises(
        ValueError, match=r"--metric map: with evaluation.metrics = 'classification' there are f1_macro"
    ):
        resolve_metric(SweepOptions(metric="map"), "classification")


def test_runs_side_by_side_with_the_round_of_the_best_sum(classed, experiment, tmp_path):
    run(classed(federation={"rounds": 4}), tmp_path / "a", quiet)
    run(experiment(), tmp_path / "b", quiet)
    records = [r for r in read_records(tmp_path / "a")[0] if r.round]
    best = max(records, key=lambda r: (r.metrics["validation/sum"], -r.round))
    values = load_run(tmp_path / "a").values
    assert values["f1_best_sum"] == best.metrics["test/f1_macro"]
    assert values["auc_best_sum"] == best.metrics["test/auc"]
    assert not [name for name in load_run(tmp_path / "b").values if "sum" in name]
    got = compare([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert "acc best sum" in got.text.splitlines()[0]
    assert "macro F1, best sum: that with the best validation sum of five scores." in " ".join(got.text.split())
    with (tmp_path / "out" / "comparison.csv").open(newline="") as stream:
        first, second = csv.DictReader(stream)
    assert float(first["f1_best_sum_percent"]) == pytest.approx(100 * values["f1_best_sum"], abs=0.01)
    assert second["f1_best_sum_percent"] == second["auc_last_percent"] == ""
    alone = compare([tmp_path / "b"], None).text
    assert "sum" not in alone


def test_a_saved_model_is_scored_the_same_way(classed, tmp_path):
    run(classed(), tmp_path / "run", quiet)
    (tmp_path / "new.txt").write_text("engine\tmotor wheel fuel\nfruit\tapple tree\nmusic\tsong violin\n")
    got = predict(tmp_path / "run" / "model", tmp_path / "new.txt")
    assert list(got.truth.values) == NAMES
    assert [len(classes) for classes in got.predicted] == [1, 1, 1]
    assert got.truth.notes == ("1 of 4 classes have no row, or all of them; AUC leaves them out",)
