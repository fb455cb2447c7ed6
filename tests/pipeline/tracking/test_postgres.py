"""PostgreSQL as the store: a real server on loopback, with a password, where one is installed."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.run.lifecycle import open_tracker, run
from anchorfl.pipeline.tracking import mlflow_upload
from anchorfl.pipeline.tracking.mlflow_store import open_store
from anchorfl.pipeline.tracking.mlflow_writer import send
from tests.pipeline.tracked import finished, in_store, info_of, record, sweep, tree_of, whole
from tests.processes import free_port, wait_for_health

pytest.importorskip("psycopg", reason="the driver is not installed: pip install 'psycopg[binary]'")
pytestmark = pytest.mark.slow
PASSWORD = "not-a-secret"


def binaries():
    """Return the folder of ``initdb`` and ``postgres``; None where they are not installed."""
    found = shutil.which("initdb")
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *([Path(found).resolve().parent] if found else [])]
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def person():
    """Return the user that PostgreSQL runs as: it refuses root."""
    if os.getuid():
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names.get("nobody")
    if entry is None:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@pytest.fixture(scope="module")
def server():
    """Yield the port of a server with one user, ``anchorfl``."""
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
    """Create a database for the test; return its address."""
    import psycopg

    name = request.node.name.replace("[", "_").replace("]", "")[:40]
    with psycopg.connect(address(server).replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
    return address(server, name)


def test_a_run_and_its_model(experiment, tmp_path, database, monkeypatch):
    lines, folder = [], tmp_path / "run"
    run(experiment(tracking={"uri": database, "register": "winner"}), folder, lines.append)
    assert not [line for line in lines if "MLflow" in line]
    assert in_store(database, "toy-single") == {"run": ("FINISHED", None, [0, 1, 2, 3])}
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
    parent, folders = sweep(tmp_path, "study", 5)
    tree_uploader = tree_of(parent, database, folders)
    assert tree_uploader.upload_new() == 18
    assert tree_uploader.upload_final() == []
    assert send(parent, database) == 0
    assert in_store(database, "study") == whole(parent) | whole(*folders, parent="sweep")


SEND = (
    "import sys; from pathlib import Path; from anchorfl.pipeline.tracking.mlflow_writer import send;"
    " send(Path(sys.argv[1]), sys.argv[2])"
)


def test_two_machines_that_meet_an_empty_database(tmp_path, database):
    """Each has a folder of its own for temporary files, so that MLflow's own lock does not see the other."""
    root, processes = Path(mlflow_upload.__file__).parents[3], []
    folders = [finished(tmp_path / name / "runs" / name, "study") for name in ("one", "two", "three")]
    for folder in folders:
        temporary = folder.parents[1] / "tmp"
        temporary.mkdir()
        own = os.environ | {"TMPDIR": str(temporary)}
        command = [sys.executable, "-c", SEND, str(folder), database]
        processes.append(subprocess.Popen(command, cwd=root, env=own, stderr=subprocess.PIPE, text=True))
    printed = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], printed
    assert in_store(database, "study") == whole(*folders)


def test_a_server_that_is_not_there_costs_one_line(tmp_path):
    lines, folder = [], tmp_path / "run"
    options = TrackingOptions(uri=f"postgresql+psycopg://anchorfl:{PASSWORD}@127.0.0.1:{free_port()}/runs")
    tracker = open_tracker(options, folder, 0, lines.append)
    tracker.begin(info_of(folder, "study"))
    tracker.round(record(1))
    tracker.end("FINISHED")
    assert len(lines) == 1
    assert "refused" in lines[0]
    assert PASSWORD not in lines[0]
    assert "\n" not in lines[0]


SERVE = "import sys; from anchorfl.pipeline.tracking.mlflow_ui import serve; serve(sys.argv[1], int(sys.argv[2]))"


def test_the_pages(tmp_path, database):
    folder = finished(tmp_path / "runs" / "run", "study")
    send(folder, database)
    root, port = Path(mlflow_upload.__file__).parents[3], free_port()
    own = os.environ | {"PYTHONPATH": str(root)}
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", SERVE, database, str(port)]
        process = subprocess.Popen(command, cwd=tmp_path, env=own, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for_health(port, process)
            assert PASSWORD not in Path(f"/proc/{process.pid}/cmdline").read_text()
            assert in_store(f"http://127.0.0.1:{port}", "study") == whole(folder)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(120)
    assert PASSWORD not in (tmp_path / "log").read_text()
