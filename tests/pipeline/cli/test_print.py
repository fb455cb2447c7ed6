"""``anchorfl run ... --print``: what would run, as a preset, and what is there of it; nothing is trained or written."""

from __future__ import annotations

import re

import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.storage.run_folder import read_config

WORDS = ("--cluster.executor", "serial", "--federation.rounds", "1", "--federation.epochs", "1", "--seed", "7")
WORDS += ("--tracking.uri", "none")


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Return a caller of ``run --print`` in an empty folder: its lines of comments by their first word, its text."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        assert main(["run", *words, "--print"]) == 0
        text = capsys.readouterr().out
        return dict(re.findall(r"^# ([a-z ]+): (.*)$", text, re.MULTILINE)), text

    return call


def test_it_trains_nothing_and_says_what_is_there(printed, tmp_path, capsys):
    said, _ = printed("digits/fedavg", *WORDS)
    assert not list(tmp_path.iterdir())
    assert said["data"].startswith("not prepared yet; goes to ")
    assert said["finished runs of this digest"] == "none in runs/"
    assert main(["run", "digits/fedavg", *WORDS]) == 0
    capsys.readouterr()
    (run,) = [path for path in (tmp_path / "runs").iterdir() if (path / "result.json").exists()]
    after, _ = printed("digits/fedavg", *WORDS)
    assert after["digest"] == said["digest"] == read_config(run)["digest"]
    assert after["data"] == said["data"].replace("not prepared yet; goes to", "prepared, in")
    assert after["finished runs of this digest"] == f"runs/{run.name}"


def test_what_it_prints_is_a_preset_of_that_digest(printed, tmp_path):
    said, text = printed("digits/fedalign", "--method.data_lr", "0.002", "--federation.rounds", "3")
    (tmp_path / "mine.toml").write_text(text)
    again, other = printed("mine.toml")
    assert again["digest"] == said["digest"]
    assert other.splitlines()[1:] == text.splitlines()[1:]


def test_of_a_table_it_prints_a_preset_and_nothing_else(printed, tmp_path, capsys):
    (tmp_path / "mine.csv").write_text("size,kind\n" + "".join(f"{i}.5,{'ab'[i % 2]}\n" for i in range(60)))
    said, text = printed("--task.file", "mine.csv", "--task.label_columns", "kind", "--task.input_columns", "size")
    (tmp_path / "mine.toml").write_text(text)
    assert printed("mine.toml")[0]["digest"] == said["digest"]
    (tmp_path / "runs" / "other").mkdir(parents=True)
    (tmp_path / "runs" / "other" / "result.json").write_text("{")
    assert printed("mine.toml")[0]["finished runs of this digest"] == "none in runs/", "another run's damage"


def test_several_presets_and_data_that_are_not_there(printed, monkeypatch):
    monkeypatch.delenv("ANCHORFL_DATA", raising=False)
    _, text = printed("digits/fedavg", "r8-8/moon")
    assert re.findall(r"^# (.*/.*)$", text, re.MULTILINE)[0] == "digits/fedavg"
    assert "\n# r8-8/moon\n" in text
    assert "# data: r8: no r8-train-stemmed.txt" in text


def test_a_bad_option_is_refused_as_ever(capsys):
    assert main(["run", "digits/fedavg", "--method.q1", "0.9", "--print"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
