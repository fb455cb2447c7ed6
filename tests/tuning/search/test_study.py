"""A search cut at any line of its ledger and taken up again goes on as one that was not cut."""

from __future__ import annotations

import errno
import json
import os
import random  # noqa: TID251 - a generator of its own, for the order of the trials
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from ray.exceptions import OutOfMemoryError

from anchorfl.pipeline.storage.run_record import RoundRecord, write_records
from anchorfl.pipeline.training.errors import LostError
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.tuning.search import trial as trial_module
from anchorfl.tuning.search import tune_adapter
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.search.options import SweepOptions, TrialRounds
from anchorfl.tuning.search.search_space import Choice, Range
from anchorfl.tuning.search.searchers import (
    REFUSED,
    ROUND,
    SCORE,
    START_UP,
    draw,
    make_scheduler,
    make_searcher,
    most_trials,
    refusal,
)
from anchorfl.tuning.search.study import Study, TrialState, read_trials
from anchorfl.tuning.search.trial import TrialContext, _record, _training
from anchorfl.tuning.search.tune_adapter import ENDS, ERROR, Budget, _Scheduler

SPACE = {"q1": Range(90, 99.9, "tail", steps=4), "q2": Range(10, 99, steps=4), "kind": Choice(("cosine", "dot"))}
OWN = {"q1": 99.0, "q2": 50.0, "kind": "cosine"}
COUNT, ROUNDS = 14, TrialRounds(whole=9, grace=2)


def test_a_point_that_is_refused_counts_as_the_worst(monkeypatch):
    """Not as a failure: TPE would search where it only heard of failures for ever. Two objectives have no worst."""
    for against, said in (("", ({ROUND: 0, SCORE: REFUSED}, False)), ("seconds", (None, True))):
        options, heard = SweepOptions(searcher="random", scheduler="none", against=against), []
        searcher = make_searcher(options, SPACE, 3, None)

        def complete(name, result, error, heard=heard):
            heard.append((name, result, error))

        monkeypatch.setattr(searcher, "on_trial_complete", complete)
        name, point = draw(
            searcher, SPACE, 7, lambda point, heard=heard, s=searcher: None if len(heard) == 2 else refusal(s)
        )
        assert (name, set(point)) == ("0007-2", set(SPACE))
        assert heard == [(n, *said) for n in ("0007", "0007-1")]


@pytest.mark.parametrize("against", ["", "seconds"])
def test_a_point_that_was_tried_is_heard_as_its_trial_was(tmp_path, monkeypatch, against):
    """It was heard as the worst there is, the best point too."""
    space = {"a": Choice((1, 2)), "b": Choice(("x", "y", "z"))}
    search = study(tmp_path / "ledger.jsonl", scheduler="none", count=20, against=against)
    search.space, search.first, search.allowed = space, {"a": 1, "b": "x"}, lambda point: point["b"] != "z"
    search.searcher = make_searcher(SweepOptions(against=against), space, 3, search.first)
    heard, complete = [], search.searcher.on_trial_complete

    def listen(name, result=None, error=False):
        heard.append((search.searcher._ot_trials[name].params, result, error))
        complete(name, result, error)

    monkeypatch.setattr(search.searcher, "on_trial_complete", listen)
    while (trial := search.next_trial()) is not None:
        score = 0.1 * trial.point["a"] + (trial.point["b"] == "y") / 2
        record = {"score": score, "scores": {"0": score}, "expense": 2.0}
        for round_ in range(1, ROUNDS.whole + 1):
            search.add_result(trial, round_, record)
        search.close_trial(trial)
    assert len(search.trials) == 4
    again = [entry for entry in heard if entry[0]["b"] != "z"]
    assert len(again) > len(search.trials)
    for point, result, error in again:
        want = 0.1 * point["a"] + (point["b"] == "y") / 2
        assert (result["score"], result.get("expense"), error) == (want, 2.0, False)


def test_a_grid_goes_through_all_its_points(tmp_path):
    """It ended where 500 in a row were refused."""
    space = {"a": Range(1, 2, steps=2), "b": Range(0, 1, steps=600)}
    search = study(tmp_path / "ledger.jsonl", "grid", "none", count=700)
    search.space, search.first, search.allowed = space, {"a": 2, "b": 2.0}, lambda point: point["a"] == 2
    search.searcher = make_searcher(SweepOptions(searcher="grid"), space, 3, None)
    points = []
    while (trial := search.next_trial()) is not None:
        search.close_trial(trial, "no good")
        points.append(trial.point)
    assert len(points) == 601


class Listener:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def on_suggest(self, trial: TrialState) -> None:
        self.heard.append(("suggested", trial.number))

    def on_report(self, trial: TrialState, round_: int) -> None:
        self.heard.append((f"round {round_}", trial.number))

    def on_end(self, trial: TrialState) -> None:
        self.heard.append((trial.status, trial.number))


def study(path, searcher="optuna", scheduler="asha", seed=3, count=COUNT, highest=99.9, against="") -> Study:
    options = SweepOptions(searcher=searcher, scheduler=scheduler, reduction=2, against=against)
    known = searcher != "grid"
    return Study(
        SPACE,
        dict(OWN),
        known,
        lambda p: p["q2"] <= min(p["q1"], highest),
        count,
        ROUNDS.whole,
        make_searcher(options, SPACE, seed, OWN if known else None),
        make_scheduler(options, ROUNDS),
        Ledger(path),
        [Listener()],
    )


def record(trial: TrialState, round_: int) -> dict:
    """Return a score and an expense that depend on the point and the round alone; both grow with q1, up to 98."""
    p = trial.point
    top = 0.9 - abs(p["q1"] - 98) / 20 - abs(p["q2"] - 40) / 200 + (0.02 if p["kind"] == "dot" else 0)
    score, expense = top * (1 - np.exp(-round_ / 3)), round_ * (p["q1"] - 89)
    return {"score": score, "scores": {"0": 0.5, "1": 0.5}, "seconds": 1.0, "expense": expense}


def run(search: Study, at_once: int, rng: random.Random, steps: int = 10_000) -> None:
    """Trials that take turns at random, as processes would."""
    live: list[TrialState] = []
    for _ in range(steps):
        while len(live) < at_once and (trial := search.next_trial()) is not None:
            live.append(trial)
        if not live:
            return
        trial = rng.choice(live)
        if trial.rounds < ROUNDS.whole and trial.decision == "CONTINUE" and not fails(trial):
            search.add_result(trial, trial.rounds + 1, record(trial, trial.rounds + 1))
            continue
        search.close_trial(trial, "ValueError: no good" if fails(trial) else "")
        live.remove(trial)


def fails(trial: TrialState) -> bool:
    return trial.number == 5 and trial.rounds == 1


def state(search: Study) -> list[tuple]:
    return [(e.number, e.point, e.status, e.rounds, e.error) for e in search.trials]


def lines(path) -> list[dict]:
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in path.read_text().splitlines()]


def test_two_objectives_are_searched_and_replayed(tmp_path):
    """TPE's front is better than random's by hypervolume; a search cut anywhere goes on as the one that was not cut."""
    whole = study(tmp_path / "whole", scheduler="none", against="megabytes", count=30)
    run(whole, 1, random.Random(0))
    cut = study(tmp_path / "cut", scheduler="none", against="megabytes", count=30)
    run(cut, 1, random.Random(0), steps=120)
    again = study(tmp_path / "cut", scheduler="none", against="megabytes", count=30)
    again.replay()
    run(again, 1, random.Random(0))
    assert state(again) == state(whole)
    drawn = study(tmp_path / "random", "random", "none", against="megabytes", count=30)
    run(drawn, 1, random.Random(0))
    assert volume(whole) > volume(drawn)


def volume(search: Study) -> float:
    """Return the area that the trials dominate, in score (from 0) and expense (to that of q1 = 100)."""
    worst, area, best = 11.0 * ROUNDS.whole, 0.0, 0.0
    ended = [trial.records[ROUNDS.whole] for trial in search.trials if trial.status == "finished"]
    for last in sorted(ended, key=lambda record: record["expense"]):
        area += max(0.0, last["score"] - best) * (worst - last["expense"])
        best = max(best, last["score"])
    return area


@pytest.mark.parametrize("searcher", ["optuna", "random", "grid"])
@pytest.mark.parametrize("scheduler", ["asha", "median", "none"])
def test_one_at_a_time_a_cut_changes_nothing(tmp_path, searcher, scheduler):
    """Cut after every seventh line, and once in the middle of a line: the ledger ends as the uncut one's."""
    whole = tmp_path / "whole.jsonl"
    run(study(whole, searcher, scheduler), 1, random.Random(0))
    text = whole.read_text().splitlines(keepends=True)
    for cut in [*range(0, len(text), 7), len(text) - 1]:
        part = tmp_path / f"{cut}.jsonl"
        part.write_text("".join(text[:cut]) + (text[cut][:20] if cut % 2 else ""))
        again = study(part, searcher, scheduler)
        again.replay()
        run(again, 1, random.Random(1))
        assert lines(part) == lines(whole), cut


@pytest.mark.parametrize("scheduler", ["asha", "median", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_several_at_a_time(tmp_path, scheduler, seed):
    """Whatever the order of events: replayed it gives the same trials and verdicts; interrupted trials come first,
    ended ones never again.
    """
    path = tmp_path / "ledger.jsonl"
    first = study(path, scheduler=scheduler)
    run(first, 3, random.Random(seed), steps=45 + 10 * seed)
    before = state(first)
    again = study(path, scheduler=scheduler)
    again.replay()
    # a kill may come between a verdict and the end of its trial, which the replay then writes
    expected = [(n, p, "stopped" if v == "STOP" else s, r, e) for (n, p, s, r, e), v in
                zip(before, [x.decision for x in first.trials], strict=True)]  # fmt: skip
    expected = [(n, p, "finished" if s == "running" and r == ROUNDS.whole else s, r, e) for n, p, s, r, e in expected]
    assert state(again) == expected
    assert [(e.number, e.rounds) for e in read_trials(again.ledger.events)] == [(n, r) for n, _, _, r, _ in before]
    interrupted = [e.number for e in again.trials if e.status == "running"]
    handed = [again.next_trial().number for _ in interrupted]
    assert handed == interrupted
    run(study_after(path, scheduler), 3, random.Random(9))
    events = lines(path)
    ended = {}
    for event in events:
        assert event.get("trial") not in ended, "an event of a trial that had ended"
        if event["event"] == "end":
            ended[event["trial"]] = event["status"]
    assert len(ended) == COUNT
    assert ended[5] == "failed"


def study_after(path, scheduler) -> Study:
    search = study(path, scheduler=scheduler)
    search.replay()
    return search


def test_points(tmp_path):
    """Trial 0 is the preset's own; none is refused or tried twice; the searcher is told of refused ones."""
    search = study(tmp_path / "ledger.jsonl", scheduler="none", count=40, highest=55)
    run(search, 1, random.Random(0))
    points = [e.point for e in search.trials]
    assert points[0] == OWN
    assert len(points) == 40
    assert all(p["q2"] <= 55 for p in points)
    assert len({json.dumps(p) for p in points}) == 40
    assert any("-" in e.searched_as for e in search.trials), "some suggestion was refused"


def test_no_point_is_tried_twice_where_there_are_few(tmp_path):
    """Of four points, drawn at random, each is tried once; then there are no more."""
    space = {"a": Choice((1, 2)), "b": Choice(("x", "y"))}
    search = study(tmp_path / "ledger.jsonl", "random", "none", count=10)
    search.space, search.first, search.allowed = space, {"a": 1, "b": "x"}, lambda point: True
    search.searcher = make_searcher(SweepOptions(searcher="random"), space, 3, search.first)
    while (trial := search.next_trial()) is not None:
        search.close_trial(trial, "ValueError: no good")
    points = [tuple(e.point.values()) for e in search.trials]
    assert sorted(points) == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert search.done


class Told:
    """Stands for a searcher or a scheduler, and remembers what it was told of whom."""

    def __init__(self) -> None:
        self.of: dict[str, list] = {}

    def _note(self, trial, *what):
        self.of.setdefault(getattr(trial, "trial_id", trial), []).append(what)

    def suggest(self, name):
        return {"q1": 99.0, "q2": 20.0 + len(self.of), "kind": "dot"}

    def on_trial_add(self, _, trial):
        self._note(trial, "add")

    def on_trial_error(self, _, trial):
        self._note(trial, "error")

    def on_trial_result(self, *given):
        self._note(given[-2], "result", given[-1]["training_iteration"])
        return "CONTINUE"

    def on_trial_complete(self, *given, error=False):
        *_, trial, result = given
        self._note(trial, "failed" if error else "complete", result and result["training_iteration"])


def test_every_round_is_told_once_and_a_failure_is_no_result(tmp_path):
    """Trial 0 goes through all rounds; trial 1 fails after a round that was good."""
    search = study(tmp_path / "ledger.jsonl", count=2)
    search.searcher, search.scheduler, rounds = Told(), Told(), range(1, ROUNDS.whole + 1)
    search.space = {name: Choice((0,)) for name in SPACE}
    whole, failed = search.next_trial(), search.next_trial()
    for round_ in rounds:
        search.add_result(whole, round_, record(whole, round_))
    assert search.add_result(whole, ROUNDS.whole, record(whole, 1)) == "CONTINUE"
    search.add_result(failed, 1, record(failed, 1))
    search.close_trial(whole)
    assert not search.done
    search.close_trial(failed, "ValueError: no good")
    assert search.done
    told = [("result", round_) for round_ in rounds]
    assert search.scheduler.of[whole.trial_id] == [("add",), *told[:-1], ("complete", ROUNDS.whole)]
    assert search.searcher.of[whole.searched_as] == [*told, ("complete", ROUNDS.whole)]
    assert search.scheduler.of[failed.trial_id] == [("add",), ("result", 1), ("error",)]
    assert search.searcher.of[failed.searched_as] == [("result", 1), ("failed", None)]
    heard = [*((f"round {round_}", 0) for round_ in rounds), ("round 1", 1), ("finished", 0), ("failed", 1)]
    assert search.observers[0].heard == [("suggested", 0), ("suggested", 1), *heard]


def test_as_many_points_are_random_first_as_the_page_says():
    assert START_UP == 10
    assert "ten random points first" in (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()


def test_a_grid_ends(tmp_path):
    search = study(tmp_path / "ledger.jsonl", "grid", "none", count=100)
    run(search, 2, random.Random(0))
    assert search.done
    cells = [(a, b, k) for a in SPACE["q1"].grid() for b in SPACE["q2"].grid() for k in ("cosine", "dot") if b <= a]
    assert [tuple(e.point.values()) for e in search.trials[1:]] == [c for c in cells if c != tuple(OWN.values())]


def test_nothing_is_stopped_within_the_grace_period(tmp_path):
    search = study(tmp_path / "ledger.jsonl")
    run(search, 1, random.Random(0))
    stopped = [e for e in search.trials if e.status == "stopped"]
    assert stopped
    assert min(e.rounds for e in stopped) >= ROUNDS.grace


def test_a_round_reported_again_changes_nothing(tmp_path):
    search = study(tmp_path / "ledger.jsonl")
    trial = search.next_trial()
    for round_ in (1, 2):
        search.add_result(trial, round_, record(trial, round_))
    size = (tmp_path / "ledger.jsonl").stat().st_size
    search.add_result(trial, 1, {"score": 0.0})
    assert (tmp_path / "ledger.jsonl").stat().st_size == size
    assert trial.records[1]["score"] > 0


def test_another_searcher_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.write({"event": "start", "time": 1.0, "versions": {"optuna": "5.0.0"}})
    run(study(path), 1, random.Random(0), steps=30)
    Ledger(path).write({"event": "start", "time": 2.0, "versions": {"optuna": "6.0.0"}})
    with pytest.raises(InputError, match=r"no longer suggests trial \d+ as it did \(optuna 5.0.0 -> 6.0.0\)"):
        study(path, seed=4).replay()


def test_damaged_line_is_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    run(study(path), 1, random.Random(0), steps=10)
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*text[:3], "{broken\n", *text[3:]]))
    with pytest.raises(InputError, match=r"ledger.jsonl:4 is damaged"):
        Ledger(path)


def test_a_grid_ends_with_its_last_point():
    space = {"a": Choice((1, 2, 3)), "b": Range(0.0, 1.0, steps=4)}
    on, beside = {"a": 2, "b": 1.0}, {"a": 2, "b": 0.1}
    assert most_trials(SweepOptions(searcher="grid", trials=30), space, on) == 12
    assert most_trials(SweepOptions(searcher="grid", trials=30), space, beside) == 13  # the preset's own point
    assert most_trials(SweepOptions(searcher="grid", trials=5), space, beside) == 5
    assert most_trials(SweepOptions(searcher="optuna", trials=30), space, beside) == 30


def test_what_every_trial_would_meet_ends_the_search_and_none_of_its_trials(tmp_path):
    """A full disk is no fault of a point: a trial that was closed as failed would not be trained again."""
    search, budget = study(tmp_path / "ledger", scheduler="none"), Budget(0, 0, lambda: (0.0, 0.0))
    trial = search.next_trial()
    search.add_result(trial, 1, record(trial, 1))
    scheduler = _Scheduler(search, {"a": trial}, budget)
    tunes, report = SimpleNamespace(trial_id="a"), {ERROR: "OSError: no space", ENDS: "OSError: [Errno 28] no space"}
    assert not budget.stop_all()
    assert scheduler.on_trial_result(None, tunes, report) == "STOP"
    scheduler.on_trial_complete(None, tunes, report)
    scheduler.on_trial_remove(None, tunes)
    assert budget.stop_all()
    assert trial.status == "running"
    again = study(tmp_path / "ledger", scheduler="none")
    again.replay()
    assert again.next_trial().number == trial.number


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (PreparedDataError("rows-00000.parquet is missing"), True),
        (OSError(errno.ENOENT, "No such file"), False),
        (ValueError("no good"), False),
    ],
    ids=str,
)
def test_which_errors_are_of_no_point(monkeypatch, error, ends):
    reports = []
    monkeypatch.setattr(trial_module.tune, "report", reports.append)

    def training(config, context):
        raise error

    trial_module.report_errors(training, {}, None)
    assert [ENDS in report for report in reports] == [ends]
    line = tune_adapter.last_line(reports[0][ERROR])  # this file is no library's, as a plug-in's
    assert line.startswith(f"{type(error).__name__}: {error} (")
    assert re.search(r"test_study\.py:\d+\)$", line)


def test_a_ledger_that_cannot_be_written_says_so_in_its_own_words(tmp_path, monkeypatch):
    """Ray Tune wraps what its callbacks raise, a hundred lines around it."""
    search, full = study(tmp_path / "ledger"), OSError(errno.ENOSPC, "No space left on device")

    def fit(*_, **given):
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(full))
        try:
            given["search_alg"].study.next_trial()
        except OSError as error:
            raise RuntimeError("the Ray Tune run failed") from error

    monkeypatch.setattr(tune_adapter, "fit", fit)
    with pytest.raises(OSError, match="No space left on device"):
        tune_adapter.search(search, None, None, [], 1, Budget(0, 0, lambda: (0.0, 0.0)))


def test_what_a_failed_write_left_is_cut_off_by_the_next(tmp_path, monkeypatch):
    """A disk that was full for a moment: the line is whole, and what was written of the one before it is gone."""
    path, first = tmp_path / "ledger.jsonl", {"event": "start", "time": 1.0, "versions": {}}
    ledger = Ledger(path)
    ledger.write(first)
    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            ledger.write(first | {"time": 2.0})
    path.write_bytes(path.read_bytes()[:-5])
    ledger.write(first | {"time": 3.0})
    assert path.read_bytes().startswith(whole)
    assert [event["time"] for event in Ledger(path).events] == [1.0, 3.0]


def test_a_fault_that_ray_tune_swallows_is_raised_at_the_end(tmp_path, monkeypatch):
    search, full = study(tmp_path / "ledger"), OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(tune_adapter, "fit", lambda *_, **__: setattr(search.ledger, "fault", full))
    with pytest.raises(OSError, match="No space left on device"):
        tune_adapter.search(search, None, None, [], 1, Budget(0, 0, lambda: (0.0, 0.0)))


def test_a_process_that_rays_memory_monitor_ended_is_one_line(monkeypatch):
    def fit(_):
        raise RuntimeError("Caught unexpected exception") from OutOfMemoryError("1 worker(s) were killed")

    monkeypatch.setattr(tune_adapter.Tuner, "fit", fit)
    with pytest.raises(LostError, match="memory was nearly full: run fewer at a time"):
        tune_adapter.fit(lambda config, context: None, None, [{"CPU": 1.0}], 1)


def test_seconds_of_training_are_of_the_rounds_so_far_and_of_one_seed_at_a_time(tmp_path):
    assert _training(RoundRecord(1, 0.0, {"time/clients": 8.0, "time/evaluate": 1.0, "time/aggregate": 0.5}), 4) == 3.5
    one = {"v": 0.5, "time/clients": 8.0, "time/evaluate": 1.0, "communication/upload_bytes": 1e6}
    for seed in (0, 1):
        (tmp_path / f"seed-{seed}").mkdir()
        write_records(tmp_path / f"seed-{seed}", [RoundRecord(r, 0.0, one) for r in (1, 2)])
    got = _record(tmp_path, [0, 1], 1, TrialContext({}, {}, "", 2, "v", 1, against="seconds"), 4)
    assert (got["expense"], got["training_seconds"]) == (3.0, 6.0)
