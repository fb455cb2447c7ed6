"""A sweep that is copied to object storage outlives the disk of its machine."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from anchorfl.tasks.files import object_store
from anchorfl.tuning.cli import main
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.sweep.plan import load_plan
from anchorfl.tuning.sweep.sweep import LEDGER, read_sweep
from tests.pipeline.backups import contents, files
from tests.ray.sweeps import SHORT, SPACE, scores, sweep_process, trials, wait_for_ends

pytestmark = pytest.mark.ray
REST = ["--trials", "9", "--finals", "1", "--concurrent", "1"]


def wait_until_still(copy: str) -> dict[str, bytes]:
    """Wait until nothing changes a copy any more, as processes of trials outlive a killed driver; return its files."""
    before = object_store.sizes(copy)
    while time.sleep(1) or (now := object_store.sizes(copy)) != before:
        before = now
    return contents(copy)


@pytest.mark.slow
def test_killed_and_resumed_on_another_machine(preset, tmp_path, s3):
    """SIGKILL when some trials have ended, and the folder is thrown away: what the copy holds goes on to the
    same trials, scores and choice as a sweep that was left alone; no trial that had ended is touched.
    """
    file = preset(cluster={"executor": "serial"}, tracking={"uri": "none"})
    whole = sweep_process(tmp_path, file, *SPACE, *SHORT, *REST, "--output", "whole/s")
    assert whole.wait(timeout=300) == 0, (tmp_path / "said.txt").read_text()
    backup, copy = f"{s3}/runs", f"{s3}/runs/s"
    words = [file, *SPACE, *SHORT, *REST, "--cluster.backup", backup, "--output", "cut/s"]
    process = sweep_process(tmp_path, *words, held_after=4)
    wait_for_ends(process, tmp_path, object_store.join(copy, LEDGER), 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    shutil.rmtree(tmp_path / "cut")
    before = wait_until_still(copy)
    ended = [line for line in before[LEDGER].splitlines() if json.loads(line)["event"] == "end"]
    assert 2 <= len(ended) < 9

    (tmp_path / "second").mkdir()
    again = sweep_process(tmp_path / "second", "--resume", copy)
    assert again.wait(timeout=300) == 0, (tmp_path / "second/said.txt").read_text()
    folder = tmp_path / "second/runs/s"
    assert scores(str(folder)) == scores("whole/s")
    views = [read_sweep(load_plan(p, {}), p) for p in (folder, Path("whole/s"))]
    assert views[0].best.number == views[1].best.number
    assert [f.scores for f in views[0].final_runs] == [f.scores for f in views[1].final_runs]
    assert Ledger(folder / LEDGER).events[: len(before[LEDGER].splitlines())] == [
        json.loads(line) for line in before[LEDGER].splitlines()
    ]
    after = contents(copy)
    assert files(folder).items() <= after.items()  # the copy also has the runs of the trials that ended before
    ended_ids = {f"{json.loads(line)['trial']:04d}" for line in ended}
    changed = {name for name, data in after.items() if before.get(name) != data}
    trained = {name.split("/")[1] for name in changed if name.startswith("trials/") and "/seed-" in name}
    assert trained
    assert not trained & ended_ids
    for trial in ended_ids:  # what MLflow is told of a trial follows the ledger: a kill between them is made good
        assert json.loads(after[f"trials/{trial}/run.json"])["status"] == "FINISHED"


@pytest.mark.slow
def test_a_copy_is_one_sweeps(preset, tmp_path, s3, capsys):
    file = preset(cluster={"executor": "serial"}, tracking={"uri": "none"})
    words = ["sweep", file, *SPACE, *SHORT, "--trials", "1", "--finals", "0", "--cluster.backup", f"{s3}/runs"]
    assert main([*words, "--output", "a/s"]) == 0
    before = contents(f"{s3}/runs/s")
    assert main([*words, "--output", "b/s"]) == 2
    assert f"the backup holds {s3}/runs/s already: go on with 'anchorfl sweep --resume" in capsys.readouterr().err
    assert not Path("b/s/sweep.json").exists()
    assert contents(f"{s3}/runs/s") == before
    assert len(trials("a/s")) == 1
    assert main(["sweep", "--resume", f"{s3}/runs/nothing"]) == 2
    assert "holds no copy to go on with (sweep.json is missing)" in capsys.readouterr().err
