"""``anchorfl new``: what it writes is a package whose tests pass at once, and that trains."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from anchorfl.pipeline.cli.main import main
from tests.runs import SMALL

ROOT = Path(__file__).resolve().parents[3]


def python(folder, *words):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder / "src")])}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.apart
@pytest.mark.parametrize("kind", ["method", "task"])
def test_its_tests_pass_and_it_trains(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "fed-fancy"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith('next: cd fed-fancy && pip install -e ".[dev]"')
    folder = tmp_path / "fed-fancy"
    done = python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    named = {"method": "fed_fancy.method:FedFancy", "task": "fed_fancy.task:task"}[kind]
    done = python(folder, "-m", "anchorfl", "run", "digits/fedavg", f"--{kind}.name", named, *SMALL,
                  "--task.classes_per_client", "2")  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_pip_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind, offers in {
        "method": {"anchorfl.methods": "x_y.method:XY", "anchorfl.search_spaces": "x_y.search_space:SPACE"},
        "task": {"anchorfl.tasks": "x_y.task:task"},
    }.items():
        assert main(["new", kind, "x-y", "--out", kind]) == 0
        project = tomllib.loads((tmp_path / kind / "pyproject.toml").read_text())["project"]
        assert project["entry-points"] == {group: {"x-y": target} for group, target in offers.items()}
        assert Requirement(project["dependencies"][0]).specifier.contains(version("anchorfl"))
        preset = tomllib.loads((tmp_path / kind / "x-y.toml").read_text())
        assert preset[kind]["name"] == "x-y"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["method", "fedavg"], "there is a method 'fedavg' already"),
        (["task", "digits"], "there is a task 'digits' already"),
        (["method", "json"], "Python has a module 'json' already"),
        (["method", "1st"], "'1st' cannot name a package"),
        (["method", "class"], "'class' cannot name a package"),
        (["method", "../up"], "'../up' cannot name a package"),
        (["method", "mine", "--out", "there"], "there is there already"),
    ],
)
def test_a_name_that_will_not_do_writes_nothing(tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["new", *words]) == 2
    assert line in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
