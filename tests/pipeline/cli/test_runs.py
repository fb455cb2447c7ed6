"""``anchorfl runs`` and ``env``: states are those that the folders have, and both print JSON."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_folder import lock_run
from anchorfl.pipeline.storage.run_record import RunInfo
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.testing import small_experiment, stopped_before
from tests.runs import quiet


class Broken:
    def __call__(self, report):
        raise OSError("nothing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished, an interrupted and a failed run, and one that ranks."""
    where = tmp_path_factory.mktemp("runs")
    run(small_experiment("fedavg"), where / "done", quiet)
    with stopped_before(2):
        run(small_experiment("fedalign"), where / "cut", quiet)
    with pytest.raises(RuntimeError):
        run(small_experiment("fedavg"), where / "broken", quiet, callbacks=[Broken()])
    run(small_experiment("fedavg", "toy-multi", evaluation={"metrics": "ranking"}), where / "ranks", quiet)
    return where


def listed(capsys, folder, *words):
    assert main(["runs", "--folder", str(folder), "--json", *words]) == 0
    return {entry.pop("name"): entry for entry in json.loads(capsys.readouterr().out)}


def test_states_rounds_and_scores(folder, capsys):
    found = listed(capsys, folder)
    assert list(found) == ["done", "cut", "broken", "ranks"]  # by age
    states = {name: (entry["state"], entry["round"], entry["rounds"]) for name, entry in found.items()}
    assert states == {"done": ("finished", 3, 3), "cut": ("interrupted", 1, 3), "broken": ("failed", 0, 3),
                      "ranks": ("finished", 3, 3)}  # fmt: skip
    result = json.loads((folder / "done" / "result.json").read_text())
    assert (found["done"]["split"], found["done"]["score"]) == ("test", result["scores"]["test"]["f1_macro"])
    assert (found["ranks"]["measure"], found["ranks"]["data"]) == ("P@1", "toy-multi")
    with lock_run(folder / "cut"):
        assert listed(capsys, folder, "fedalign")["cut"]["state"] == "running"


@pytest.mark.parametrize(("kind", "said"), [("sweep", "anchorfl sweep --resume"), ("table", "its runs lie beside it")])
def test_a_sweep_or_table_is_no_run(kind, said, tmp_path, capsys):
    """It is listed as what it is, and a command that takes a run says where the runs are."""
    where = tmp_path / kind
    record = JsonLines(where, 0)
    record.begin(RunInfo(name=kind, experiment="digits", params={}, tags={"kind": kind}, folder=where))
    assert listed(capsys, tmp_path)[kind]["state"] == "interrupted"
    record.end("FINISHED")
    found = listed(capsys, tmp_path)[kind]
    assert (found["state"], found["kind"]) == ("finished", kind)
    for command in ("resume", "verify", "diagnose", "compare"):
        assert main([command, str(where)]) == 2
        err = capsys.readouterr().err
        assert f"is a {kind}'s folder, not a run's: " in err, command
        assert said in err, command


def test_words_and_states_choose(folder, capsys):
    assert list(listed(capsys, folder, "fedavg", "toy-single")) == ["done", "broken"]
    assert list(listed(capsys, folder, "--state", "failed")) == ["broken"]
    assert main(["runs", "--folder", str(folder), "nobody"]) == 0
    assert f"no such run below {folder}/" in capsys.readouterr().out
    assert main(["runs", "--folder", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "state", "rounds", "score", "age", "data", "method"]
    assert lines[2].split()[:3] == ["done", "finished", "3/3"]


def test_a_damaged_record_is_named_and_the_others_are_listed(folder, capsys, tmp_path):
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text('{"id": 3}')
    assert main(["runs", "--folder", str(tmp_path)]) == 0
    assert "run.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"created": -math.inf}, "does not say when the run began"),
        ({"params": {"evaluation.metrics": ["threshold"], "method": ["fedavg"]}}, ""),
        ({"tags": {"kind": ["sweep"]}}, ""),
    ],
)
def test_a_record_of_the_wrong_form_leaves_the_others(folder, capsys, tmp_path, change, said):
    shutil.copytree(folder / "done", tmp_path / "runs" / "whole")
    shutil.copytree(folder / "done", tmp_path / "runs" / "strange")
    path = tmp_path / "runs" / "strange" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["runs", "--folder", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert "whole" in out
    assert ("strange" in out) != bool(said)
    assert said in err


def test_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@host/db")
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"anchorfl", "python", "torch", "ray", "cache", "plug-ins"} <= facts.keys()
    assert "secret" not in str(facts)
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("anchorfl  ")
    assert "secret" not in out
