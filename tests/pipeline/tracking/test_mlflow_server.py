"""A real MLflow server: runs, a sweep, a model and the registry over http."""

import os
import subprocess
import sys

import pytest

from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.run.lifecycle import open_tracker, run
from anchorfl.pipeline.tracking.mlflow_store import open_store
from anchorfl.pipeline.tracking.mlflow_writer import send
from tests.pipeline.tracked import in_store, info_of, record, sweep, tree_of, whole
from tests.processes import free_port, wait_for_health

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield the address of a server with a database and an artifact folder of its own."""
    base, port = tmp_path_factory.mktemp("server"), free_port()
    open_store(f"sqlite:///{base / 'server.db'}")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{base / 'server.db'}"]
    command += ["--artifacts-destination", str(base / "artifacts"), "--port", str(port), "--workers", "1"]
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    with (base / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=base, stdout=log, stderr=log, env=quiet, start_new_session=True)
    try:
        wait_for_health(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(120)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # these tests are about rows, not about a busy machine


def test_a_run_that_is_resumed(tmp_path, server):
    folder, lines = tmp_path / "run", []
    for first, last, resume_at in ((0, 3, 0), (2, 5, 2)):
        tracker = open_tracker(TrackingOptions(uri=server), folder, resume_at, lines.append)
        tracker.begin(info_of(folder, "resumed"))
        for number in range(first, last):
            tracker.round(record(number))
        if resume_at:
            tracker.end("FINISHED")
        else:
            tracker.parts[1].close(30)  # as a killed process leaves it
    assert lines == []
    assert in_store(server, "resumed") == {"run": ("FINISHED", None, [0, 1, 2, 3, 4])}
    assert send(folder, server) == 0


def test_a_sweep(tmp_path, server):
    parent, folders = sweep(tmp_path, "sweep", 5, **{"system/gpu_0_memory": 7.0})
    tree_uploader = tree_of(parent, server, folders)
    assert tree_uploader.upload_new() == 18
    assert tree_uploader.upload_final() == []
    assert send(parent, server) == 0
    assert in_store(server, "sweep") == whole(parent) | whole(*folders, parent="sweep")
    client = open_store(server)
    found = client.search_runs([client.get_experiment_by_name("sweep").experiment_id], "attributes.run_name = '0003'")
    history = client.get_metric_history(found[0].info.run_id, "system/gpu_0_memory")  # "System metrics" in the pages
    assert [(row.step, row.value) for row in history] == [(0, 7.0), (1, 7.0), (2, 7.0)]


def test_a_model_and_its_version(experiment, tmp_path, server, monkeypatch):
    lines, folder = [], tmp_path / "run"
    run(experiment(tracking={"uri": server, "experiment": "model", "register": "served"}), folder, lines.append)
    assert not [line for line in lines if "MLflow" in line]
    (folder / "tracking.json").unlink()
    assert send(folder, server) == 0
    client = open_store(server)
    version = client.get_model_version_by_alias("served", "champion")
    assert [found.version for found in client.search_model_versions("name = 'served'")] == [version.version]
    assert len(client.search_logged_models([client.get_experiment_by_name("model").experiment_id])) == 1
    import mlflow

    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", server)
    answer = mlflow.pyfunc.load_model("models:/served@champion").predict([{"text": "an engine"}])
    assert answer.to_numpy().sum() == pytest.approx(1)
