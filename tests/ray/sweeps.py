"""Sweeps in processes of their own, and their records."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from anchorfl.pipeline.config.schema import to_toml
from anchorfl.tasks.files import object_store
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.search.study import TrialState, read_trials
from anchorfl.tuning.sweep.sweep import LEDGER

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--searcher", "random", "--scheduler", "none", "--seeds", "2", "--rounds", "2"]
SPACE = ["--space", "q1=60:95", "alpha=log:0.1:10"]


def write_preset(experiment, name: str = "toy.toml", **sections) -> str:
    """Write a small FedAlign preset of the toy task into the current folder; keywords replace sections."""
    base = {"cluster": {"executor": "ray"}, "tracking": {"uri": ""}}
    e = experiment("fedalign", options={"q1": 80.0, "q2": 40.0}, **(base | sections))
    Path(name).write_text(to_toml(e))
    return name


def trials(folder: str | Path) -> list[TrialState]:
    return read_trials(Ledger(Path(folder) / LEDGER).events)


def scores(folder: str | Path) -> list[tuple]:
    return [(e.point, e.status, [e.records[r]["scores"] for r in sorted(e.records)]) for e in trials(folder)]


HOLD = """
import time
from anchorfl.tuning.search.ledger import Ledger
write = Ledger.write
def held(self, event):
    write(self, event)
    if sum(e["event"] == "end" for e in self.events) >= {count}:
        time.sleep(600)
Ledger.write = held
"""


def sweep_process(folder: Path, *arguments: str, held_after: int | None = None) -> subprocess.Popen:
    """Start a sweep in a process of its own. held_after: once so many trials have ended it waits to be killed, so that
    a test that kills it does so halfway however fast the trials are and however late it looks.
    """
    hold = "" if held_after is None else HOLD.format(count=held_after)
    code = f"{hold}\nimport sys; from anchorfl.tuning.cli import main; sys.exit(main({['sweep', *arguments]!r}))"
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with (folder / "said.txt").open("w") as said:
        return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=env, stdout=said, stderr=said)


def wait_for_ends(process: subprocess.Popen, folder: Path, ledger: str, count: int) -> None:
    """Until so many trials have ended of a sweep that runs in ``folder``, by the ledger at a place."""
    deadline = time.monotonic() + 200
    while not (object_store.exists(ledger) and object_store.read_bytes(ledger).count(b'"end"') >= count):
        assert process.poll() is None, (folder / "said.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def mlflow_runs(folder: str | Path) -> list[tuple]:
    """Name, whether it has a parent, status, and the rounds of every run in the MLflow database."""
    with closing(sqlite3.connect(f"{folder}/mlflow.db")) as db:
        rows = db.execute("select run_uuid, name, status from runs").fetchall()
        out = []
        for run_id, name, status in rows:
            parent = db.execute(
                "select count(*) from tags where run_uuid = ? and key = 'mlflow.parentRunId'", (run_id,)
            ).fetchone()[0]
            key = "trials/finished" if parent == 0 else "validation/f1_macro"
            steps = db.execute("select step from metrics where run_uuid = ? and key = ? order by step", (run_id, key))
            out.append((name, parent, status, [s for (s,) in steps]))
    return sorted(out)
