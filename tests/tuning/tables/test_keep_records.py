"""The archives of benchmarks/results: a table reads the same numbers from them as from the runs."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile

import pytest

from anchorfl.pipeline.results.compare import load_run
from anchorfl.pipeline.storage.run_record import RoundRecord, write_final_scores
from anchorfl.tuning.tables.runs import index_runs
from anchorfl.tuning.tables.statistics import traffic
from benchmarks.keep_records import main, read, slim, write
from benchmarks.last_rounds import swing
from tests.fuzz.runs import finished


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("runs") / "one")


def test_what_is_kept_gives_the_same_numbers(run, tmp_path):
    write(tmp_path / "kept.tar.xz", {run.name: slim(run)})
    with tarfile.open(tmp_path / "kept.tar.xz") as tar:
        tar.extractall(tmp_path / "kept", filter="data")
    before, after = load_run(run), load_run(tmp_path / "kept" / run.name)
    seconds = after.values.pop("seconds"), before.values.pop("seconds")
    assert after.values == before.values
    assert seconds[0] == pytest.approx(seconds[1], abs=0.02)
    assert after.result == before.result
    assert traffic(after) == traffic(before)
    assert index_runs(tmp_path / "kept").finished.keys() == index_runs(run).finished.keys()


def test_scores_of_a_selected_round_are_kept(run, tmp_path):
    """They were measured after the last round, and stand in a folder of their own."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    write_final_scores(copy, RoundRecord(1, 1.0, {"test/selected_only": 0.25}))
    lines = [json.loads(line) for line in slim(copy)["metrics.jsonl"].splitlines()]
    assert [line["metrics"].get("test/selected_only") for line in lines] == [None, 0.25, None]


def test_no_name_of_a_user_or_a_folder_is_kept(run):
    text = b"".join(slim(run).values()).decode()
    assert str(run.parent) not in text
    assert '"user"' not in text
    assert "engine" not in text  # a class
    assert "system/" not in text


def test_a_place_from_the_root_keeps_its_last_name(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for file in ("config.json", "run.json"):
        text = json.loads((copy / file).read_text())
        if file == "run.json":
            text["params"]["class_embeddings.encoder"] = "/home/someone/model"
        else:
            text["class_embeddings"]["encoder"] = "/home/someone/model"
        (copy / file).write_text(json.dumps(text))
    kept = b"".join(slim(copy).values())
    assert b"someone" not in kept
    assert kept.count(b'"model"') >= 2


def test_two_runs_of_one_name_are_not_kept_as_one(run, tmp_path, monkeypatch, capsys):
    for place in ("a", "b"):
        shutil.copytree(run, tmp_path / place / "one")
    monkeypatch.setattr(sys, "argv", ["keep_records", str(tmp_path), "--out", str(tmp_path / "kept.tar.xz")])
    with pytest.raises(SystemExit):
        main()
    assert "a/one and " in capsys.readouterr().err
    assert not (tmp_path / "kept.tar.xz").exists()


def test_runs_are_added_and_the_same_runs_give_the_same_bytes(run, tmp_path):
    archive = tmp_path / "kept.tar.xz"
    write(archive, {"b": slim(run)})
    first = archive.read_bytes()
    write(archive, {**read(archive), "a": slim(run)})
    assert list(read(archive)) == ["a", "b"]
    assert read(archive)["b"] == slim(run)
    write(archive, {"b": read(archive)["b"]})
    assert archive.read_bytes() == first


def test_nothing_to_keep_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keep_records", str(tmp_path), "--out", str(tmp_path / "kept.tar.xz")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "no finished run below" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_how_rounds_swing_is_read_from_what_is_kept():
    values = [0.1, 0.5, None, 0.3, 0.4]  # a round that was not scored
    lines = [json.dumps({"metrics": {} if value is None else {"v": value}}) for value in values]
    assert swing(lines, "v", 3) == pytest.approx((50, 40, 40, 10, 20))
    assert swing(lines, "v", 2) == pytest.approx((50, 40, 35, 50**0.5, 0))  # rises alone
    assert swing(lines, "v", 1) == pytest.approx((50, 40, 40, 0, 0))
    with pytest.raises(ValueError, match="no round has w; the first has v"):
        swing(lines, "w", 3)
