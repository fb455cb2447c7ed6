"""A table on Ray: what is there is found, what is missing is run, what was cut short goes on, what fails is named."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tuning.cli import main
from anchorfl.tuning.tables import papers
from tests.tuning.made_tables import toy

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--federation.rounds", "2", "--federation.epochs", "1"]
LONG = ["--rows", "fedavg", "--federation.rounds", "60", "--federation.epochs", "1", "--parallel", "1"]


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """Add the toy paper to those that ``anchorfl table`` knows; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(papers.PAPERS, "toy", toy(tmp_path))


def table_process(folder: Path, *arguments: str) -> subprocess.Popen:
    code = (
        "import sys; from pathlib import Path; from tests.tuning.made_tables import toy;"
        "from anchorfl.tuning.tables import papers;"
        f"papers.PAPERS['toy'] = toy(Path({str(folder)!r})); from anchorfl.tuning.cli import main;"
        f"sys.exit(main({['table', 'toy', *arguments]!r}))"
    )
    with (folder / "said.txt").open("a") as said:
        env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=env, stdout=said, stderr=said)


def wait_for_rounds(process: subprocess.Popen, folder: Path, preset_seed: str, count: int) -> Path:
    """Wait until a run has so many rounds; return its folder."""
    deadline = time.monotonic() + 200
    while True:
        for path in folder.glob(f"runs/{preset_seed}-*/metrics.jsonl"):
            if path.read_bytes().count(b"\n") > count:
                return path.parent
        assert process.poll() is None, (folder / "said.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def by_hand(seed: int, folder: Path, overrides: list[str], method: str = "fedavg") -> str:
    """Run an ordinary serial run; return its checksum."""
    e = override(
        read_preset(f"digits/{method}"), [*overrides, "--cluster.executor", "serial", "--tracking.uri", "none"]
    )
    return run(replace(e, seed=seed), folder, str.strip).checksum


def mlflow_rounds() -> dict[str, list[int]]:
    """Name of every run in MLflow -> steps of the mark that each record leaves there."""
    with closing(sqlite3.connect("runs/mlflow.db")) as db:
        rows = db.execute(
            "select r.name, m.step from runs r join metrics m on m.run_uuid = r.run_uuid"
            " where m.key = 'sync/round_complete' order by m.step"
        ).fetchall()
    return {name: [step for n, step in rows if n == name] for name, _ in rows}


def test_what_is_missing_is_run(paper, ray_running, capsys):
    """A run by hand, somewhere below runs/, is not made again; the others are ordinary runs with the bits of a run by
    hand; the page has all; MLflow has each run and the table once; a second call finds everything.
    """
    by_hand(1, Path("runs/older/mine"), SHORT)
    assert main(["table", "toy", *SHORT]) == 0
    said = capsys.readouterr().out
    assert "4 runs in this table: 1 found in runs, 3 to run" in said
    assert "digits/fedavg seed 1: starts" not in said
    (made,) = Path("runs").glob("digits-fedalign-s2-*")
    assert f"digits/fedalign seed 2: starts in {made}" in said
    assert "3/3 done" in said
    assert "digits/fedalign seed 2: macro F1 " in said
    assert "4 of 4 runs" in said
    assert json.loads((made / "result.json").read_text())["checksum"] == by_hand(2, Path("again"), SHORT, "fedalign")
    page = Path("runs/table-toy/table.md").read_text()
    assert "2 of 2" in page
    assert "every run has `--federation.rounds 2 --federation.epochs 1`" in page
    steps = {name.rpartition("-")[0] if "-s" in name else name: rounds for name, rounds in mlflow_rounds().items()}
    names = ("digits-fedalign-s1", "digits-fedalign-s2", "digits-fedavg-s2")
    assert steps == {**{name: [0, 1, 2] for name in names}, "table-toy": [4]}
    with closing(sqlite3.connect("runs/mlflow.db")) as db:
        (kind,) = db.execute("select value from tags where key = 'table'").fetchone()
    assert kind == "toy"
    assert list(Path("runs/mlartifacts/tables").rglob("table.md"))
    assert main(["compare", str(made)]) == 0
    assert main(["resume", str(made)]) == 0
    before = {p: p.stat().st_mtime_ns for p in Path("runs").glob("digits-*/*")}
    assert main(["table", "toy", *SHORT]) == 0
    assert "4 found in runs, 0 to run" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in Path("runs").glob("digits-*/*") if p in before} == before
    assert mlflow_rounds()["table-toy"] == [4]


def test_the_suite_again_makes_the_same_page(ray_running, tmp_path, monkeypatch):
    """In another folder, but for hours and the folder's name: every score and byte. Ranks follow from the scores."""
    monkeypatch.chdir(tmp_path)
    pages = []
    for folder in ("runs-1", "runs-2"):
        words = ["--data", "suite-digits-masks-2", "--rows", "anchor", "--seeds", "4321", *SHORT]
        assert main(["benchmark", *words, "--tracking.uri", "none", "--runs", folder]) == 0
        with open(f"{folder}/table-suite/table.csv", newline="") as stream:
            figures = [{**row, "cpu_hours_per_run": "", "runs": ""} for row in csv.DictReader(stream)]
        text = Path(f"{folder}/table-suite/table.md").read_text().replace(folder, "FOLDER")
        text = re.sub(r"\| [\d.e-]+ \|$|[\d.e-]+(?= CPU hours)", "", text, flags=re.MULTILINE)
        pages.append((figures, text))
    assert pages[0] == pages[1]
    assert [row["row"] for row in pages[0][0]] == ["Anchor", "Anchor"]
    assert float(pages[0][0][0]["mean"]) > 20


def test_a_varied_option(paper, ray_running, capsys):
    """Every value is a run with that option; the preset's own value is the preset's own run, which is there already."""
    own = by_hand(1, Path("runs/mine"), SHORT)
    words = ["--rows", "fedavg", "--seeds", "1", "--vary", "federation.clients_per_round=5,2", *SHORT]
    assert main(["table", "toy", *words, "--tracking.uri", "none"]) == 0
    said = capsys.readouterr().out
    assert "2 runs in this table: 1 found in runs, 1 to run" in said
    assert "digits/fedavg --federation.clients_per_round 2 seed 1: starts in " in said
    (made,) = Path("runs").glob("digits-fedavg-s1-*")
    checksum = json.loads((made / "result.json").read_text())["checksum"]
    assert checksum == by_hand(1, Path("hand"), [*SHORT, "--federation.clients_per_round", "2"]) != own
    lines = Path("runs/table-toy-clients_per_round/figures/vary-clients_per_round.csv").read_text().splitlines()
    assert [line.split(",")[3:6] for line in lines[1:3]] == [
        ["federation.clients_per_round", "2", "0"],
        ["federation.clients_per_round", "5", "1"],
    ]


def test_on_actors(paper, ray_running):
    """With the Ray executor runs have actors of their own, and the same bits."""
    more = [*SHORT, "--cluster.executor", "ray", "--tracking.uri", "none"]
    assert main(["table", "toy", "--rows", "fedavg", "--seeds", "1", *more]) == 0
    (made,) = Path("runs").glob("digits-fedavg-s1-*")
    assert json.loads((made / "result.json").read_text())["checksum"] == by_hand(1, Path("hand"), SHORT)


def test_a_failing_run_is_named(paper, ray_running, capsys):
    """A learning rate that gives no finite update fails FedAvg, which uses it, and not FedAlign, which has its own."""
    more = [*SHORT, "--optimizer.lr", "1e30", "--tracking.uri", "none", "--seeds", "1"]
    assert main(["table", "toy", *more]) == 3
    said = capsys.readouterr().out
    lines = [x for x in said.splitlines() if x.startswith("digits/fedavg seed") and " failed: " in x]
    assert {x.split()[2] for x in lines} == {"1"}
    page = Path("runs/table-toy/table.md").read_text()
    for line in lines:
        assert "not finite" in line or "quorum" in line
        assert line in page
    assert "FedAlign  macro F1" in said
    assert "1 of 2 runs" in said


@pytest.mark.slow
def test_killed_and_resumed(paper, tmp_path):
    """SIGKILL within the second run: the first stays as it is, the second goes on in its folder, and ends with the bits
    of a run that was left alone; MLflow has every run and round once.
    """
    process = table_process(tmp_path, *LONG)
    cut = wait_for_rounds(process, tmp_path, "digits-fedavg-s2", 5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (whole,) = tmp_path.glob("runs/digits-fedavg-s1-*")
    assert not (cut / "result.json").exists()
    identity = json.loads((cut / "run.json").read_text())["id"]
    stamp = (whole / "result.json").stat().st_mtime_ns
    again = table_process(tmp_path, *LONG)
    assert again.wait(timeout=300) == 0, (tmp_path / "said.txt").read_text()
    said = (tmp_path / "said.txt").read_text()
    assert "2 runs in this table: 1 found in runs, 1 to run, 1 of them already begun" in said
    assert (whole / "result.json").stat().st_mtime_ns == stamp
    assert json.loads((cut / "run.json").read_text())["id"] == identity
    assert [r.round for r in read_records(cut)[0]] == list(range(61))
    assert json.loads((cut / "result.json").read_text())["checksum"] == by_hand(2, Path("hand"), LONG[2:6])
    got = mlflow_rounds()
    assert got == {whole.name: list(range(61)), cut.name: list(range(61)), "table-toy": [2]}


@pytest.mark.slow
def test_interrupted(paper, tmp_path):
    """Ctrl-C ends it within seconds, with the command that goes on; whole rounds stay, and nothing goes on unseen."""
    process = table_process(tmp_path, *LONG, "--federation.rounds", "1000", "--tracking.uri", "none")
    cut = wait_for_rounds(process, tmp_path, "digits-fedavg-s1", 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130, (tmp_path / "said.txt").read_text()
    said = (tmp_path / "said.txt").read_text()
    assert "interrupted; the last completed round is kept, go on with: anchorfl table toy --rows fedavg" in said
    assert not (cut / "result.json").exists()
    assert json.loads((tmp_path / "runs/table-toy/run.json").read_text())["status"] == "KILLED"
    left = (cut / "metrics.jsonl").read_bytes()
    time.sleep(2)
    assert (cut / "metrics.jsonl").read_bytes() == left
    assert left.endswith(b"\n")
