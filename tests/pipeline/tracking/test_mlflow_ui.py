"""The pages are served on loopback unless the user asks for more, and only where there is something to show."""

import http.client
import importlib.util
import os
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from anchorfl.pipeline.tracking import mlflow_ui
from anchorfl.pipeline.tracking.mlflow_ui import serve, server_command
from anchorfl.tasks.errors import InputError
from tests.processes import MAIN, free_port, wait_for_health


@pytest.fixture
def database(tmp_path):
    (tmp_path / "mlflow.db").touch()
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def port():
    return free_port()


def test_serve_becomes_mlflow_on_loopback(database, port, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(os, "execv", lambda *call: calls.append(call))
    serve(database, port)
    command = calls[0][1]
    assert calls[0][0] == command[0] == sys.executable
    assert command[1:4] == ["-m", "mlflow", "server"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options == {
        "--backend-store-uri": database,
        "--artifacts-destination": database.removeprefix("sqlite:///").replace("mlflow.db", "mlartifacts"),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--workers": "1",
        "--allowed-hosts": mlflow_ui.LOOPBACK_NAMES,
    }
    assert f"http://127.0.0.1:{port}/#/experiments" in capsys.readouterr().out
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def listening(process):
    """Return the addresses at which a process and its children wait for connections."""
    found = set()
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # MLflow starts short commands of its own, and these may end in between
            found |= {c.laddr.ip for c in one.net_connections() if c.status == psutil.CONN_LISTEN}
    return found


def answer(port, host):
    """Return the status of a request for all experiments by a browser that was sent to ``host``."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("GET", "/api/2.0/mlflow/experiments/search?max_results=5", headers={"Host": host})
        return connection.getresponse().status


def test_what_the_user_says_of_names_holds(database, port, monkeypatch):
    assert "--allowed-hosts" not in server_command(database, port, "0.0.0.0", explicit_host=True)
    monkeypatch.setenv("MLFLOW_SERVER_ALLOWED_HOSTS", "hub.example.org")
    assert "--allowed-hosts" not in server_command(database, port)


def test_what_is_started_listens_on_loopback_alone(tmp_path, port):
    database = tmp_path / "mlflow.db"
    MlflowClient(f"sqlite:///{database}").create_experiment("one")
    process = psutil.Popen([sys.executable, "-c", MAIN, "ui", "--uri", f"sqlite:///{database}", "--port", str(port)])
    try:
        wait_for_health(port, process)
        assert listening(process) == {"127.0.0.1"}
        for name, code in {"10.evil.example": 403, "192.168.evil.example": 403, "localhost": 200, "[::1]": 200}.items():
            assert answer(port, f"{name}:{port}") == code, name
        assert answer(port, "127.0.0.1:8080") == 200, "through a tunnel"
    finally:
        for one in [*process.children(recursive=True), process]:
            one.kill()
        process.wait()


def test_mlflow_knows_the_options():
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    known = subprocess.run(
        [sys.executable, "-m", "mlflow", "server", "--help"], check=True, capture_output=True, text=True, env=quiet
    ).stdout
    options = ("--backend-store-uri", "--artifacts-destination", "--host", "--port", "--workers", "--allowed-hosts")
    assert all(option in known for option in options)
    source = Path(importlib.util.find_spec("mlflow").origin).parent / "cli" / "__init__.py"
    assert '"MLFLOW_BACKEND_STORE_URI"' in source.read_text()


def test_mlflow_has_the_page_that_is_printed():
    pages = Path(importlib.util.find_spec("mlflow").origin).parent / "server" / "js" / "build" / "static" / "js"
    assert any(f'"{mlflow_ui.EXPERIMENTS.removeprefix("/#")}"' in path.read_text() for path in pages.glob("*.js"))


def test_a_postgres_address_is_no_argument(port, monkeypatch, capsys):
    uri, calls, opened = "postgresql+psycopg://me:secret@127.0.0.1/runs", [], []
    monkeypatch.setattr(os, "execv", lambda *call: calls.append(call))
    monkeypatch.setattr(mlflow_ui, "open_store", opened.append)
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "")
    serve(uri, port)
    assert "secret" not in " ".join(calls[0][1]) + capsys.readouterr().out
    assert calls[0][1][4:6] == ["--artifacts-destination", str(Path("runs/mlartifacts").absolute())]
    assert os.environ["MLFLOW_BACKEND_STORE_URI"] == uri
    assert opened == [uri]


def test_a_postgres_server_that_does_not_answer(port):
    with pytest.raises(InputError, match="cannot be shown") as error:
        serve(f"postgresql+psycopg://me:secret@127.0.0.1:{port}/runs", port)
    assert "refused" in str(error.value)
    assert "secret" not in str(error.value)


def test_other_hosts_only_when_asked_for(database, port, monkeypatch, capsys):
    monkeypatch.setattr(os, "execv", lambda *call: None)
    for host in ("0.0.0.0", "192.168.0.7", "example.org"):
        with pytest.raises(InputError, match=f"--host {host}"):
            serve(database, port, host)
    serve(database, port, "0.0.0.0", explicit_host=True)
    assert "no login" in capsys.readouterr().out


@pytest.mark.parametrize("uri", ["sqlite:////nowhere/mlflow.db", "http://127.0.0.1:5000", "runs", ""])
def test_nothing_to_show(uri, port):
    with pytest.raises(InputError):
        serve(uri, port)


def test_a_taken_port(database):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        taken = busy.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {taken + 1}"):
            server_command(database, taken)
