"""Prepared data that are damaged, or go while a run is on: it ends with one line, and no client is left out."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from anchorfl.pipeline.cli.main import EXIT_INPUT, main
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.lifecycle import run
from tests.faulty import damage
from tests.runs import quiet


def checksum(folder):
    return json.loads((folder / "result.json").read_text())["checksum"]


@pytest.fixture
def own(experiment, tmp_path, monkeypatch):
    """Return a maker of a preset with a cache of its own that is filled: (checksum of its run, prepared folder)."""
    monkeypatch.chdir(tmp_path)

    def make(method="fedavg", **sections):
        e = experiment(method, **sections)
        e = dataclasses.replace(e, task=dataclasses.replace(e.task, cache=str(tmp_path / "cache")))
        Path("e.toml").write_text(to_toml(e))
        expected = run(e, tmp_path / "whole", quiet).checksum
        (folder,) = (path for path in (tmp_path / "cache").glob("toy-*") if path.is_dir())
        return expected, folder

    return make


def flip(path, bit=40_000):
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1
    path.write_bytes(data)


def one_line(capsys, name, mend="delete the folder and prepare the data again"):
    said = capsys.readouterr()
    assert "left out" not in said.out
    assert "tried again" not in said.out
    (line,) = said.err.splitlines()
    assert line.startswith("anchorfl: ")
    assert name in line
    assert mend in line


@pytest.mark.parametrize(
    ("what", "name"),
    [(2, "the rows of client-00002"), (4, "the rows of test"), ("clients.parquet",) * 2, ("manifest.json",) * 2],
)
def test_damage_ends_a_run_and_data_made_anew_give_its_bits(own, tmp_path, capsys, what, name):
    """Clients 0 and 1 could go on without the third: the quorum is no matter here."""
    expected, folder = own(federation={"rounds": 2, "clients_per_round": 4, "quorum": 0.25})
    if isinstance(what, int):
        damage(folder, what)
    else:
        flip(folder / what)
    capsys.readouterr()
    assert main(["run", "e.toml", "--output", "out"]) == EXIT_INPUT
    one_line(capsys, name)
    shutil.rmtree(folder)
    began = Path("out/run.json").exists()
    assert began == (what == 2), "the others are read before there is a run"
    assert main(["resume", "out"] if began else ["run", "e.toml", "--output", "out"]) == 0
    assert checksum(tmp_path / "out") == expected


def test_a_damaged_file_ends_a_batched_run(own, capsys):
    _, folder = own("fedaws", federation={"rounds": 1, "batched_clients": True, "clients_per_round": 2, "epochs": 1},
                    optimizer={"name": "sgd", "batch_size": 0})  # fmt: skip
    damage(folder, 1)
    capsys.readouterr()
    assert main(["run", "e.toml", "--output", "out"]) == EXIT_INPUT
    one_line(capsys, "the rows of client-00001")


def test_a_cache_that_goes_in_the_middle_ends_the_run_and_resume_gives_its_bits(own, tmp_path, capsys, monkeypatch):
    expected, folder = own(federation={"rounds": 3, "clients_per_round": 2, "epochs": 1})
    plain = SerialExecutor.round

    def losing(self, round_, *given):
        if round_ == 2:
            shutil.rmtree(folder, ignore_errors=True)
        return plain(self, round_, *given)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(SerialExecutor, "round", losing)
        assert main(["run", "e.toml", "--output", "out", "--cluster.client_cache_mb", "0"]) == EXIT_INPUT
    one_line(capsys, "is missing")
    assert [json.loads(line)["round"] for line in Path("out/metrics.jsonl").read_text().splitlines()] == [0, 1]
    assert main(["resume", "out"]) == 0
    assert checksum(tmp_path / "out") == expected
