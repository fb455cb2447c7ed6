"""``anchorfl verify``: a record that a run made comes out again, and one that was changed does not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.run import lifecycle
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_folder import write_config
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment, stopped_before
from tests.runs import quiet


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("verify") / "run"
    run(small_experiment("fedalign"), where, quiet)
    return where


def test_a_run_comes_out_again(folder, capsys):
    before = sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))
    assert main(["verify", str(folder)]) == 0
    assert "of the rounds 0 to 2 are those of the record" in capsys.readouterr().out
    assert before == sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))


def test_what_clients_keep_in_a_place_of_their_own_stays_as_it_is(folder, tmp_path, monkeypatch):
    copy, e = tmp_path / "run", small_experiment("fedalign")
    shutil.copytree(folder, copy)
    write_config(copy, replace(e, cluster=replace(e.cluster, executor="ray", memories=str(tmp_path / "memories"))))
    asked = []

    def no_run(experiment, *arguments, **options):
        asked.append(experiment.cluster.memories)
        raise InputError("enough")

    monkeypatch.setattr(lifecycle, "run", no_run)
    assert main(["verify", str(copy)]) == 2
    assert asked == [""]


def test_an_interrupted_run_of_clients_models_does_too(tmp_path, capsys):
    with stopped_before(3):
        run(small_experiment("fedproto", evaluation={"test": "last"}), tmp_path, quiet)
    assert main(["verify", str(tmp_path), "--rounds", "1"]) == 0
    assert "verified: all " in capsys.readouterr().out


def test_a_changed_number_is_named(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["metrics"]["train/loss"] *= 1 + 1e-6
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["verify", str(tmp_path / "run")]) == 1
    out = capsys.readouterr().out
    assert "not the same: 1 of " in out
    assert "differ, by up to 1.0e-06 of their size: train/loss of round 1" in out


@pytest.mark.parametrize("change", ["class", "gone"])
def test_scores_of_classes_and_numbers_that_are_gone_count(folder, tmp_path, capsys, change):
    shutil.copytree(folder, tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    if change == "class":
        row = lines[1]["per_class"]["test/f1"]
        row[min(row)] += 0.5
    else:
        del lines[1]["metrics"]["test/f1_macro"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["verify", str(tmp_path / "run")]) == 1
    assert {"class": "test/f1 of ", "gone": "test/f1_macro of round 1 (on one side alone)"}[
        change
    ] in capsys.readouterr().out


@pytest.mark.parametrize("rounds", ["0", "4", "-1"])
def test_rounds_that_are_not_there_are_one_line(folder, capsys, rounds):
    assert main(["verify", str(folder), "--rounds", rounds]) == 2
    assert "has the rounds 1 to 3; name one of these" in capsys.readouterr().err
