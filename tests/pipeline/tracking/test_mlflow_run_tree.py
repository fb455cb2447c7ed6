"""A sweep in MLflow: one parent, its children, every round once, whatever was killed on the way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anchorfl.pipeline.storage.atomic_files import read_json
from anchorfl.pipeline.tracking import mlflow_upload
from anchorfl.pipeline.tracking.mlflow_entities import TRIAL_STATUS
from anchorfl.pipeline.tracking.mlflow_run_tree import MlflowTreeUploader, child_runs
from anchorfl.pipeline.tracking.mlflow_store import open_store
from anchorfl.pipeline.tracking.mlflow_writer import MlflowWriter, send
from anchorfl.tasks.errors import InputError
from tests.pipeline.tracked import ROUNDS, begin, in_store, rounds, sweep, tree_of, whole

CHILDREN = 20


class Killed(BaseException):
    """Ends the writer where it stands, as a kill would."""


class Line:
    """The way to the store: counts the requests, and is cut at the given one, before or after it arrives."""

    def __init__(self):
        self.requests, self.cut, self.arrives = [], 0, False

    def open(self, uri):
        self.client = open_store(uri)
        return self

    def __getattr__(self, name):
        def request(*arguments, **named):
            self.requests.append(name)
            cut = len(self.requests) == self.cut
            if cut and not self.arrives:
                raise Killed
            answer = getattr(self.client, name)(*arguments, **named)
            if cut:
                raise Killed
            return answer

        return request


@pytest.fixture
def line(monkeypatch):
    line = Line()
    monkeypatch.setattr(mlflow_upload, "open_store", line.open)
    return line


def expected(folders):
    return whole(Path("sweep")) | whole(*folders, parent="sweep")


def test_a_child_hangs_below_its_parent(tmp_path, store):
    parent, (child,) = sweep(tmp_path, tmp_path.name, 1)
    assert read_json(child / "run.json")["parent"] == os.path.join("..", "..")
    moved = tmp_path / "elsewhere"
    parent.rename(moved)  # to another machine, say
    child = moved / "trials" / child.name
    with pytest.raises(InputError, match=f"parent run is not there yet.*anchorfl sync {moved}"):
        send(child, store)
    assert in_store(store, tmp_path.name) == {}
    assert child_runs(moved) == [child]
    assert send(moved, store) == 2 * ROUNDS
    assert send(moved, store) == send(child, store) == 0
    assert in_store(store, tmp_path.name) == expected([child])


def test_a_parent_that_is_gone_is_named(tmp_path, store):
    begin(tmp_path / "sweep" / "child", tmp_path.name, tmp_path / "sweep").end("FINISHED")
    with pytest.raises(InputError, match=r"has no run\.json, but .* names it as the parent"):
        send(tmp_path / "sweep" / "child", store)


def test_twenty_children_whose_writer_is_killed_again_and_again(tmp_path, store, line):
    parent, folders = sweep(tmp_path, tmp_path.name, CHILDREN)
    for attempt, cut in enumerate([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 23, 40, 61, 90]):
        line.requests, line.cut, line.arrives = [], cut, bool(attempt % 2)
        with pytest.raises(Killed):
            tree_of(parent, store, folders).upload_new()
    line.cut = 0
    tree_uploader = tree_of(parent, store, [*folders, *folders])
    tree_uploader.upload_new()
    assert tree_uploader.upload_final() == []
    assert tree_uploader.last == ROUNDS - 1
    assert in_store(store, tmp_path.name) == expected(folders)


def test_children_without_news_cost_nothing(tmp_path, store, line):
    parent, folders = sweep(tmp_path, tmp_path.name, 2)
    late = parent / "trials" / "late"
    tree_uploader = tree_of(parent, store, [*folders, late])
    assert tree_uploader.upload_new() == 3 * ROUNDS  # the late one has no run.json yet
    tracker = begin(late, tmp_path.name, parent)
    rounds(tracker, [0])
    assert tree_uploader.upload_new() == 1
    line.requests = []
    for folder in (*folders, late):
        tree_uploader.add(folder)
    assert (tree_uploader.upload_new(), line.requests) == (0, [])
    rounds(tracker, [1])
    assert (tree_uploader.upload_new(), line.requests) == (1, ["log_batch"])
    rounds(tracker, [2])
    tracker.end("FINISHED")
    tree_uploader.upload_new()
    assert in_store(store, tmp_path.name)["late"] == ("FINISHED", "sweep", [0, 1, 2])
    line.requests = []
    assert (tree_uploader.upload_new(), line.requests) == (0, [])


def test_a_child_that_goes_on(tmp_path, store):
    """It is resumed behind the back of the one who uploads: its record was cut and grew again."""
    parent, (child,) = sweep(tmp_path, tmp_path.name, 1)
    tree_uploader = tree_of(parent, store, [child])
    tree_uploader.upload_new()
    tracker = begin(child, tmp_path.name, parent, resume_at=2)
    tree_uploader.add(child)
    tree_uploader.upload_new()
    assert in_store(store, tmp_path.name)[child.name] == ("RUNNING", "sweep", [0, 1, 2])
    rounds(tracker, [2, 3])
    again = begin(child, tmp_path.name, parent, resume_at=3)
    assert tree_uploader.upload_new() == 0
    rounds(again, [3, 4], much=1.0)
    again.end("FINISHED")
    assert tree_uploader.upload_new() == 2
    assert in_store(store, tmp_path.name)[child.name] == ("FINISHED", "sweep", [0, 1, 2, 3, 4])


def test_one_broken_child_does_not_hold_up_the_others(tmp_path, store):
    parent, folders = sweep(tmp_path, tmp_path.name, 3)
    tracker = folders[0] / "metrics.jsonl"
    text = tracker.read_text()
    tracker.write_text("damaged\n" + text)
    tree_uploader = tree_of(parent, store, folders)
    for _ in range(2):
        with pytest.raises(InputError, match="damaged"):
            tree_uploader.upload_new()
    assert {name: row[2] for name, row in in_store(store, tmp_path.name).items()} == {
        "sweep": [0, 1, 2], "0000": [], "0001": [0, 1, 2], "0002": [0, 1, 2],
    }  # fmt: skip
    tracker.write_text(text)
    tree_uploader.upload_new()
    tree_uploader.upload_final()
    assert in_store(store, tmp_path.name) == expected(folders)


def test_one_writer_serves_a_sweep(tmp_path, store):
    parent, lines = tmp_path / "sweep", []
    above = begin(parent, tmp_path.name)
    tree_uploader = MlflowTreeUploader(parent, store)
    writer = MlflowWriter(parent, store, lines.append, uploader=tree_uploader, timeout_s=60)
    writer.begin(None)
    folders = [parent / f"{number}" for number in range(3)]
    trackers = [begin(folder, tmp_path.name, parent) for folder in folders]
    for number in range(ROUNDS):
        for folder, tracker in zip(folders, trackers, strict=True):
            rounds(tracker, [number])
            tree_uploader.add(folder)
            writer.wake()
        rounds(above, [number])
    for tracker in trackers:
        tracker.end("FINISHED")
    above.end("FINISHED")
    writer.end("FINISHED")
    assert lines == []
    assert in_store(store, tmp_path.name) == expected(folders)


def test_how_a_trial_ended_is_a_tag(tmp_path, store):
    """Also where its other tags were there before: MLflow has no status for a trial that was stopped."""
    begin(tmp_path / "sweep", tmp_path.name).end("FINISHED")
    tracker = begin(tmp_path / "sweep" / "0000", tmp_path.name, tmp_path / "sweep")
    tree_uploader = MlflowTreeUploader(tmp_path / "sweep", store)
    tree_uploader.add(tmp_path / "sweep" / "0000")
    writer = MlflowWriter(tmp_path / "sweep", store, pytest.fail, uploader=tree_uploader, timeout_s=60)
    writer.begin(None)
    writer.wake()
    tracker.end("FINISHED", {TRIAL_STATUS: "stopped"})
    writer.end("FINISHED")
    notes = read_json(tmp_path / "sweep" / "0000" / "tracking.json")
    run = open_store(store).get_run(notes[store]["run_id"])
    assert (run.info.status, run.data.tags[TRIAL_STATUS]) == ("FINISHED", "stopped")


WRITE = """
import sys
from pathlib import Path
from anchorfl.pipeline.tracking.mlflow_run_tree import MlflowTreeUploader, child_runs
from anchorfl.pipeline.tracking.mlflow_writer import MlflowWriter
folder, uri = Path(sys.argv[1]), sys.argv[2]
tree = MlflowTreeUploader(folder, uri)
for part in child_runs(folder):
    tree.add(part)
writer = MlflowWriter(folder, uri, print, uploader=tree, timeout_s=100)
writer.begin(None)
writer.end("FINISHED")
"""


@pytest.mark.slow
def test_a_process_that_is_killed(tmp_path, store):
    parent, folders = sweep(tmp_path, tmp_path.name, CHILDREN)
    open_store(store)
    command = [sys.executable, "-c", WRITE, str(parent), store]
    root = Path(mlflow_upload.__file__).parents[3]
    for so_many in (1, 7, 15):
        process = subprocess.Popen(command, cwd=root)
        until = time.monotonic() + 120
        while sum((f / "tracking.json").exists() for f in folders) < so_many and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    assert len(in_store(store, tmp_path.name)) < 1 + CHILDREN
    subprocess.run(command, cwd=root, check=True, timeout=200)
    assert in_store(store, tmp_path.name) == expected(folders)
