"""A sweep on a table of the user: without a preset, or with what one lends; and what a paper's table says to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import anchorfl
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tasks.errors import InputError
from anchorfl.tuning import commands
from anchorfl.tuning.cli import main
from anchorfl.tuning.sweep import sweep

TABLE = ["--task.file", "sales.csv", "--task.label_columns", "class"]


@pytest.fixture
def sales(tmp_path, monkeypatch):
    """Write a table and stand in its folder."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{i * 5 % 7},{(i * 5 % 3 + i % 2) / 2},{('bread', 'milk', 'tea')[i % 3]}" for i in range(90)]
    Path("sales.csv").write_text("\n".join(["price,size,class", *lines]) + "\n")


@pytest.fixture
def started(monkeypatch):
    """Return the list of (plan, folder) of sweeps, which do not run."""
    out = []
    monkeypatch.setattr(commands, "_run", lambda plan, folder, *, as_json: out.append((plan, folder)) or 0)
    return out


def test_a_sweep_needs_no_preset(sales, started):
    assert main(["sweep", *TABLE, "--method.name", "fedpu", "--trials", "3"]) == 0
    plan, folder = started[0]
    assert (plan.preset, folder) == ("sales-fedpu", Path("runs/sweep-sales-fedpu-1"))
    assert (plan.experiment.method.name, list(plan.space), plan.options.trials) == ("fedpu", ["lambda_"], 3)
    Path("again.toml").write_text(plan.text)
    assert anchorfl.read_preset("again.toml") == plan.experiment
    assert main(["sweep", "again.toml"]) == 0
    assert started[1][1] == Path("runs/sweep-again-1"), "a file of one's own names its sweeps"


@pytest.mark.parametrize(("words", "trials"), [([], 4), (["--trials", "2"], 2)])
def test_a_grid_is_tried_whole_unless_somebody_says(started, words, trials):
    """Three points, and the preset's own, which is none of them."""
    space = ["--space", "mu=0.003,0.3,3"]
    assert main(["sweep", "digits/fedavg", "--method.name", "fedprox", "--searcher", "grid", *space, *words]) == 0
    assert started[0][0].options.trials == trials


def test_a_grid_of_python_is_tried_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plans = []
    monkeypatch.setattr(sweep, "run_sweep", lambda plan, *_: plans.append(plan))
    for more in ({}, {"trials": 2}):
        anchorfl.sweep("digits/fedavg", {"method.name": "fedprox"}, space=["mu=0.003,0.3,3"], searcher="grid", **more)
    assert [plan.options.trials for plan in plans] == [4, 2]


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [
        ("output", "there", "a folder of its own"),
        ("tracking.register", "cells", "--register"),
        ("tracking.run_name", "mine", "named after their points"),
        ("evaluation.test", "last", "final runs do once"),
    ],
)
def test_what_a_sweep_sets_for_its_runs_is_refused(tmp_path, monkeypatch, capsys, option, value, instead):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"--{option}: a sweep sets it for its runs; .*{instead}"):
        anchorfl.sweep("digits/fedavg", {option: value})
    if option != "output":  # which the command takes for the sweep's own
        assert main(["sweep", "digits/fedavg", f"--{option}", value]) == 2
        assert instead in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_name_that_mlflow_refuses_ends_no_sweep_at_its_end(capsys):
    assert main(["sweep", "digits/fedavg", "--register", "a/b"]) == 2
    assert "MLflow takes no / : or quotes in a model's name" in capsys.readouterr().err


def test_a_preset_of_other_data_does_not_name_the_sweep(sales, started):
    assert main(["sweep", "r8-8/fedpu", *TABLE]) == 0
    plan, folder = started[0]
    assert (plan.preset, folder) == ("sales-fedpu", Path("runs/sweep-sales-fedpu-1"))
    assert plan.experiment.method == read_preset("r8-8/fedpu").method
    assert (plan.experiment.task.variant, plan.experiment.seed) == ("", 0)


def test_several_presets_on_a_table(sales, started, capsys):
    """Each once, by their names as typed; what is said of the table is said once."""
    assert main(["sweep", "digits/fedavg", "r8-8/fedpu", *TABLE, "--federation.rounds", "4"]) == 0
    plan, folder = started[0]
    assert list(plan.experiments) == ["digits/fedavg", "r8-8/fedpu"]
    assert (plan.options.searcher, plan.options.trials, list(plan.space)) == ("grid", 2, ["preset"])
    assert folder == Path("runs/sweep-table-sales-presets-1")
    assert capsys.readouterr().out.count("inputs guessed") == 1


@pytest.mark.parametrize("words", [["table", *TABLE], ["table", "fedalign", "--data", "r8-8", *TABLE]])
def test_a_papers_table_says_how_to_compare_methods_on_ones_own(sales, words, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "anchorfl run digits/fedavg digits/fedalign --task.file FILE" in said


@pytest.mark.parametrize("command", ["run", "sweep", "probe"])
def test_without_preset_and_table_the_command_says_that_either_would_do(command, capsys):
    assert main([command, "--federation.rounds", "3"]) == 2
    assert f"{command} needs a preset: digits/fedalign" in (said := capsys.readouterr().err)
    assert "--task.file" in said
