"""The run record is the truth, MLflow gets every row once, and no tracking server can slow or stop a run."""

import socket
import time
from pathlib import Path

import pytest

from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.run.lifecycle import open_tracker
from anchorfl.pipeline.storage.atomic_files import read_json
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo, read_records
from anchorfl.pipeline.tracking import mlflow_upload
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.pipeline.tracking.mlflow_entities import NONFINITE, ROUND_COMPLETE, at_step, metrics
from anchorfl.pipeline.tracking.mlflow_writer import send
from anchorfl.tasks.errors import InputError

DEAD = "http://127.0.0.1:9"


@pytest.fixture
def lines():
    return []


def info_of(folder, **changes):
    what = {"name": folder.name, "experiment": folder.parent.name, "params": {"method": "fedavg", "seed": 0}}
    return RunInfo(**(what | {"folder": folder} | changes))


def record(number, **extra):
    metrics = {"test/f1_macro": number / 10, "train/loss": 1.0 / (number + 1)} | extra
    return RoundRecord(number, 1_700_000_000.0 + number, metrics, {"test/f1": {"zero": 0.5}})


def run_rounds(folder, uri, rounds, log, *, resume_at=0, status="FINISHED", **changes):
    """Runs the rounds; ``status`` None: as a killed process leaves it, once its thread has sent all."""
    tracker = open_tracker(TrackingOptions(uri=uri), folder, resume_at, log)
    tracker.begin(info_of(folder, **changes))
    for number in rounds:
        tracker.round(record(number))
    if status:
        tracker.end(status)
    else:
        tracker.parts[1].close(30)
    return tracker


def mlflow_run(folder, uri):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.search_runs([client.get_experiment_by_name(folder.parent.name).experiment_id])
    mine = [run for run in found if run.info.run_name == folder.name]
    assert len(mine) == 1
    return client, mine[0]


def steps(folder, uri, key="test/f1_macro"):
    client, run = mlflow_run(folder, uri)
    return [(row.step, row.value) for row in client.get_metric_history(run.info.run_id, key)]


def rows(*rounds):
    return [(number, number / 10) for number in rounds]


def test_a_run_stands_in_mlflow_whole(tmp_path, store, lines):
    folder = tmp_path / "run"
    many = {f"p{number}": number for number in range(230)} | {"long": "x" * 9000}
    tracker = open_tracker(TrackingOptions(uri=store), folder, 0, lines.append)
    tracker.begin(
        info_of(folder, params=many, tags={"git": "abc"}, datasets=[("digits", "d" * 64, "train", "sklearn")])
    )
    tracker.round(record(0, nan=float("nan"), inf=float("inf")))
    tracker.round(record(1, **{f"m{number}": float(number) for number in range(2100)}))
    (folder / "plan").mkdir()
    (folder / "plan" / "partition.json").write_text("{}")
    tracker.artifact(folder / "plan" / "partition.json")
    tracker.end("FINISHED")
    client, run = mlflow_run(folder, store)
    assert lines == []
    assert run.info.status == "FINISHED"
    assert len(run.data.params) == 231
    assert len(run.data.params["long"]) == 6000
    assert run.data.tags["git"] == "abc"
    assert [row.dataset.name for row in run.inputs.dataset_inputs] == ["digits"]
    assert steps(folder, store, ROUND_COMPLETE) == [(0, 1.0), (1, 1.0)]
    assert steps(folder, store, NONFINITE) == [(0, 2.0)]
    assert not {"nan", "inf"} & set(run.data.metrics)
    assert run.data.metrics["m2099"] == 2099
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"metrics.jsonl", "plan"}
    assert client.list_artifacts(run.info.run_id, "plan")[0].path == "plan/partition.json"
    assert not (Path.cwd() / "mlruns").exists()


def test_resume_leaves_the_rows_of_an_unbroken_run(tmp_path, store, lines):
    folder = tmp_path / "run"
    run_rounds(folder, store, range(5), lines.append, status=None)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "time": 1.0, "met')  # killed here; its last checkpoint was before round 3
    changed = {"method": "fedavg", "seed": 0, "rounds": 7}
    run_rounds(folder, store, range(3, 7), lines.append, resume_at=3, params=changed)
    assert steps(folder, store) == rows(*range(7))
    assert [kept.round for kept in read_records(folder)[0]] == list(range(7))
    assert mlflow_run(folder, store)[1].data.params["rounds"] == "7"
    assert send(folder, store) == 0
    assert steps(folder, store) == rows(*range(7))
    (folder / "tracking.json").unlink()  # killed between creating the run and writing its id
    assert send(folder, store) == 0
    assert lines == []


def test_a_changed_param_of_a_resumed_run_becomes_a_tag(tmp_path, store, lines):
    folder = tmp_path / "run"
    run_rounds(folder, store, [0], lines.append)
    run_rounds(folder, store, [1], lines.append, resume_at=1, params={"method": "fedavg", "seed": 1})
    run = mlflow_run(folder, store)[1]
    assert (run.data.params["seed"], run.data.tags["resumed/seed"], lines) == ("0", "1", [])


def test_a_dead_server_costs_one_line_and_no_rows(tmp_path, store, lines):
    folder, start = tmp_path / "run", time.monotonic()
    tracker = open_tracker(TrackingOptions(uri=DEAD), folder, 0, lines.append)
    tracker.parts[1].pause_s = 0.0
    tracker.begin(info_of(folder))
    slowest = 0.0
    for number in range(4):
        before = time.monotonic()
        tracker.round(record(number))
        slowest = max(slowest, time.monotonic() - before)
        time.sleep(0.05)
    tracker.end("FINISHED")
    assert time.monotonic() - start < 15
    assert slowest < 1
    assert len(lines) == 1
    assert "Connection refused" in lines[0]
    assert f"anchorfl sync {folder}" in lines[0]
    assert "\n" not in lines[0]
    assert tracker.parts[1].failures >= 2
    with pytest.raises(InputError, match="Connection refused"):
        send(folder, DEAD)
    assert (send(folder, store), send(folder, store)) == (4, 0)
    assert steps(folder, store) == rows(*range(4))
    assert mlflow_run(folder, store)[1].info.status == "FINISHED"


def test_a_server_that_recovers_gets_what_it_missed(tmp_path, store, lines, monkeypatch):
    folder, broken = tmp_path / "run", []
    log_batch = mlflow_upload.MlflowUploader.upload_new

    def upload_new(self):
        if len(broken) < 2:
            broken.append(1)
            raise ConnectionError("[Errno 111] refused")
        return log_batch(self)

    monkeypatch.setattr(mlflow_upload.MlflowUploader, "upload_new", upload_new)
    tracker = open_tracker(TrackingOptions(uri=store), folder, 0, lines.append)
    tracker.parts[1].pause_s = 0.0
    tracker.begin(info_of(folder))
    for number in range(4):
        tracker.round(record(number))
        time.sleep(0.05)
    tracker.end("FINISHED")
    assert steps(folder, store) == rows(*range(4))
    assert [line.split(" (")[0].split()[3:] for line in lines] == [
        ["cannot", "be", "reached"],
        ["has", "everything", "now"],
    ]


def test_a_hanging_server_does_not_hold_the_end(tmp_path, lines, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:  # accepts and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tracker = open_tracker(
            TrackingOptions(uri=f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}"),
            tmp_path / "run",
            0,
            lines.append,
        )
        tracker.parts[1].timeout_s = 0.5
        start = time.monotonic()
        tracker.begin(info_of(tmp_path / "run"))
        tracker.round(record(0))
        tracker.end("KILLED")
        assert time.monotonic() - start < 3
        tracker.parts[1].close(30)
    assert len(lines) == 1
    assert "secret" not in lines[0]


def test_a_round_that_arrived_in_part_is_completed(tmp_path, store):
    folder, wide = tmp_path / "run", {f"m{number}": 1.0 for number in range(1500)}
    for attempt in (0, 1):
        record_file = JsonLines(folder)  # killed in round 0, which is then computed again, at another time
        record_file.begin(info_of(folder))
        record_file.round(RoundRecord(0, 1_700_000_000.0 + attempt, wide))
        record_file.end("FINISHED")
        sender = mlflow_upload.MlflowUploader(folder, store)
        sender._connect(read_json(folder / "run.json"))
        batch = next(sender._batches(read_records(folder)[0]))
        if attempt == 0:
            sender._client.log_batch(sender.run_id, metrics=batch)
    assert (send(folder, store), send(folder, store)) == (1, 0)
    assert [len(steps(folder, store, key)) for key in ("m0", "m999", "m1000", "m1499", ROUND_COMPLETE)] == [1] * 5


def test_a_run_that_was_deleted_in_mlflow_is_sent_whole_again(tmp_path, store):
    """With its artifacts, which had been sent to the run that is gone."""
    folder = tmp_path / "run"
    record_file = JsonLines(folder)
    record_file.begin(info_of(folder))
    record_file.round(record(0))
    (folder / "notes.txt").write_text("x")
    record_file.artifact(folder / "notes.txt")
    record_file.end("FINISHED")
    client, sent = mlflow_upload.open_store(store), []
    for _ in range(2):
        assert send(folder, store) == 1
        run_id = read_json(folder / "tracking.json")[store]["run_id"]
        sent.append(run_id)
        assert {file.path for file in client.list_artifacts(run_id)} == {"notes.txt", "metrics.jsonl"}
        client.delete_run(run_id)
    assert sent[0] != sent[1]


def test_two_runs_of_one_process(tmp_path, store, lines):
    folders = [tmp_path / "one", tmp_path / "two"]
    trackers = [open_tracker(TrackingOptions(uri=store), folder, 0, lines.append) for folder in folders]
    for tracker, folder in zip(trackers, folders, strict=True):
        tracker.begin(info_of(folder))
    for number in range(3):
        for tracker in trackers:
            tracker.round(record(number))
    for tracker in trackers:
        tracker.end("FINISHED")
    assert [steps(folder, store) for folder in folders] == [rows(0, 1, 2)] * 2
    assert lines == []


def test_a_score_is_the_first_metric_that_mlflow_lists(tmp_path):
    """Its lists and its compare page open on the first name in the alphabet, which once was a fault."""
    extra = {"failures/crash": 0.0, "aggregation/norm": 1.0, "validation/f1_macro": 0.9}
    first = min(metrics(record(3, **extra)), key=lambda metric: metric.key)
    assert first.value == 0.3  # the test split's, where it was scored
    assert (at_step(first, 9).key, at_step(first, 9).value, at_step(first, 9).step) == (first.key, 0.3, 9)
