"""The report of a sweep: complete in one file, the same bytes for the same sweep, and never stopped by odd sweeps."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re

import pytest

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.terminal import say
from anchorfl.tuning.cli import main
from anchorfl.tuning.commands import summary
from anchorfl.tuning.search.results import FinalRun, Sweep, Trial
from anchorfl.tuning.search.search_space import SPACES, Choice, Range, Space
from anchorfl.tuning.search.study import TrialState
from anchorfl.tuning.sweep import sweep as sweeps
from anchorfl.tuning.sweep.best_preset import best_preset
from anchorfl.tuning.sweep.importance import importances
from anchorfl.tuning.sweep.plots import _tick_labels, _ticks, heat_map
from anchorfl.tuning.sweep.progress import SweepProgress
from anchorfl.tuning.sweep.report import write_report


def trial(number: int, point: dict, rounds: int = 6, seeds=(1, 2), **more) -> Trial:
    numbers = {n: v for n, v in point.items() if isinstance(v, float)}
    top = 0.8 - sum(abs(math.log10(100 - v) if n == "q1" else v / 500) for n, v in numbers.items() if n != "alpha") / 10
    curves = {s: {r: top * r / 6 + 0.01 * s for r in range(1, rounds + 1)} for s in seeds}
    status = "finished" if rounds == 6 else "stopped"
    given = {"status": status, "curves": curves, "seconds": 9.0, "training_seconds": 8.5} | more
    return Trial(number=number, point=point, **given)


def sweep(count: int = 12, seeds=(1, 2), space: Space | None = None, **more) -> Sweep:
    trials = tuple(
        trial(n, {"q1": 99.0 - n / 3, "q2": 20.0 + 3 * n, "alpha": 10 ** (n / 12)}, 3 if n % 4 == 3 else 6, seeds)
        for n in range(count)
    )
    base = Sweep(
        name="sweep-1", preset="r8-8/fedalign", task="r8", method="fedalign", space=space or SPACES["fedalign"].space,
        searcher="optuna", scheduler="asha", metric="f1_macro", rule="last", seeds=seeds, rounds=6, trials=trials,
    )  # fmt: skip
    return dataclasses.replace(base, **more)


def final(seed: int) -> FinalRun:
    return FinalRun(seed=seed, rounds=50, scores={"test": {"f1_macro": 0.8 + seed / 100, "accuracy": 0.9}}, folder="f")


def test_everything_is_in_one_file(tmp_path):
    """Headline, figures, tables; nothing is fetched from anywhere."""
    view = sweep(
        final_runs=(final(3), final(4)),
        reference_runs=(final(3),),
        final_runs_begun=True,
        notes=("Trials ran 6 rounds.",),
    )
    files = write_report(view, tmp_path, lambda point: read_text("r8-8/fedalign"))
    assert {f.name for f in files} == {"report.html", "report.md", "figures", "trials.csv", "best.toml"}
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 7  # plane, three options, parallel, importance, curves
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", page.replace("xlink:href=", "href=")), (
        "an outside reference"
    )
    assert "<script" not in page
    for text in ("83.50 ± 0.71", "Trials ran 6 rounds.", "Trial 0", "share of rows that become positives", "stopped"):
        assert text in page
    text = (tmp_path / "report.md").read_text()
    pictures = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(pictures) == 7
    assert all((tmp_path / p).stat().st_size > 5000 for p in pictures)


def test_json_is_alone_on_standard_output(tmp_path, monkeypatch, capsys):
    """What a sweep prints on its way goes to standard error."""
    monkeypatch.chdir(tmp_path)
    made = sweep(3, final_runs=(final(7),), fresh_seeds=(7,))
    monkeypatch.setattr(sweeps, "run_sweep", lambda plan, folder: say("a line of progress") or made)
    assert main(["sweep", "digits/fedalign", "--trials", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    content = json.loads(out)
    assert (content["folder"], content["chosen"]) == ("runs/sweep-digits-fedalign-1", made.best.number)
    assert [t["scores"] for t in content["trials"]] == [t.scores("last") for t in made.trials]
    assert content["final_runs"][0]["scores"] == made.final_runs[0].scores
    assert "a line of progress" in err


def read_text(name: str) -> str:
    from anchorfl.pipeline.config.presets import shipped_toml

    return shipped_toml(name)


def test_the_same_sweep_gives_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        write_report(sweep(), tmp_path / folder)
    files = list((tmp_path / "a").rglob("*.*"))
    assert files
    for path in files:
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path.name


ODD: dict[str, Sweep] = {
    "none": sweep(0),
    "one": sweep(1),
    "one seed": sweep(5, seeds=(1,)),
    "all failed": sweep(
        trials=tuple(trial(n, {"q1": 99.0, "q2": 1.0, "alpha": 1.0}, status="failed", curves={}, error="<b>no</b>") for n in range(3))  # noqa: E501
    ),
    "choices": sweep(
        space={"kind": Choice(("cosine", "dot")), "on": Choice((True, False))}, searcher="grid",
        trials=tuple(trial(n, {"kind": k, "on": o}, curves={1: {6: 0.1 * n}}) for n, (k, o) in
                     enumerate([("cosine", True), ("dot", True), ("dot", False)])), seeds=(1,),
    ),
    "grid": sweep(
        space={"q1": Range(90, 99, steps=3), "q2": Range(10, 90, steps=3)}, searcher="grid",
        trials=tuple(trial(n, {"q1": a, "q2": b}) for n, (a, b) in
                     enumerate((a, b) for a in (90.0, 94.5, 99.0) for b in (10.0, 50.0, 90.0))),
    ),
    "many": sweep(200),
    "equal scores": sweep(trials=tuple(trial(n, {"alpha": 1.0 + n}) for n in range(9)), space={"alpha": Range(1, 9)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_sweeps_have_a_report(tmp_path, name):
    view = ODD[name]
    write_report(view, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<b>no</b>" not in page, "text from outside is escaped"
    with (tmp_path / "trials.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(r["trial"]) for r in rows] == [t.number for t in view.trials]
    for row, t in zip(rows, view.trials, strict=True):
        scores = t.scores(view.rule)
        assert (row["score_mean"] == "") == (not scores)
        if scores:
            assert float(row["score_mean"]) == pytest.approx(sum(scores) / len(scores), abs=1e-6)


def test_whole_trials_come_before_stopped_ones():
    """However high a stopped trial's score was; of equals the lower number."""
    early = dataclasses.replace(trial(0, {"q1": 99.0}, 3), curves={1: {3: 0.99}, 2: {3: 0.99}})
    same = [dataclasses.replace(trial(n, {"q1": 99.0}), curves={1: {6: 0.5}, 2: {6: 0.6}}) for n in (1, 2)]
    view = sweep(trials=(early, *same))
    assert [t.number for t in view.ranked()] == [1, 2, 0]


def two(*each: tuple[float, float], rounds: int = 6) -> Sweep:
    """Return a sweep of trials with these (score, expense)."""
    trials = tuple(
        Trial(number=n, point={"alpha": 10.0**n}, status="finished", curves={1: {rounds: score}}, expense=expense)
        for n, (score, expense) in enumerate(each)
    )
    space = {"alpha": Range(0.1, 1000, "log")}
    return sweep(trials=trials, space=space, seeds=(1,), scheduler="none", against="megabytes")


def test_the_front_is_what_none_beats_in_both():
    numbers = lambda view: [trial.number for trial in view.front]  # noqa: E731
    assert numbers(two((0.5, 10), (0.7, 30), (0.6, 40), (0.6, 20), (0.7, 30))) == [0, 3, 1]
    assert numbers(two((0.5, 10), (0.5, 5))) == [1]
    assert numbers(two((0.5, 10), (0.6, 10))) == [1]
    stopped = dataclasses.replace(two((0.5, 10)).trials[0], number=1, status="failed", expense=1)
    view = two((0.5, 10))
    assert numbers(dataclasses.replace(view, trials=(*view.trials, stopped))) == [0]
    assert dataclasses.replace(view, against="").front == []
    dear, cheap = (dataclasses.replace(view.trials[0], number=n, expense=cost) for n, cost in ((0, 9.0), (1, 1.0)))
    assert dataclasses.replace(view, trials=(dear, cheap)).best.number == 1, "of equals the cheaper one, as the front"
    assert dataclasses.replace(view, trials=(dear, cheap), against="").best.number == 0


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_a_trial_that_has_not_ended_as_a_whole_is_not_on_the_front(status):
    """It has not cost yet what it will, and would beat whole trials by that."""
    view = two((0.5, 10), (0.7, 30), (0.9, 1))
    cut = dataclasses.replace(view.trials[2], status=status)
    assert [trial.number for trial in view.front] == [2]
    assert [trial.number for trial in dataclasses.replace(view, trials=(*view.trials[:2], cut)).front] == [0, 1]


def test_the_front_is_in_the_report_and_each_of_it_is_a_preset(tmp_path):
    view, text = two((0.5, 10), (0.7, 30), (0.6, 40)), read_text("r8-8/fedalign")
    assert tmp_path / "front" in write_report(view, tmp_path, lambda point: text)
    assert sorted(path.name for path in (tmp_path / "front").iterdir()) == ["trial-0.toml", "trial-1.toml"]
    cheap = (tmp_path / "front/trial-0.toml").read_text()
    assert cheap.startswith("# r8-8/fedalign with the point on the front of sweep-1: trial 0 of 3.")
    assert read_preset(str(tmp_path / "front/trial-0.toml")).method.alpha == 1.0
    assert (tmp_path / "front/trial-1.toml").read_text() == (tmp_path / "best.toml").read_text()
    page = (tmp_path / "report.md").read_text()
    assert "| 0 | alpha=1 | 50.00 | 10 |" in page
    assert "| second objective | megabytes that a run moved, to be small |" in page
    assert (tmp_path / "figures/front.png").exists()
    (tmp_path / "front/trial-7.toml").write_text("beaten by now")
    write_report(view, tmp_path, lambda point: text)
    assert not (tmp_path / "front/trial-7.toml").exists()
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["expense_megabytes"] for row in rows] == ["10.000000", "30.000000", "40.000000"]


def test_rules():
    t = dataclasses.replace(trial(0, {}), curves={1: {1: 0.9, 2: 0.1, 3: 0.2, 4: 0.3, 5: 0.4, 6: 0.5}})
    assert t.scores("last") == [0.5]
    assert t.scores("mean5") == [pytest.approx(0.3)]
    assert t.scores("best") == [0.9]


def test_round_0_has_no_score():
    """There the model that was drawn is scored, which nobody trained; a trial that got no further has none."""
    t = dataclasses.replace(trial(0, {}), curves={7: {0: 0.9, 1: 0.1, 2: 0.6, 3: 0.2}, 3: {0: 0.8, 1: 0.3}})
    assert (t.scores("last"), t.scores("mean5"), t.scores("best")) == ([0.3, 0.1], [0.3, 0.1], [0.3, 0.1])
    t = dataclasses.replace(t, curves={7: {0: 0.9, 1: 0.1, 2: 0.6, 3: 0.2}})
    assert (t.scores("last"), t.scores("mean5"), t.scores("best")) == ([0.2], [pytest.approx(0.3)], [0.6])
    untrained = dataclasses.replace(t, number=1, curves={7: {0: 0.9}})
    assert [untrained.scores(rule) for rule in ("last", "mean5", "best")] == [[], [], []]
    assert sweep(trials=(t, untrained)).ranked() == [t]


def test_only_rounds_of_all_seeds_count():
    t = dataclasses.replace(trial(0, {}), curves={1: {1: 0.1, 2: 0.9}, 2: {1: 0.3}})
    assert t.rounds == 1
    assert t.scores("last") == [0.1, 0.3]


def test_the_verdict_says_what_is_noise(tmp_path):
    own = dataclasses.replace(trial(0, {"q1": 99.0}), curves={1: {6: 0.50}, 2: {6: 0.60}})
    better = dataclasses.replace(trial(1, {"q1": 98.0}), curves={1: {6: 0.60}, 2: {6: 0.52}})
    space = {"q1": Range(90, 99.9, "tail")}
    write_report(sweep(trials=(own, better), space=space), tmp_path)
    assert "Within noise: gain +1.00, standard error over 2 paired seeds 9.00" in (tmp_path / "report.html").read_text()


def test_points_that_tie_are_said(tmp_path):
    """In the report and in the closing lines; the one with the lowest number is chosen."""
    curves = ({1: {6: 0.5}}, {1: {6: 0.7}}, {1: {6: 0.7}}, {1: {6: 0.7}})
    trials = tuple(dataclasses.replace(trial(n, {"q1": 99.0 - n}), curves=curve) for n, curve in enumerate(curves))
    view = sweep(trials=trials, space={"q1": Range(90, 99.9, "tail")}, seeds=(1,))
    assert (view.best.number, [t.number for t in view.tied]) == (1, [1, 2, 3])
    write_report(view, tmp_path)
    for text in ((tmp_path / "report.md").read_text(), summary(view)):
        assert "3 points tie; the first is chosen" in text
    alone = dataclasses.replace(view, trials=trials[:2])
    write_report(alone, tmp_path)
    assert "tie" not in summary(alone)
    costs = [dataclasses.replace(t, expense=9.0 - t.number) for t in trials]
    dear = dataclasses.replace(view, trials=tuple(costs), against="seconds")
    assert (dear.best.number, [t.number for t in dear.tied]) == (3, [1, 2, 3])
    assert "3 points tie; the cheapest is chosen" in summary(dear)
    no_finals = dataclasses.replace(view, final_runs_begun=True)
    assert "test" not in summary(no_finals)


def test_marks_of_a_grid_cover_no_number():
    """The outlines of the chosen point and of the preset's own lie around their cells."""
    figure = heat_map(ODD["grid"], "q1", "q2")
    ax = figure.axes[0]
    frames = [mark for mark in ax.collections if not len(mark.get_facecolor())]
    cells = [mark for mark in ax.collections if len(mark.get_facecolor())]
    assert len(frames) == 2
    assert min(mark.get_sizes()[0] for mark in frames) > max(mark.get_sizes()[0] for mark in cells)
    assert len({str(mark.get_linestyle()) for mark in frames}) == 2


def test_ticks_are_the_values_of_a_grid_or_round():
    tail = {
        "q1": Range(90, 99.9, "tail"),
        "q2": Range(10, 90),
        "alpha": Range(0.003, 20, "log"),
        "n": Range(1, 8, integer=True),
    }
    free = sweep(0, space=tail)
    assert _ticks(free, "q1") == [90, 95, 98, 99, 99.5, 99.8, 99.9]
    assert _ticks(free, "alpha") == [0.01, 0.1, 1, 10]
    assert set(_ticks(free, "q2")) <= {10, 20, 30, 40, 50, 60, 70, 80, 90}
    assert all(float(tick).is_integer() for tick in _ticks(free, "n"))
    grid = sweep(0, space=tail, searcher="grid")
    assert _tick_labels(_ticks(grid, "q1")) == ["90", "96.8", "99", "99.7", "99.9"]
    choices = sweep(
        trials=(trial(0, {"kind": "own"}), trial(1, {"kind": "dot"})), space={"kind": Choice(("dot", "no"))}
    )
    assert _ticks(choices, "kind") == ["own", "dot", "no"]  # the preset's own value is none of the space's
    assert _tick_labels([99.91, 99.92]) == ["99.91", "99.92"]  # as many digits as tell them apart


def test_of_one_seed_there_is_no_spread(tmp_path):
    view = sweep(5, seeds=(0,))
    write_report(view, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "±" not in text
    assert "seeds 0" not in text
    assert "| seed | 0 |" in text
    assert "±" not in summary(view)
    lines: list[str] = []
    progress = SweepProgress(1, 1, "last", lines.append, None)
    progress.start()
    record = {"score": 0.5, "scores": {"0": 0.5}, "seconds": 1.0}
    progress.on_end(TrialState(3, {}, "", "finished", {6: record}))
    assert "50.00" in lines[0]
    assert "±" not in lines[0]


def test_the_best_so_far_is_the_best_by_the_rule():
    """By the last round trial 1 is ahead, by the best round trials 0 and 2, of which the lower number is chosen."""
    lines: list[str] = []
    progress = SweepProgress(3, 1, "best", lines.append, None)
    progress.start()
    for number, curve in ((1, (0.1, 0.5)), (2, (0.7, 0.3)), (0, (0.7, 0.2))):
        records = {r: {"score": v, "scores": {"0": v}, "seconds": 1.0} for r, v in enumerate(curve, 1)}
        progress.on_end(TrialState(number, {}, "", "finished", records))
    assert [re.search(r"best [\d.]+ \(trial \d\)", line)[0] for line in lines] == [
        "best 50.00 (trial 1)", "best 70.00 (trial 2)", "best 70.00 (trial 0)",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["digits/fedalign", "r8-8/fedalign"])
def test_the_chosen_point_is_a_preset(tmp_path, name):
    """It reads back with the chosen values, every other option as it was, and its remarks kept."""
    text = read_text(name).replace("alpha = 1.0", "alpha = 1.0  # weight")
    point = {"q1": 97.25, "alpha": 0.5, "optimizer.lr": 0.002, "refresh": "epoch"}
    space = {
        "q1": Range(90, 99.9),
        "alpha": Range(0.1, 10),
        "optimizer.lr": Range(1e-4, 1e-2),
        "refresh": Choice(("epoch",)),
    }
    view = sweep(trials=(dataclasses.replace(trial(0, {}), point=point),), space=space)
    made = best_preset(view, view.best, text)
    path = tmp_path / "best.toml"
    path.write_text(made)
    got, old = read_preset(str(path)), read_preset(name)
    assert (got.method.q1, got.method.alpha, got.optimizer.lr, got.method.refresh) == (97.25, 0.5, 0.002, "epoch")
    method = dataclasses.replace(old.method, q1=97.25, alpha=0.5, refresh="epoch")
    assert got == dataclasses.replace(old, method=method, optimizer=dataclasses.replace(old.optimizer, lr=0.002))
    assert made.startswith("# r8-8/fedalign with the point that sweep-1 chose: trial 0 of 1.\n")
    assert ("alpha = 0.5  # weight" in made) == ("alpha = 1.0" in read_text(name))


def test_scores_that_differ_in_last_bits_have_no_importance(tmp_path):
    """A report ended in a traceback."""
    view, n = sweep(seeds=(1, 2)), 10
    scores = [(a / n, (9 - a) / n) for a in range(9)]  # means of 0.45, to rounding
    trials = tuple(
        dataclasses.replace(t, status="finished", curves={s: {6: score} for s, score in zip((1, 2), of, strict=True)})
        for t, of in zip(view.trials, scores, strict=False)
    )
    tied = dataclasses.replace(view, trials=trials)
    assert len({(a + b) / 2 for a, b in scores}) > 1
    assert importances(tied) == "All whole trials have the same score, so no option explains any of it."
    write_report(tied, tmp_path)


def test_importance_finds_what_matters():
    """A score that depends on q1 alone; and too few trials are no importance."""
    space = {"q1": Range(90, 99), "q2": Range(10, 90)}
    cells = [(90 + 9 * i / 29, 10 + (37 * i) % 80) for i in range(30)]
    trials = tuple(
        dataclasses.replace(trial(n, {"q1": a, "q2": float(b)}), curves={1: {6: (a - 90) / 10}})
        for n, (a, b) in enumerate(cells)
    )
    shares = importances(sweep(trials=trials, space=space, seeds=(1,)))
    assert shares["q1"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == importances(sweep(trials=trials, space=space, seeds=(1,)))
    few = importances(sweep(trials=trials[:5], space=space, seeds=(1,)))
    assert few == "Importance needs 8 whole trials inside the space; this sweep has 5."
