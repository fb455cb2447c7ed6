"""PostgreSQL as the store: a real server on loopback, with a password, where one is installed."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.run.lifecycle import open_tracker, run
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo
from anchorfl.pipeline.tracking import mlflow_upload
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.pipeline.tracking.mlflow_run_tree import MlflowTreeUploader
from anchorfl.pipeline.tracking.mlflow_store import open_store
from anchorfl.pipeline.tracking.mlflow_ui import serve
from anchorfl.pipeline.tracking.mlflow_writer import send

pytest.importorskip("psycopg", reason="the driver is not installed: pip install 'psycopg[binary]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:The ``noload`` loader strategy is deprecated:sqlalchemy.exc.SADeprecationWarning"
    ),
]
PASSWORD = "not-a-secret"


def binaries():
    """Folder of ``initdb`` and ``postgres``; None where they are not installed."""
    found = shutil.which("initdb")
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *([Path(found).resolve().parent] if found else [])]
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def person():
    """Whom PostgreSQL runs as: it refuses root."""
    if os.getuid():
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names.get("nobody")
    if entry is None:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def server():
    """Port of a server with one user, ``anchorfl``."""
    tools = binaries()
    if tools is None:
        pytest.skip("no PostgreSQL server is installed (initdb is neither on PATH nor below /usr/lib/postgresql)")
    who, port = person(), free_port()
    base = Path(tempfile.mkdtemp(prefix="anchorfl-pg-"))  # pytest's own folders are closed to other users
    quiet = {"cwd": base, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, "stdout": subprocess.DEVNULL} | who
    try:
        (base / "password").write_text(PASSWORD)
        for path in (base, base / "password"):
            os.chown(path, who.get("user", -1), who.get("group", -1))
        make = ["-D", base / "data", "-U", "anchorfl", "-A", "scram-sha-256", "--pwfile", base / "password"]
        subprocess.run([tools / "initdb", *make, "-E", "UTF8", "--locale=C", "--no-sync"], check=True, **quiet)
        settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={base}", "fsync=off"]
        command = [tools / "postgres", "-D", base / "data", *(part for text in settings for part in ("-c", text))]
        with (base / "log").open("w") as log:
            process = subprocess.Popen(command, stderr=log, **quiet)
        try:
            wait_for(port, process, base / "log")
            yield port
        finally:
            process.send_signal(signal.SIGINT)  # fast shutdown
            process.wait(120)
    finally:
        shutil.rmtree(base)


def wait_for(port, process, log):
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(address(port).replace("+psycopg", "")).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        else:
            return
    pytest.fail(log.read_text())


def address(port, database="postgres"):
    return f"postgresql+psycopg://anchorfl:{PASSWORD}@127.0.0.1:{port}/{database}"


@pytest.fixture
def database(server, request):
    """The address of a database of the test's own."""
    import psycopg

    name = request.node.name.replace("[", "_").replace("]", "")[:40]
    with psycopg.connect(address(server).replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
    return address(server, name)


def written(folder, parent=None, study="study"):
    """A run of three rounds that is over."""
    record_file = JsonLines(folder)
    params = {"method": "fedavg", "seed": 0}
    record_file.begin(RunInfo(name=folder.name, experiment=study, params=params, folder=folder, parent=parent))
    for number in range(3):
        record_file.round(RoundRecord(number, 1_700_000_000.0 + number, {"test/f1_macro": number / 10}))
    record_file.end("FINISHED")
    return folder


def in_store(uri, study="study"):
    """name -> (name of the parent, steps) of what stands in MLflow."""
    client = open_store(uri)
    found = client.search_runs([client.get_experiment_by_name(study).experiment_id])
    names = {run.info.run_id: run.info.run_name for run in found}
    assert len(set(names.values())) == len(found)
    return {
        run.info.run_name: (
            names.get(run.data.tags.get("mlflow.parentRunId")),
            [row.step for row in client.get_metric_history(run.info.run_id, "test/f1_macro")],
        )
        for run in found
    }


def test_a_run_and_its_model(experiment, tmp_path, database, monkeypatch):
    lines, folder = [], tmp_path / "run"
    run(experiment(tracking={"uri": database, "register": "winner"}), folder, lines.append)
    assert not [line for line in lines if "MLflow" in line]
    assert in_store(database, "toy-single") == {"run": (None, [0, 1, 2, 3])}
    assert send(folder, database) == 0
    client = open_store(database)
    version = client.get_model_version_by_alias("winner", "champion")
    assert version.source.startswith((tmp_path / "mlartifacts" / "toy-single" / "models").as_uri())
    stored = client.get_run(version.run_id)
    assert PASSWORD not in str(stored.data.params) + str(stored.data.tags)
    texts = [path for path in (tmp_path / "mlartifacts").rglob("*") if path.suffix in {".json", ".jsonl", ".yaml"}]
    assert "config.json" in {path.name for path in texts}
    assert not [path for path in texts if PASSWORD in path.read_text()]
    import mlflow

    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", database)
    answer = mlflow.pyfunc.load_model("models:/winner@champion").predict([{"text": "an engine"}])
    assert answer.to_numpy().sum() == pytest.approx(1)


def test_a_sweep(tmp_path, database):
    parent = written(tmp_path / "sweep")
    folders = [written(parent / f"{number}", parent) for number in range(5)]
    tree_uploader = MlflowTreeUploader(parent, database)
    for folder in folders:
        tree_uploader.add(folder)
    assert tree_uploader.upload_new() == 18
    assert tree_uploader.upload_final() == []
    assert send(parent, database) == 0
    assert in_store(database) == {"sweep": (None, [0, 1, 2])} | {f.name: ("sweep", [0, 1, 2]) for f in folders}


SEND = (
    "import sys; from pathlib import Path; from anchorfl.pipeline.tracking.mlflow_writer import send;"
    " send(Path(sys.argv[1]), sys.argv[2])"
)


def test_two_machines_that_meet_an_empty_database(tmp_path, database):
    """Each has a folder of its own for temporary files, so that MLflow's own lock does not see the other."""
    root, processes = Path(mlflow_upload.__file__).parents[3], []
    for name in ("one", "two", "three"):
        folder = written(tmp_path / name / "runs" / name)
        (tmp_path / name / "tmp").mkdir()
        own = os.environ | {"TMPDIR": str(tmp_path / name / "tmp")}
        command = [sys.executable, "-c", SEND, str(folder), database]
        processes.append(subprocess.Popen(command, cwd=root, env=own, stderr=subprocess.PIPE, text=True))
    told = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert in_store(database) == {name: (None, [0, 1, 2]) for name in ("one", "two", "three")}


def test_a_server_that_is_not_there_costs_one_line(tmp_path):
    lines, folder = [], tmp_path / "run"
    options = TrackingOptions(uri=f"postgresql+psycopg://anchorfl:{PASSWORD}@127.0.0.1:{free_port()}/runs")
    tracker = open_tracker(options, folder, 0, lines.append)
    params = {"method": "fedavg"}
    tracker.begin(RunInfo(name="run", experiment="study", params=params, folder=folder))
    tracker.round(RoundRecord(1, 1.0, {}))
    tracker.end("FINISHED")
    assert len(lines) == 1
    assert "refused" in lines[0]
    assert PASSWORD not in lines[0]
    assert "\n" not in lines[0]


SERVE = "import sys; from anchorfl.pipeline.tracking.mlflow_ui import serve; serve(sys.argv[1], int(sys.argv[2]))"


def test_the_pages(tmp_path, database):
    assert serve.__module__ == "anchorfl.pipeline.tracking.mlflow_ui"
    folder = written(tmp_path / "runs" / "run")
    send(folder, database)
    root, port = Path(mlflow_upload.__file__).parents[3], free_port()
    own = os.environ | {"PYTHONPATH": str(root)}
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", SERVE, database, str(port)]
        process = subprocess.Popen(command, cwd=tmp_path, env=own, stdout=log, stderr=log, start_new_session=True)
        try:
            for _ in range(240):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                        break
                except OSError:  # not up yet
                    time.sleep(0.5)
            assert PASSWORD not in Path(f"/proc/{process.pid}/cmdline").read_text()
            assert in_store(f"http://127.0.0.1:{port}") == {"run": (None, [0, 1, 2])}
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(120)
    assert PASSWORD not in (tmp_path / "log").read_text()
