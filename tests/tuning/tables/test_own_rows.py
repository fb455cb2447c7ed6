"""Rows of the user's own beside a paper's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from anchorfl.pipeline.config.experiment import to_tree
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.cli import main
from anchorfl.tuning.tables.command import TableCommand, parse_args
from anchorfl.tuning.tables.options import parse_vary
from anchorfl.tuning.tables.own_rows import own_rows, parse_own_rows
from anchorfl.tuning.tables.page import reproducibility, table_dicts
from anchorfl.tuning.tables.published import rows_of
from anchorfl.tuning.tables.runs import RunIndex, jobs_of, table_runs_of
from anchorfl.tuning.tables.statistics import table_of
from tests.runs import quiet
from tests.tuning.made_tables import made_run

MINE = """
from dataclasses import dataclass
from anchorfl.pipeline.methods.fedprox import FedProx

@dataclass(frozen=True, kw_only=True)
class Mine(FedProx):
    name = "mine"
"""
ROW = "Mine = fedavg --method.name own_of_rows:Mine --method.mu 0.5"
SEEDS = (1, 2, 3)
TOPS = {"FedAvg": (0.10, 0.20, 0.24), "FedAlign": (0.30, 0.31, 0.29), "Mine": (0.35, 0.33, 0.36)}


@pytest.fixture
def plugin(paper, tmp_path, monkeypatch):
    """Stand in a folder with the method of a user; return the paper."""
    (tmp_path / "own_of_rows.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return paper


def runs_with(paper, *texts):
    rows = rows_of(paper)
    return table_runs_of((*rows, *own_rows(parse_own_rows(texts), rows, [])), SEEDS, [])


def test_an_own_rows_options_are_its_own_whatever_all_rows_are_given(paper):
    """They were overridden: the row was FedAvg's, and the page said otherwise."""
    rows = rows_of(paper)
    mine = own_rows(parse_own_rows(["Mine = fedavg --optimizer.lr 0.1"]), rows, [])
    runs = table_runs_of((*rows, *mine), [1], ["--optimizer.lr=0.02", "--federation.rounds", "2"])
    rates = {run.row.shown: (run.experiment.optimizer.lr, run.experiment.federation.rounds) for run in runs}
    assert (rates["Mine (own)"], rates["FedAvg"]) == ((0.1, 2), (0.02, 2))
    assert len({run.digest for run in runs}) == len(runs)
    with pytest.raises(InputError, match=r"--row Mine: --vary sets optimizer\.lr for all rows; leave it out of one"):
        table_runs_of((*rows, *mine), [1], [], parse_vary(["optimizer.lr=0.1,0.2"]))


def test_an_own_row_is_the_papers_but_for_its_own_options(plugin):
    runs = {(run.row.shown, run.seed): run for run in runs_with(plugin, ROW)}
    mine, fedavg = to_tree(runs["Mine (own)", 2].experiment), to_tree(runs["FedAvg", 2].experiment)
    method, _ = mine.pop("method"), fedavg.pop("method")
    assert (method["name"], method["mu"]) == ("own_of_rows:Mine", 0.5)
    assert mine == fedavg
    before = {(run.row.shown, run.seed): run.digest for run in runs_with(plugin)}
    assert {key: run.digest for key, run in runs.items() if key in before} == before
    folders = [job.folder.name for job in jobs_of(list(runs.values()), RunIndex(), Path("runs"), quiet)]
    assert sum(name.startswith("digits-mine-s") for name in folders) == len(SEEDS)


def test_two_rows_with_the_same_options_are_refused():
    with pytest.raises(InputError, match="two rows have the same options; leave one out"):
        parse_own_rows(["One = fedavg --model.width 32", "Two = fedavg --model.width 32"])


def test_it_has_the_statistics_of_the_others_and_leaves_theirs_alone(plugin, tmp_path):
    def table(*texts):
        made = []
        for run in runs_with(plugin, *texts):
            top = TOPS[run.row.label][SEEDS.index(run.seed)]
            scores = {"test/f1_macro": [0.1, top], "test/accuracy": [0.1, top]}
            made.append(made_run(run, tmp_path / re.sub(r"\W", "-", run.row.key)[:40], scores))
        return table_of(plugin, made)

    with_own, without = (table_dicts(t) for t in (table(ROW), table()))
    papers = [row for row in with_own if "(own)" not in row["row"]]
    assert [r | {"runs": ""} for r in papers] == [r | {"runs": ""} for r in without]
    mine = next(row for row in with_own if row["row"] == "Mine (own)")
    assert mine["mean"] == pytest.approx(100 * sum(TOPS["Mine"]) / 3)
    assert (mine["published"], mine["verdict"]) == (None, "")
    assert mine["own_less_row"] == pytest.approx(100 * (0.30 - sum(TOPS["Mine"]) / 3))
    fedavg = next(row for row in papers if row["row"] == "FedAvg")
    assert fedavg["p_holm"] == fedavg["p"]
    assert mine["p_holm"] == pytest.approx(max(2 * min(mine["p"], fedavg["p"]), mine["p"]))
    assert "Mine" not in reproducibility(table(ROW))


def test_the_command_shows_the_row(plugin, capsys):
    made_run(runs_with(plugin, ROW)[2], Path("runs"), {"test/f1_macro": [0.1, 0.5], "test/accuracy": [0.1, 0.5]})
    assert main(["table", "toy", "--show", "--seeds", "1,2,3", "--row", ROW]) == 0
    assert "Mine (own)" in capsys.readouterr().out
    page = Path("runs/table-toy/table.md").read_text()
    assert "Own rows, which are not the paper's: Mine: fedavg with `--method.name own_of_rows:Mine" in page
    assert main(["table", "toy", "--show", "--seeds", "1,2,3", "--row", ROW, "--json"]) == 0
    assert "Mine (own)" in {row["row"] for row in json.loads(capsys.readouterr().out)["rows"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedavg --method.name x", "must be a name, a row of the paper and options"),
        ("Mine = fedavg", "must be a name, a row of the paper and options"),
        ("Mine = ", "must be a name, a row of the paper and options"),
        ("Mine = fedavg 'open", "must be a name, a row of the paper and options"),
        ("Mine = fedavg --task.beta 0.1", "task.beta is the same for all rows of a table"),
        ("Mine = fedavg --seed 3", "seed is the same for all rows of a table"),
        ("Mine = fedavgg --method.name fedprox", "no row fedavgg of these data sets.*did you mean 'fedavg'"),
        ("FedAvg = fedavg --method.name fedprox", "the paper has a row of that name"),
        ("Mine = fedavg --method.q7 3", "--row Mine: method 'fedavg' has no option --method.q7"),
        ("Mine = fedavg --method.name nowhere:Mine", "Python finds no module 'nowhere'"),
    ],
)
def test_bad_rows_are_one_line(paper, text, message):
    with pytest.raises(InputError, match=message):
        TableCommand(parse_args(["toy", "--row", text]))


def test_without_own_options_a_row_starts_from_its_preset(paper):
    runs = [run for run in runs_with(paper, "Slow = fedavg --optimizer.lr 0.0001") if run.row.own]
    assert {run.experiment.optimizer.lr for run in runs} == {0.0001}
    assert all(run.has_preset_options for run in runs)
    assert type(runs[0].experiment.method) is type(read_preset("digits/fedavg").method)
