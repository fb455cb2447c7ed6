"""A sweep on a table of the user: without a preset, or with what one lends; and what a paper's table says to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import anchorfl
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tuning import commands
from anchorfl.tuning.cli import main

TABLE = ["--task.file", "sales.csv", "--task.label_columns", "class"]


@pytest.fixture
def sales(tmp_path, monkeypatch):
    """Write a table and stand in its folder."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{i * 5 % 7},{i * 5 % 3 / 2},{('bread', 'milk', 'tea')[i % 3]}" for i in range(90)]
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
