"""The copy of a run folder: whole at any instant, and a run that goes on from it ends with the same bits."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.restore import restore_if_remote
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.tasks.files import object_store
from anchorfl.testing import stopped_before
from tests.pipeline.backups import Outage, backed_up, contents, files, whole
from tests.runs import quiet, recorded

ROOT = Path(__file__).resolve().parents[3]


def test_the_copy_is_the_folder_and_changes_nothing(experiment, finished_run, tmp_path, backup):
    e = experiment("fedalign")
    got = run(backed_up(e, backup), tmp_path / "run", quiet)
    assert got.checksum == finished_run(e).checksum
    assert contents(object_store.join(backup, "run")) == files(tmp_path / "run")
    assert whole(contents(object_store.join(backup, "run"))) == 3


def test_a_record_that_cannot_be_closed_leaves_the_copy_whole(experiment, tmp_path, monkeypatch, backup):
    """What was written before has still to get there."""

    def full(self, status):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JsonLines, "end", full)
    with pytest.raises(OSError, match="No space left"):
        run(backed_up(experiment("fedavg"), backup), tmp_path / "run", quiet)
    copy = contents(object_store.join(backup, "run"))
    assert copy["result.json"] == (tmp_path / "run" / "result.json").read_bytes()


def test_an_end_that_a_callback_asked_for_is_not_further_than_later_rounds(experiment, finished_run, tmp_path, backup):
    """The copy of it was taken for finished, and a run that had gone on was asked to go back to it."""
    e = experiment("fedavg", federation={"rounds": 6}, evaluation={"test": "last"})
    run(backed_up(e, backup), tmp_path / "run", quiet, callbacks=[lambda report: report.round == 2])
    with stopped_before(5):
        run(e, tmp_path / "run", quiet)  # the store does not answer
    got = resume(tmp_path / "run", quiet, {"cluster.backup": backup})
    assert got.checksum == finished_run(e).checksum
    copy = object_store.join(backup, "run")
    assert contents(copy) == files(tmp_path / "run")
    assert json.loads(contents(copy)["result.json"])["rounds"] == 6


def test_the_result_of_an_end_that_a_callback_asked_for_does_not_outlive_the_copy(
    experiment, finished_run, tmp_path, monkeypatch, backup
):
    """A run went on elsewhere; back at its first machine it was finished at round 2, and its copy, too."""
    e = experiment("fedavg", federation={"rounds": 6}, evaluation={"test": "last"})
    copy = object_store.join(backup, "run")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    run(backed_up(e, backup), Path("runs/run"), quiet, callbacks=[lambda report: report.round == 2])
    monkeypatch.chdir(tmp_path / "b")
    with stopped_before(5):
        run(backed_up(e, backup), restore_if_remote(copy, quiet), quiet)
    monkeypatch.chdir(tmp_path / "a")
    folder = restore_if_remote(copy, quiet)
    assert not (folder / "result.json").exists()
    assert not (folder / "final_scores" / "metrics.jsonl").exists()
    assert resume(folder, quiet).checksum == finished_run(e).checksum


@pytest.mark.parametrize("method", ["fedavg", "fedalign"])
def test_a_fresh_machine_goes_on(experiment, finished_run, tmp_path, monkeypatch, backup, method):
    """Interrupted twice, each time taken up elsewhere: bits, rows and identity of a run that was not."""
    e = experiment(method, federation={"rounds": 4}, evaluation={"model_selection": "best_validation"})
    expected = finished_run(e)
    with stopped_before(2):
        run(backed_up(e, backup), tmp_path / "run", quiet)
    copy = object_store.join(backup, "run")
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "second")
    with stopped_before(4):
        resume(restore_if_remote(copy, quiet), quiet)
    assert len(recorded(Path("runs/run"))) == 4
    (tmp_path / "third").mkdir()
    monkeypatch.chdir(tmp_path / "third")
    lines = []
    got = resume(restore_if_remote(copy, lines.append), quiet)
    assert lines == [f"{copy} (at 3) fetched into runs/run"]
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    assert recorded(Path("runs/run")) == recorded(expected.folder)
    assert contents(copy) == files(Path("runs/run"))
    ids = {json.loads((f / "run.json").read_text())["id"] for f in (tmp_path / "run", Path("runs/run"))}
    assert len(ids) == 1


def test_whole_after_every_single_step(experiment, tmp_path, monkeypatch):
    """Every write and deletion of a run, of its end and of its resumption elsewhere: a kill after any of them leaves a
    copy that can be gone on from, never behind what it was.
    """
    copy, states, lock = {}, [], threading.Lock()

    def write(place, data):
        with lock:
            copy[place.removeprefix("file:///backup/run/")] = data
            states.append(dict(copy))

    def delete(place):
        with lock:
            copy.pop(place.removeprefix("file:///backup/run/"), None)
            states.append(dict(copy))

    def read(place):
        if not place.startswith("file:///backup/"):
            return real(place)
        name = place.removeprefix("file:///backup/run/")
        if name not in copy:
            raise FileNotFoundError(place)
        return copy[name]

    real, here = object_store.read_bytes, object_store.exists
    monkeypatch.setattr(object_store, "write_bytes", write)
    monkeypatch.setattr(object_store, "delete", delete)
    monkeypatch.setattr(object_store, "read_bytes", read)
    monkeypatch.setattr(object_store, "sizes", lambda place: {name: len(data) for name, data in copy.items()})
    monkeypatch.setattr(
        object_store, "exists", lambda p: p.removeprefix("file:///backup/run/") in copy if "/backup/" in p else here(p)
    )
    e = backed_up(experiment("fedalign", federation={"rounds": 4}), "file:///backup")
    with stopped_before(3):
        run(e, tmp_path / "run", quiet)
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "second")
    resume(restore_if_remote("file:///backup/run", quiet), quiet)
    rounds = [whole({name: data for name, data in state.items() if not name.startswith(".")}) for state in states]
    assert rounds == sorted(rounds)
    assert rounds[-1] == 4
    assert "result.json" in states[-1]
    assert {name for name in states[-1] if name.startswith("checkpoint/state")} == {
        "checkpoint/state-000004.safetensors"
    }


def test_killed_with_sigkill(experiment, tmp_path, monkeypatch, s3):
    """The real thing, at two instants: a process of its own, whose every request takes a while, so that most kills
    come in the middle of a copy. The folder is thrown away each time.
    """
    e = dataclasses.replace(experiment("fedalign", federation={"rounds": 12}), tracking=experiment().tracking)
    expected = run(e, tmp_path / "expected", quiet)
    copy = f"{s3}/runs/killed"
    code = (
        "import sys, time\nfrom anchorfl.tasks.files import object_store as places\nreal = places.write_bytes\n"
        "def slow(place, data):\n    time.sleep(0.01)\n    real(place, data)\n    time.sleep(0.01)\n"
        "places.write_bytes = slow\nfrom anchorfl.pipeline.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "toy.toml").write_text(to_toml(backed_up(e, f"{s3}/runs")))
    words = ["run", str(tmp_path / "toy.toml"), "--output", "runs/killed"]
    for round_ in (2, 7):
        machine = tmp_path / f"until-{round_}"
        machine.mkdir()
        log = (machine / "log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words], cwd=machine, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=log, stderr=log,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, (machine / "log").read_text()
            assert time.monotonic() < deadline
            try:
                index = json.loads(object_store.read_bytes(object_store.join(copy, "checkpoint/checkpoint.json")))
            except FileNotFoundError:
                index = {"round": -1}
            if index["round"] >= round_:
                break
            time.sleep(0.003 * round_)
        process.send_signal(signal.SIGKILL)
        process.wait()
        log.close()
        assert whole(contents(copy)) >= round_
        words = ["resume", copy]
    (tmp_path / "last").mkdir()
    monkeypatch.chdir(tmp_path / "last")
    assert main(words) == 0
    folder = Path("runs/killed")
    assert json.loads((folder / "result.json").read_text())["checksum"] == expected.checksum
    assert recorded(folder) == recorded(tmp_path / "expected")
    assert whole(contents(copy)) == 12


def test_a_run_whose_backup_is_lost_is_a_run(experiment, finished_run, tmp_path, monkeypatch):
    """It ends well, says that the copy is not up to date, and ``resume`` brings it up to date."""
    monkeypatch.setattr("anchorfl.pipeline.storage.backup.END_ATTEMPTS", 1)
    e, lines = experiment("fedalign"), []
    expected = finished_run(e)
    store = Outage(monkeypatch, down=False)

    def log(line):
        lines.append(line)
        store.down = store.down or "prepared" in line

    folder, e = tmp_path / "run", backed_up(e, f"file://{tmp_path}/backup")
    assert run(e, folder, log).checksum == expected.checksum
    assert lines[-1].startswith(f"error: the backup file://{tmp_path}/backup/run is not up to date after ")
    assert lines[-1].endswith(f"{folder} is whole: resume it when the store answers")
    assert resume(folder, lines.append).checksum == expected.checksum  # still down: said, no more
    assert lines[-1].startswith("error: ")
    store.down = False
    assert resume(folder, quiet).checksum == expected.checksum
    assert contents(f"file://{tmp_path}/backup/run") == files(folder)
    before = store.asked
    resume(folder, quiet)
    assert store.asked == before + 1  # the probe
