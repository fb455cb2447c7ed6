"""The plan of a sweep: options, the file, and the command that reads them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.config.schema import with_options
from anchorfl.pipeline.methods import find_method
from anchorfl.pipeline.storage import run_folder
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.cli import main
from anchorfl.tuning.commands import _split
from anchorfl.tuning.search.options import SweepOptions, TrialRounds, resolve_rounds
from anchorfl.tuning.search.search_space import Choice, Range
from anchorfl.tuning.search.trial import point_experiment
from anchorfl.tuning.sweep.plan import SweepPlan, check_points, load_plan, new_sweep_folder, on_one_split, preset_text
from anchorfl.tuning.sweep.sweep import _notes


def plan(**options) -> SweepPlan:
    space = {"q1": Range(90, 99.9, "tail", reason="why"), "q2": Choice((10, 50.0)), "anchor_score": Choice(("dot",))}
    return SweepPlan("digits/fedalign", read_preset("digits/fedalign"), space, SweepOptions(**options), "seed = 1")


def test_a_plan_comes_back(tmp_path):
    """``sweep.json`` holds everything; a resumption may change the budget and nothing that was decided by."""
    made = plan(searcher="random", trials=7, hours=1.5, seeds=3)
    made.save(tmp_path)
    assert load_plan(tmp_path, {}) == made
    assert load_plan(tmp_path, {"trials": 9, "hours": 0.0}).options == dataclasses.replace(
        made.options, trials=9, hours=0.0
    )
    with pytest.raises(InputError, match=r"--seeds 2: the sweep was started with 3, which a resumed one keeps"):
        load_plan(tmp_path, {"seeds": 2})


def test_a_resumed_sweep_is_given_few_options_of_those_that_go_together(tmp_path):
    """What goes together is asked of all, those that the folder has included."""
    made = plan(scheduler="none", cost=5.0, cpu_price=0.05, against="megabytes")
    made.save(tmp_path)
    for words, cost in ((["--cost", "20"], 20.0), (["--against", "megabytes"], 5.0)):
        _, options, _ = _split(["--resume", str(tmp_path), *words])
        assert load_plan(tmp_path, options).options == dataclasses.replace(made.options, cost=cost)
    for bad in ({"cost": 5.0}, {"against": "seconds", "scheduler": "asha"}):
        with pytest.raises(InputError, match=r"--cost needs --cpu-price|--against seconds compares whole trials"):
            plan(**bad)


def test_the_report_of_a_sweep_takes_places(tmp_path, monkeypatch):
    """It took them for options of the search, and ended in a traceback."""
    monkeypatch.chdir(tmp_path)
    plan(scheduler="none").save(tmp_path)
    assert main(["report", str(tmp_path), "--task.root", "elsewhere"]) == 0


def test_several_presets_are_a_dimension(tmp_path):
    """What a point trains, writes down and is resumed from is of its own preset."""
    names = ("suite-digits-masks-2/fedavg", "suite-digits-masks-2/fedpu")
    e, other = map(read_preset, names)
    space = {"preset": Choice(names), "optimizer.lr": Choice((0.001, 0.01))}
    made = SweepPlan(names[0], e, space, SweepOptions(searcher="grid", trials=4), "seed = 1", {names[1]: other})
    made.save(tmp_path)
    assert load_plan(tmp_path, {}) == made
    assert made.preset_point == {"preset": names[0], "optimizer.lr": e.optimizer.lr}
    point = {"preset": names[1], "optimizer.lr": 0.01}
    assert (made.experiment_of(point), made.text_of({"preset": names[0]})) == (other, "seed = 1")
    (tmp_path / "its.toml").write_text(made.text_of(point))
    assert read_preset(str(tmp_path / "its.toml")) == other
    trained = point_experiment(made.experiment_of(point), made.names, point, 7)
    assert (trained.method, trained.optimizer.lr, trained.seed) == (other.method, 0.01, 7)
    assert made.rounds.grace == 2, "the longest warm-up"


def test_a_plan_whose_further_presets_are_damaged_is_one_line(tmp_path):
    names = ("suite-digits-masks-2/fedavg", "suite-digits-masks-2/fedpu")
    e, other = map(read_preset, names)
    SweepPlan(names[0], e, {"preset": Choice(names)}, SweepOptions(), "seed = 1", {names[1]: other}).save(tmp_path)
    content = json.loads((tmp_path / "sweep.json").read_text())
    for bad in ({"experiment": 3}, {}, {"experiment": {"method": {"name": "nobody"}}}):
        (tmp_path / "sweep.json").write_text(json.dumps(content | {"others": {names[1]: bad}}))
        with pytest.raises(InputError, match=r"sweep\.json"):
            load_plan(tmp_path, {})


def test_seeds_follow_each_other():
    p = plan(seeds=2, finals=3)
    first = p.experiment.seed
    assert p.seeds == (first, first + 1)
    assert p.fresh_seeds == (first + 2, first + 3, first + 4)
    assert p.preset_point == {"q1": p.experiment.method.q1, "q2": p.experiment.method.q2, "anchor_score": "cosine"}


def test_no_sweep_without_validation():
    e = read_preset("digits/fedalign")
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, validation=0.0))
    with pytest.raises(InputError, match=r"chooses on the validation split: set task.validation above 0"):
        SweepPlan("digits/fedalign", e, {"q1": Range(90, 99)}, SweepOptions(), "")


def test_overridden_presets_read_back(tmp_path):
    """The text that the chosen preset is made from is the preset's own, or the options with what was overridden."""
    e = read_preset("r8-8/fedalign")
    assert preset_text("r8-8/fedalign", e, overridden=False).startswith(
        "# r8-8/fedalign, FedAlign of FedAlign (KDD 2023).\n"
    )
    changed = override(e, ["--method.q1", "95", "--federation.epochs", "2", "--seed", "7"])
    path = tmp_path / "own.toml"
    path.write_text(preset_text("r8-8/fedalign", changed, overridden=True))
    assert read_preset(str(path)) == changed


def test_rounds():
    assert resolve_rounds(SweepOptions(), 50, 4) == resolve_rounds(SweepOptions(grace=6), 50, 4)
    assert resolve_rounds(SweepOptions(rounds=9), 50, 4).grace == 4
    with pytest.raises(ValueError, match="a trial has 3 rounds and may not be stopped before round 4"):
        resolve_rounds(SweepOptions(rounds=3), 50, 4)
    assert resolve_rounds(SweepOptions(rounds=3, scheduler="none"), 50, 4).whole == 3


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_the_grace_period_ends_before_the_trial(scheduler):
    """Where it is as long as the trial, none would ever be stopped."""
    assert resolve_rounds(SweepOptions(rounds=3, grace=2, scheduler=scheduler), 50, 0) == TrialRounds(3, 2)
    assert resolve_rounds(SweepOptions(rounds=3, scheduler=scheduler), 50, 0) == TrialRounds(3, 1)
    for options, warm_up in ((SweepOptions(rounds=3, grace=3, scheduler=scheduler), 0), (SweepOptions(rounds=3), 3)):
        with pytest.raises(ValueError, match="a trial has 3 rounds and may not be stopped before round 3"):
            resolve_rounds(options, 50, warm_up)
    whole = SweepOptions(rounds=3, grace=3, scheduler="none")
    assert resolve_rounds(whole, 50, 0) == TrialRounds(3, 3)


@pytest.mark.parametrize(("scheduler", "said"), [("none", False), ("asha", True)])
def test_notes_speak_of_stopped_trials_only_where_some_may_be(scheduler, said):
    rounds = 3 if scheduler == "none" else 9
    assert any("stopped" in note for note in _notes(plan(rounds=rounds, scheduler=scheduler))) == said


def test_arguments_are_told_apart():
    """Options of the sweep, overrides of the preset, and the space, in any order."""
    own, options, overrides = _split(
        ["digits/fedalign", "--space", "q1=95:99", "alpha=1,2", "--trials", "5", "--method.q2", "40", "--seed", "3",
         "--reference", "True", "--final-seeds", "x"][:-2]
    )  # fmt: skip
    assert own.presets == ["digits/fedalign"]
    assert own.space == ["q1=95:99", "alpha=1,2"]
    assert options == {"trials": 5, "reference": True}
    assert overrides == ["--method.q2", "40", "--seed", "3"]
    own, options, overrides = _split(["--resume", "s", "--cost", "0", "--hours", "2"])
    assert (str(own.resume), own.presets, options, overrides) == ("s", [], {"cost": 0.0, "hours": 2.0}, [])
    own, options, overrides = _split(["a", "b/c", "--seeds", "1", "--seed", "4"])
    assert (own.presets, options, overrides) == (["a", "b/c"], {"seeds": 1}, ["--seed", "4"])


def test_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = new_sweep_folder("digits/fedalign", "")
    assert str(first) == "runs/sweep-digits-fedalign-1"
    first.mkdir(parents=True)
    assert new_sweep_folder("digits/fedalign", "").name == "sweep-digits-fedalign-2"
    plan().save(first)
    with pytest.raises(InputError, match="holds a sweep already: anchorfl sweep --resume"):
        new_sweep_folder("digits/fedalign", str(first))
    held = tmp_path / "held"
    held.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "read_metadata", lambda folder: {"tags": {"kind": "table"}})
        with pytest.raises(InputError, match="is a table's: give another folder"):
            new_sweep_folder("digits/fedalign", str(held))
    assert new_sweep_folder("digits/fedalign", str(held)) == held
    (held / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds a run: give another --output"):
        new_sweep_folder("digits/fedalign", str(held))


@pytest.mark.parametrize(
    ("method", "log_model", "message"),
    [
        ("fedproto", True, "fedproto trains no global model to register"),
        ("fedavg", False, "tracking.register needs the model in MLflow"),
    ],
)
def test_what_cannot_be_registered_is_said_before_the_search(method, log_model, message):
    e = read_preset("digits/fedavg")
    e = dataclasses.replace(
        e, method=find_method(method)(), tracking=dataclasses.replace(e.tracking, log_model=log_model)
    )
    space = {"optimizer.lr": Choice((0.01, 0.1))}
    SweepPlan("digits/fedavg", e, space, SweepOptions(), "seed = 1")
    with pytest.raises(InputError, match=message):
        SweepPlan("digits/fedavg", e, space, SweepOptions(register="mine"), "seed = 1")


def test_final_runs_have_the_test_rows_of_the_search():
    """Folds follow the seed: their test rows were rows that the search had trained on, and chosen by."""
    folds = read_preset("es-5/fedalign")
    assert (folds.task.fold, folds.seed) == (-1, 4321)
    assert on_one_split(folds).task.fold == 4321 % 5
    assert on_one_split(on_one_split(folds)) == on_one_split(folds)
    given = dataclasses.replace(folds, task=dataclasses.replace(folds.task, fold=3))
    assert on_one_split(given) == given
    drawn = with_options(read_preset("digits/fedavg"), {"task.split_seed": "none"})
    assert on_one_split(drawn).task.split_seed == drawn.seed
    own = read_preset("digits/fedavg")
    assert on_one_split(own) == own


def test_a_point_without_a_value_is_one_line(tmp_path):
    made = plan()
    event = {"event": "suggest", "trial": 0, "point": {"q1": 95.0, "q2": 10}, "time": 0.0}
    with pytest.raises(InputError, match="ledger: trial 0 has no anchor_score"):
        check_points(made, Path("ledger"), [event])
    check_points(made, Path("ledger"), [event | {"point": event["point"] | {"anchor_score": "dot"}}])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "sweep needs a preset: digits/fedalign"),
        (["digits/fedalin"], "no preset 'digits/fedalin' (did you mean 'digits/fedalign'?)"),
        (["digits/fedalign", "--trials", "0"], "--trials 0: must be at least 1"),
        (["digits/fedalign", "--trials", "many"], "many"),
        (["digits/fedalign", "--cost", "3"], "--cost needs --cpu-price or --gpu-price"),
        (["digits/fedalign", "--searcher", "tpe"], "tpe"),
        (["digits/fedalign", "--trails", "3"], "no option --trails"),
        (["digits/fedavg", "--optimizer.lrr", "3"], "'anchorfl run digits/fedavg --help' lists all"),
        (["digits/fedavg", "--seed", str(2**63 - 1), "--finals", "1"], "records hold 64 bits"),
        (["digits/fedalign", "--space", "q1=9:3"], "low must be below high"),
        (["digits/fedalign", "--rounds", "3"], "may not be stopped before round 4"),
        (["--resume", "nowhere"], "nowhere holds no sweep"),
        (["digits/fedalign", "--resume", "nowhere"], "--resume takes the preset"),
        (["--resume", "nowhere", "--output", "there"], "and stays there"),
        (["digits/fedavg", "--space", "optimizer.lr=0.1,0.2", "--tracking.uri", "file:x"], "file:x"),
        (["digits/fedavg", "--space", "optimizer.lr=0.1,0.2", "--tracking.trackers", "tensorbord"], "tensorbord"),
        (["digits/fedalign", "--task.validation", "0"], "set task.validation above 0"),
        (["digits/fedavg", "digits/fedalign", "digits/fedavg"], "a preset is named twice"),
        (["digits/fedavg", "r8-8/fedavg"], "has federation.rounds = 30 and r8-8/fedavg 50"),
        (["suite-digits-masks-2/fedavg", "suite-digits-masks-2/fedpu", "--space", "lambda_=1,2"], "no such option"),
    ],
)
def test_bad_calls_are_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert not list(tmp_path.iterdir()), "nothing half-written"


def test_help_lists_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    shown = capsys.readouterr().out
    assert "anchorfl sweep --resume FOLDER" in shown
    for field in dataclasses.fields(SweepOptions):
        assert f"--{field.name.replace('_', '-')}" in shown


def test_the_metric_is_the_first_of_those_that_are_computed():
    """Unless another is named; one that the runs do not compute is refused before they start."""
    assert plan().options.metric == "f1_macro"
    assert plan(metric="accuracy").options.metric == "accuracy"
    assert plan(metric="f1_uncovered").options.metric == "f1_uncovered"  # where nobody identifies a class
    e = read_preset("digits/fedalign")
    e = dataclasses.replace(e, evaluation=dataclasses.replace(e.evaluation, metrics="ranking"))
    space = {"q1": Range(90, 99)}
    assert SweepPlan("digits/fedalign", e, space, SweepOptions(), "").options.metric == "p_at_1"
    assert SweepPlan("digits/fedalign", e, space, SweepOptions(metric="map"), "").options.metric == "map"
    with pytest.raises(InputError, match=r"--metric accuracy: with evaluation.metrics = 'ranking' there are p_at_1, "):
        SweepPlan("digits/fedalign", e, space, SweepOptions(metric="accuracy"), "")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("method", "is damaged (text: "),
        ("method = 3", "is damaged (text: method is no table)"),
        ('[method]\nname = "evil:Method"', "its text has method.name = 'evil:Method', and its options have another"),
    ],
)
def test_a_text_of_others_is_looked_at(tmp_path, text, line):
    """A report makes presets of it, and reading one runs the code that it names."""
    plan().save(tmp_path)
    content = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps(content | {"text": text}))
    with pytest.raises(InputError, match=re.escape(line)):
        load_plan(tmp_path, {})


def test_scores_are_of_the_plans_seeds(tmp_path):
    made = plan()
    result = {"event": "result", "trial": 0, "round": 1, "record": {"score": 0.5, "scores": {"7": 0.5}}, "time": 0.0}
    with pytest.raises(InputError, match="trial 0 has scores of other seeds"):
        check_points(made, tmp_path / "ledger.jsonl", [result])


@pytest.mark.parametrize("name", ["seeds", "finals"])
def test_seeds_have_a_limit(name):
    with pytest.raises(ValueError, match="at most 1000"):
        SweepOptions(**{name: 10**9})
