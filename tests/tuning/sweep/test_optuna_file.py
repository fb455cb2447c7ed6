"""The file for Optuna's dashboard: the trials of the ledger, each once, also after a sweep was cut and resumed."""

from __future__ import annotations

import random  # noqa: TID251 - a generator of its own, for the order of the trials
import statistics
from types import SimpleNamespace

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.search.results import Sweep
from anchorfl.tuning.search.search_space import Choice, Range
from anchorfl.tuning.search.study import read_trials
from anchorfl.tuning.sweep.optuna_file import FILE, STATES, OptunaFile, distribution
from anchorfl.tuning.sweep.records import as_trial
from tests.tuning.search.test_study import COUNT, OWN, SPACE, run, study


def start(folder, said, at_once=3, steps=10_000):
    """Start or resume a made-up search with the file beside its ledger; return the ledger's events."""
    search = study(folder / "ledger.jsonl")
    search.observers = [OptunaFile(folder, SPACE, OWN, "last", list(search.ledger.events), said.append)]
    search.replay()
    run(search, at_once, random.Random(steps), steps)
    return search.ledger.events


def load(folder):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / FILE)))
    return optuna.load_study(study_name=folder.name, storage=storage)


def check_same_as_the_ledger(folder):
    trials, got = read_trials(Ledger(folder / "ledger.jsonl").events), load(folder).trials
    assert [t.number for t in got] == [t.number for t in trials]
    assert [t.params for t in got] == [t.point for t in trials]
    assert [t.state for t in got] == [STATES[t.status] for t in trials]
    scores = [{r: record["score"] for r, record in t.records.items()} for t in trials]
    assert [t.intermediate_values for t in got] == scores
    ended = [t.status in ("finished", "stopped") for t in trials]
    means = [statistics.fmean(as_trial(t).scores("last")) if e else None for t, e in zip(trials, ended, strict=True)]
    assert [t.value for t in got] == means
    assert all((t.datetime_complete is None) == (t.state.name == "RUNNING") for t in got)
    return trials


@pytest.fixture
def varied(monkeypatch):
    """Have the scores of a trial's seeds differ from one another and between points, as in a sweep."""
    from tests.tuning.search import test_study

    plain = test_study.record

    def record(trial, round_):
        score = plain(trial, round_)["score"]
        return plain(trial, round_) | {"scores": {"0": score - 0.01, "1": score + 0.01}}

    monkeypatch.setattr(test_study, "record", record)


def test_a_sweep_that_was_cut_twice_has_every_trial_once_and_the_same_best(tmp_path, varied):
    said = []
    for steps in (20, 45):  # trials run when it is cut
        start(tmp_path, said, steps=steps)
        assert "running" in {t.status for t in check_same_as_the_ledger(tmp_path)}
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-9])  # a kill in the middle of a line: the file is ahead of the ledger
    (tmp_path / f"{FILE}.lock").symlink_to(FILE)  # or while Optuna held its lock
    start(tmp_path, said)
    trials = check_same_as_the_ledger(tmp_path)
    assert len(trials) == COUNT
    assert {t.status for t in trials} == {"finished", "stopped", "failed"}
    view = SimpleNamespace(trials=[as_trial(t) for t in trials], rule="last", against="")
    assert load(tmp_path).best_trial.number == Sweep.ranked(view)[0].number
    assert said == []


def test_a_dashboard_that_deletes_the_study_ends_no_sweep(tmp_path):
    said = []
    start(tmp_path, said, steps=20)
    search = study(tmp_path / "ledger.jsonl")
    search.observers = [OptunaFile(tmp_path, SPACE, OWN, "last", list(search.ledger.events), said.append)]
    search.replay()
    optuna.delete_study(study_name=tmp_path.name, storage=load(tmp_path)._storage)
    run(search, 3, random.Random(0))
    assert len(search.trials) == COUNT
    (line,) = said
    assert line.startswith(f"{FILE} gets nothing more (")
    start(tmp_path, said)
    check_same_as_the_ledger(tmp_path)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("dimension", "own", "expected"),
    [
        (Range(10, 99), 50.0, FloatDistribution(10, 99)),
        (Range(0.1, 10, "log"), 0.01, FloatDistribution(0.01, 10, log=True)),
        (Range(0.1, 10, "log"), 0.0, FloatDistribution(0, 10)),
        (Range(90, 99.9, "tail"), 99.0, FloatDistribution(90, 99.9)),
        (Range(1, 5, integer=True), 7, IntDistribution(1, 7)),
        (Range(1, 5, integer=True), 0.5, FloatDistribution(0.5, 5)),
        (Choice((1, 10)), 10, CategoricalDistribution((1, 10))),
        (Choice(("adam", "sgd")), "none", CategoricalDistribution(("none", "adam", "sgd"))),
    ],
)
def test_values_are_those_of_the_options_with_the_presets_own(dimension, own, expected):
    got = distribution(dimension, own)
    assert got == expected
    assert all(got._contains(got.to_internal_repr(value)) for value in [own, *dimension.grid()])
