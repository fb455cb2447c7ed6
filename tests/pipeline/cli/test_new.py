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
from anchorfl.pipeline.results.compare import FILES
from tests.runs import SMALL

ROOT = Path(__file__).resolve().parents[3]


def python(folder, *words):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder / "src")])}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)


TRAIN_AND_TEST = """
import sys
import pytest
from anchorfl.tuning.cli import main
sys.exit(main(sys.argv[1:]) or pytest.main(["-q", "-p", "no:cacheprovider"]))
"""
"""In one process, since each takes seconds to import torch."""
ON_RAY = pytest.mark.slow, pytest.mark.ray, pytest.mark.apart


@pytest.mark.parametrize(
    "kind",
    [pytest.param("method", marks=ON_RAY), pytest.param("network", marks=pytest.mark.slow), "task", "tracker"],
)
def test_its_tests_pass_and_it_trains(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "fed-fancy"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith('next: cd fed-fancy && pip install -e ".[dev]"')
    folder = tmp_path / "fed-fancy"
    option, named = {
        "method": ("method.name", "fed_fancy.method:FedFancy"),
        "network": ("model.network", "fed_fancy.network:FedFancy"),
        "task": ("task.name", "fed_fancy.task:task"),
        "tracker": ("tracking.trackers", "fed_fancy.tracker:FedFancy"),
    }[kind]
    done = python(folder, "-c", TRAIN_AND_TEST, "run", "digits/fedavg", f"--{option}", named, *SMALL,
                  "--task.classes_per_client", "2", "--output", "out")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Table and curves: out/report" in done.stdout
    assert ",FINISHED," in (folder / "out" / "report" / "comparison.csv").read_text()
    assert all((folder / "out" / "report" / name).stat().st_size for name in FILES)


def test_what_pip_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind, offers in {
        "method": {"anchorfl.methods": "x_y.method:XY", "anchorfl.search_spaces": "x_y.search_space:SPACE"},
        "network": {"anchorfl.networks": "x_y.network:XY"},
        "task": {"anchorfl.tasks": "x_y.task:task"},
        "tracker": {"anchorfl.trackers": "x_y.tracker:XY"},
    }.items():
        assert main(["new", kind, "x-y", "--out", kind]) == 0
        project = tomllib.loads((tmp_path / kind / "pyproject.toml").read_text())["project"]
        assert project["entry-points"] == {group: {"x-y": target} for group, target in offers.items()}
        assert Requirement(project["dependencies"][0]).specifier.contains(version("anchorfl"))
        assert 'x-y"' in (tmp_path / kind / "x-y.toml").read_text()
        files = list((tmp_path / kind).rglob("*.py"))
        assert files
        for file in files:
            compile(file.read_text(), file, "exec")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["method", "fedavg"], "there is a method 'fedavg' already"),
        (["task", "digits"], "there is a task 'digits' already"),
        (["network", "resnet8"], "there is a network 'resnet8' already"),
        (["tracker", "tensorboard"], "there is a tracker 'tensorboard' already"),
        (["method", "json"], "Python has a module 'json' already"),
        (["method", "1st"], "'1st' cannot name a package"),
        (["method", "class"], "'class' cannot name a package"),
        (["method", "none"], "'none' cannot name a package"),
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
