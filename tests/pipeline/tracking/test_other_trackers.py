"""Trackers beside the run folder and MLflow: they get every round, and none of them can end a run."""

from __future__ import annotations

import json
import struct
import sys
import time
from dataclasses import replace
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


def test_tensorboard_has_no_round_twice_after_a_kill_before_the_first_checkpoint(tmp_path):
    e = tracked("tensorboard")
    e = replace(e, cluster=replace(e.cluster, checkpoint_every=10))
    with stopped_before(2):
        run(e, tmp_path, quiet)
    resume(tmp_path, quiet)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("test/f1_macro")] == [0, 1, 2, 3]


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


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """Return the package, kept off the user's settings and caches; its service ends with the test."""
    package = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'anchorfl[wandb]'")
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME", "WANDB_ENTITY", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "wandb of this user"))
    yield package
    package.teardown()


def wandb_records(file):
    """Yield what a ``.wandb`` file holds: LevelDB's log of protocol buffers, in blocks of 32 KiB, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if at + 7 + length > len(data):
            return  # it is being written
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def written(file):
    """Return the records of a file, to the last: its process writes on for a moment after ``finish``."""
    until = time.monotonic() + 60
    while True:
        records = list(wandb_records(file))
        if any(r.WhichOneof("record_type") == "exit" for r in records) or time.monotonic() > until:
            return records
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_they_have_what_is_measured_after_the_last_round(tmp_path, name, request):
    if name == "wandb":
        request.getfixturevalue("wandb")
    e = tracked(name, evaluation={"test": "last", "model_selection": "best_validation"}, task={"validation": 0.2})
    run(e, tmp_path / "run", quiet)
    (final,) = read_records(tmp_path / "run/final_scores")[0]
    value = final.metrics["test/f1_macro"]
    if name == "tensorboard":
        events = EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
        assert [(s.step, s.value) for s in events.Scalars("test/f1_macro")] == [(final.round, pytest.approx(value))]
        return
    records = [r for file in (tmp_path / "run/wandb").glob("offline-run-*/*.wandb") for r in written(file)]
    items = [i for r in records if r.WhichOneof("record_type") == "summary" for i in r.summary.update]
    assert value in [json.loads(i.value_json) for i in items if (i.key or i.nested_key[0]) == "test/f1_macro"]


def test_wandb_goes_on_in_the_same_run_and_has_the_numbers_of_the_records(tmp_path, wandb, monkeypatch):
    """Offline, as long as nobody asks for more; the project is the experiment's, or that of the environment."""
    folder = tmp_path / "run"
    with stopped_before(2):
        run(tracked("wandb"), folder, quiet)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    resume(folder, quiet)
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    got = [written(file) for file in files]
    runs = [next(r.run for r in records if r.WhichOneof("record_type") == "run") for records in got]
    about = json.loads((folder / "run.json").read_text())
    assert [(r.run_id, r.display_name) for r in runs] == [(about["id"], "run")] * 2
    assert [r.project for r in runs] == ["toy-single", "mine"]
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["method"] == "fedavg"
    assert config["federation.rounds"] == 3
    rows = [r.history for records in got for r in records if r.WhichOneof("record_type") == "history"]
    logged = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in rows]
    records = read_records(folder)[0]
    assert [row["_step"] for row in logged] == [r.round for r in records]
    for row, record in zip(logged, records, strict=True):
        scores = {f"{name}/{c}": v for name, values in record.per_class.items() for c, v in values.items()}
        assert {k: v for k, v in row.items() if not k.startswith("_")} == record.metrics | scores
    exits = [r.exit.exit_code for records in got for r in records if r.WhichOneof("record_type") == "exit"]
    assert exits == [1, 0]


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboard"), ("wandb", "weights_and_biases")])
def test_one_that_is_not_installed_is_one_line(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, f"anchorfl.pipeline.tracking.{module}", None)
    with pytest.raises(InputError, match=rf"pip install 'anchorfl\[{name}\]'"):
        run(tracked(name), tmp_path / "run", quiet)


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
