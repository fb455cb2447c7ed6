"""The terms of FedAlign's bound: each against its definition, on runs of both kinds and on rows made for the case."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from anchorfl.models import heads
from anchorfl.pipeline.diagnosis import theory as module
from anchorfl.pipeline.diagnosis.analysis import open_analysis
from anchorfl.pipeline.diagnosis.diagnose import diagnose
from anchorfl.pipeline.diagnosis.theory import _distances, _pool, joint_classifier, sample_term
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.errors import UpdateError
from anchorfl.tasks.errors import InputError
from tests.pipeline.diagnosed import QUICK, table
from tests.runs import quiet

ONLY = replace(QUICK, parts=("theory", "pseudo"))


@pytest.fixture
def diagnosed(experiment, tmp_path):
    def make(method, task, **options):
        e = experiment(method, task, evaluation={"save_state_every": 2}, **options)
        run(replace(e, task=replace(e.task, classes_per_client=2)), tmp_path / "run", quiet)
        return tmp_path / "run", diagnose(tmp_path / "run", ONLY, quiet)

    return make


@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_the_table_of_a_run_with_pseudo_labels(diagnosed, task):
    """Counts are those of the rows, risks those of the decisions, N* and means follow from the table."""
    options = {"q1": 60.0, "q2": 40.0}
    folder, lines = diagnosed("fedalign", task, options=options)
    rows = table(folder / "diagnosis" / "theory.csv")
    analysis = open_analysis(folder, quiet)
    assert [(r["round"], r["client"]) for r in rows] == [(t, str(m)) for t in ("2", "3") for m in range(4)]
    last = rows[4:]
    for m, row in enumerate(last):
        given = analysis.rows(m)
        known_NC, y_NC = given.known_NC.numpy() == 1, given.y_NC.numpy() == 1
        server = analysis.at(3)
        server.model.load_state_dict(server.state.weights)
        logits_NC = server.model.head(analysis.represent(server.state.weights, given)).detach().numpy()
        if task == "toy-single":
            labeled_N = (known_NC & y_NC).any(1)
            wrong = (logits_NC.argmax(1) != y_NC.argmax(1))[labeled_N].mean()
        else:
            labeled_N = known_NC.any(1)
            wrong = ((logits_NC > 0) != y_NC)[known_NC].mean()
        assert int(row["labeled"]) == labeled_N.sum()
        assert float(row["risk"]) == pytest.approx(wrong, abs=1e-5)
        total = int(row["labeled"]) + int(row["pseudo"])
        assert int(row["pseudo"]) > 0
        assert float(row["share"]) == pytest.approx(int(row["labeled"]) / total, abs=1e-5)
        assert float(row["sample_term_both"]) < float(row["sample_term"])
        assert 0 <= float(row["lambda_bound"]) <= 2
    records = {r.round: r.metrics for r in read_records(folder / "diagnosis")[0]}
    assert records[3]["diagnosis/theory/n_star"] == sum(int(r["labeled"]) + int(r["pseudo"]) for r in last)
    assert records[3]["diagnosis/theory/risk"] == pytest.approx(np.mean([float(r["risk"]) for r in last]), abs=1e-5)
    assert sum("theory after round 3" in line for line in lines) == 1
    compared = [r for r in last if r["distance_pseudo"]]  # the others have fewer than 20 rows
    smaller = sum(float(r["distance_pseudo"]) < float(r["distance_labeled"]) for r in compared)
    assert len(compared) == (4 if task == "toy-multi" else 0)
    assert any(f"(smaller at {smaller} of {len(compared)} clients" in line for line in lines) == bool(compared)
    assert (folder / "diagnosis" / "theory.png").stat().st_size > 10_000
    assert "rows of all clients" in (folder / "diagnosis" / "theory.svg").read_text()
    noted = json.loads((folder / "diagnosis" / "diagnosis.json").read_text())["parts"]["theory"]
    assert (noted["delta"], noted["repeats"]) == (0.05, 5)
    if task == "toy-single":  # a softmax has no loss on a negative: as many rows as positives
        positives = [r for r in table(folder / "diagnosis" / "pseudo_labels.csv") if r["class"] == ""]
        assert [int(r["positive"]) for r in positives] == [
            sum(int(r["pseudo"]) for r in rows if r["round"] == t) for t in ("2", "3")
        ]


def test_a_method_without_pseudo_labels_has_the_other_terms(diagnosed, monkeypatch):
    """Without the raw labels, lambda is left out, and it is said why."""

    def gone(*_):
        raise InputError("the raw files are gone")

    monkeypatch.setattr(module, "read_truth", gone)
    folder, lines = diagnosed("fedavg", "toy-single")
    rows = table(folder / "diagnosis" / "theory.csv")
    assert {(r["pseudo"], r["distance_pseudo"], r["distance_both"], r["lambda_bound"], r["share"]) for r in rows} == {
        ("0", "", "", "", "1")
    }
    assert all(r["distance_labeled"] for r in rows)
    assert any("lambda at most none (left out: the raw files are gone)" in line for line in lines)


def test_a_head_that_takes_much_of_a_row_gets_few_rows_at_once(experiment, finished_run, monkeypatch, tmp_path):
    analysis = open_analysis(finished_run(experiment("fedlgt", "toy-multi")).folder, quiet)
    head, called = analysis.server.model.head, []
    monkeypatch.setattr(heads, "VALUES_AT_ONCE", 5 * head.values_of_row)
    head.register_forward_hook(lambda head, given, out: called.append(len(out)))
    module.theory(analysis, tmp_path, cap=50, log=quiet)
    assert max(called) == 5


def test_a_client_that_diverges_where_two_are_compared_is_one_line(experiment, finished_run, monkeypatch):
    """A run goes on without it."""
    analysis = open_analysis(finished_run(experiment()).folder, quiet)

    for error in (UpdateError("its weights are not finite"), ValueError("Expected more than 1 value per channel")):

        def diverges(*_, error=error):
            raise error

        monkeypatch.setattr(ClientRunner, "fit", diverges)
        with pytest.raises(InputError, match=rf"client 2 cannot be compared in round 4 \({error}"):
            analysis.local_weights(analysis.last.round, 2, {})


def test_the_sample_term_is_the_theorems():
    want = math.sqrt(4 / 617 * (257 * math.log(2 * math.e * 617 / 257) + math.log(4 * 8 / 0.05)))
    assert sample_term(617, 257, 8) == pytest.approx(want)
    assert sample_term(617, 257, 8) > sample_term(6170, 257, 8) > sample_term(617_000, 257, 8)
    assert sample_term(617_000, 257, 8) < 0.2
    assert sample_term(0, 257, 8) == sample_term(5, 257, 8) == sample_term(256, 257, 8) == math.inf
    assert math.inf > sample_term(257, 257, 8) > 1


def test_rows_that_are_alike_are_near_and_others_far():
    """Labeled rows of one class lie apart from all rows, pseudo-labeled ones of all classes do not."""
    rng = np.random.default_rng(0)
    z_MND = [rng.normal(size=(400, 3)) for _ in range(3)]
    z_MND[0][:100] += 5
    ids = [np.arange(400) + 400 * m for m in range(3)]
    got = _distances(z_MND, ids, 0, np.arange(100), np.arange(100, 200), 500, lambda *n: np.random.default_rng(1))
    assert got[0] > 1.5
    assert abs(got[1]) < 0.5
    assert got[1] < got[2] < got[0]
    few = _distances(z_MND, ids, 0, np.arange(100), np.arange(100, 119), 500, lambda *n: np.random.default_rng(1))
    assert few[0] > 1.5
    assert np.isnan(few[1])


def test_rows_that_are_labeled_and_pseudo_labeled_count_once():
    """With several labels nearly all are; a row on both sides of a classifier would look like a difference."""
    rng = np.random.default_rng(0)
    means = []
    for seed in range(6):
        z_MND = [rng.normal(size=(400, 64)) for _ in range(3)]
        ids = [np.arange(400) + 400 * m for m in range(3)]
        rows = np.arange(200)
        got = _distances(z_MND, ids, 0, rows, rows, 500, lambda *n, seed=seed: np.random.default_rng(seed))
        means.append(got[2])
    assert abs(np.mean(means)) < 0.07  # more with every row twice


def shared(rows, width, rng):
    """Return representations and ids of three clients, of which each has every row."""
    z_ND = rng.normal(size=(rows, width))
    return [z_ND] * 3, [np.arange(rows)] * 3


def test_rows_of_several_clients_are_in_the_pool_once():
    drawn = _pool([np.arange(40)] * 3, np.arange(10), 30, np.random.default_rng(0))
    assert sorted(n for _, n in drawn) == list(range(10, 40))


def test_what_one_client_trained_with_is_held_out_nowhere():
    """Labels say nothing of the rows, so half of the decisions are wrong on a client's and half on all: 1."""
    rng = np.random.default_rng(0)
    z_MND, ids = shared(600, 250, rng)
    y_NC = rng.random((600, 2)) < 0.5
    y_NC[:, 1] = ~y_NC[:, 0]
    truth = SimpleNamespace(of=lambda rows: (y_NC[rows], np.ones((len(rows), 2), dtype=np.bool_)))
    analysis = SimpleNamespace(seed=1, prepared=SimpleNamespace(manifest=SimpleNamespace(kind="single")))
    bounds = module._lambda_bounds(analysis, z_MND, ids, truth, 600)
    assert np.mean(bounds) == pytest.approx(1, abs=0.15)  # less where held-out rows were trained elsewhere


def test_a_client_that_has_every_row_has_no_distance():
    """There are no others' rows to compare with: a gap in the table, not a traceback."""
    assert _pool([np.arange(4)], np.arange(4), 4, np.random.default_rng(0)) == []
    assert len(_pool([np.arange(4)], np.arange(3), 3, np.random.default_rng(0))) == 3


@pytest.mark.parametrize("single", [True, False])
def test_the_joint_classifier_learns_what_the_labels_say(single):
    rng = np.random.default_rng(0)
    z_ND = rng.normal(size=(300, 4))
    y_NC = np.eye(3, dtype=bool)[z_ND[:, :3].argmax(1)] if single else z_ND[:, :3] > 0
    given_NC = np.ones_like(y_NC)
    given_NC[:20] = False
    y_NC[:20] = ~y_NC[:20] & (not single)
    decide = joint_classifier(z_ND, y_NC, given_NC, single=single)
    assert (decide(z_ND)[20:] == y_NC[20:]).mean() > 0.9
    assert decide(z_ND).dtype == bool
    one = joint_classifier(z_ND, np.eye(3, dtype=bool)[np.full(300, 2)], np.ones_like(y_NC), single=single)
    assert (one(z_ND[:5]) == [False, False, True]).all()
    none = joint_classifier(z_ND, y_NC, np.zeros_like(given_NC), single=single)
    assert none(z_ND[:5]).shape == (5, 3)


def test_the_bound_of_lambda_weighs_clients_by_their_rows(monkeypatch):
    """Of 400 rows of class 0 and 100 of class 1, a classifier that always says 0 errs in none and all."""
    y = np.zeros((500, 2), bool)
    y[:400, 0] = y[400:, 1] = True
    ids = [np.arange(400), np.arange(400, 500)]
    truth = SimpleNamespace(of=lambda rows: (y[rows], np.ones((len(rows), 2), bool)))
    analysis = SimpleNamespace(seed=1, prepared=SimpleNamespace(manifest=SimpleNamespace(kind="single")))
    always = lambda *_, **__: lambda z: np.tile([True, False], (len(z), 1))  # noqa: E731
    monkeypatch.setattr(module, "joint_classifier", always)
    z = [np.zeros((len(i), 1)) for i in ids]
    assert module._lambda_bounds(analysis, z, ids, truth, 500) == pytest.approx([0.2, 1.2])


def test_a_client_is_compared_with_the_rows_of_others_in_equal_numbers(monkeypatch):
    def compared(ids, labeled, pseudo):
        seen = []
        monkeypatch.setattr(module, "proxy_a_distance", lambda a, b, rng: seen.append((a[:, 0], b[:, 0])) or 0.0)
        z = [i[:, None] * 1.0 for i in ids]
        module._distances(z, ids, 0, labeled, pseudo, 500, lambda *n: np.random.default_rng(1))
        return seen

    seen = compared([np.arange(100, 140), np.arange(140, 180)], np.arange(40), np.arange(0))
    assert seen
    assert not any({*one} & {*other} for one, other in seen)
    seen = compared([np.arange(200), np.arange(200, 400)], np.arange(100), np.arange(100, 130))
    assert {len(one) for one, _ in seen} == {30}
