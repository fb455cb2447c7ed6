"""Trackers beside the run folder and MLflow: they get every round, and none of them can end a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment, stopped_before
from tests.runs import SMALL, quiet

HERE = __name__
HEARD: list[tuple[str, object]] = []


class Recorder:
    """Keeps what it is given."""

    def __init__(self, folder: Path, resume_at: int) -> None:
        HEARD.append(("made", resume_at))

    def begin(self, info):
        HEARD.append(("begin", info.params["method"]))

    def round(self, record):
        HEARD.append(("round", record.round))

    def artifact(self, path):
        HEARD.append(("artifact", path.name))

    def end(self, status):
        HEARD.append(("end", status))


def failing(verb):
    class Failing(Recorder):
        def __getattribute__(self, name):
            if name == verb:
                raise OSError("no server\nat all")
            return super().__getattribute__(name)

    return Failing


class FailsAtOnce:
    def __init__(self, folder, resume_at):
        raise OSError("no server")


FailsAtBegin, FailsAtRound, FailsAtArtifact, FailsAtEnd = map(failing, ("begin", "round", "artifact", "end"))
NUMBER = 3


@pytest.fixture(autouse=True)
def _heard():
    HEARD.clear()


def tracked(trackers, **sections):
    return small_experiment("fedavg", tracking={"trackers": trackers}, **sections)


def test_one_of_a_plugin_gets_every_round(tmp_path):
    with stopped_before(2):
        run(tracked(f"{HERE}:Recorder"), tmp_path, quiet)
    assert HEARD == [("made", 0), ("begin", "fedavg"), ("round", 0), ("round", 1), ("end", "KILLED")]
    HEARD.clear()
    resume(tmp_path, quiet)
    assert HEARD[:4] == [("made", 2), ("begin", "fedavg"), ("round", 2), ("round", 3)]
    assert [what for what, _ in HEARD[4:]] == ["artifact"] * (len(HEARD) - 5) + ["end"]
    assert ("artifact", "model") in HEARD
    assert HEARD[-1] == ("end", "FINISHED")


@pytest.mark.parametrize("name", ["FailsAtOnce", "FailsAtBegin", "FailsAtRound", "FailsAtArtifact", "FailsAtEnd"])
def test_one_that_fails_is_named_once_and_costs_nothing(tmp_path, finished_run, name):
    lines = []
    got = run(tracked(f"{HERE}:{name},{HERE}:Recorder"), tmp_path / "run", lines.append)
    assert got.checksum == finished_run(small_experiment("fedavg")).checksum
    said = [line for line in lines if line.startswith("tracker ")]
    assert said == [f"tracker {HERE}:{name} failed and gets nothing more (OSError: no server); the run goes on"]
    assert HEARD[-1] == ("end", "FINISHED")


def test_tensorboard_has_the_numbers_of_the_records(tmp_path):
    """Also after an interruption, each round once."""
    with stopped_before(2):
        run(tracked("tensorboard"), tmp_path, quiet)
    resume(tmp_path, quiet)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    records = read_records(tmp_path)[0]
    expected = {name for r in records for name in r.metrics}
    classes = {f"{name}/{c}" for r in records for name, values in r.per_class.items() for c in values}
    assert set(events.Tags()["scalars"]) == expected | classes
    for name in ("test/f1_macro", "train/loss", "communication/upload_bytes"):
        had = [(r.round, r.metrics[name]) for r in records if name in r.metrics]
        assert [(event.step, event.value) for event in events.Scalars(name)] == [(n, pytest.approx(v)) for n, v in had]
    assert events.Tags()["tensors"] == ["options/text_summary"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tensorbord", "no tracker 'tensorbord' in [tracking] trackers (did you mean 'tensorboard'?)"),
        (f"{HERE}:NUMBER", "a int, and no class that makes a tracker"),
        ("nowhere:Tracker", "Python finds no module 'nowhere'"),
    ],
)
def test_a_name_that_is_none_is_one_line(tmp_path, name, line):
    with pytest.raises(InputError) as caught:
        run(tracked(name), tmp_path / "run", quiet)
    assert line in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_tensorboard_that_is_not_installed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "anchorfl.pipeline.tracking.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'anchorfl\[tensorboard\]'"):
        run(tracked("tensorboard"), tmp_path / "run", quiet)


def test_a_folder_of_others_opens_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", "digits/fedavg", *SMALL, "--tracking.trackers", f"{HERE}:Recorder", "--output", "out"]
    assert main(words) == 0
    (tmp_path / "out" / "result.json").unlink()
    HEARD.clear()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert main(["resume", "out"]) == 2
    assert f"names tracking.trackers = '{HERE}:Recorder'" in capsys.readouterr().err
    assert not HEARD
    assert main(["resume", "out", "--tracking.trackers", ""]) == 0
    assert not HEARD
