"""The pages are served on loopback unless the user asks for more, and only where there is something to show."""

import os
import socket
import subprocess
import sys

import pytest

from pipeline.ui import serve, server_command
from tasks.contract import InputError


@pytest.fixture
def database(tmp_path):
    (tmp_path / "mlflow.db").touch()
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_serve_becomes_mlflow_on_loopback(database, port, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(os, "execv", lambda *call: calls.append(call))
    serve(database, port)
    command = calls[0][1]
    assert calls[0][0] == command[0] == sys.executable
    assert command[1:4] == ["-m", "mlflow", "server"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options == {"--backend-store-uri": database, "--host": "127.0.0.1", "--port": str(port), "--workers": "1"}
    assert f"http://127.0.0.1:{port}" in capsys.readouterr().out


def test_mlflow_knows_the_options():
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    known = subprocess.run(
        [sys.executable, "-m", "mlflow", "server", "--help"], check=True, capture_output=True, text=True, env=quiet
    ).stdout
    assert all(option in known for option in ("--backend-store-uri", "--host", "--port", "--workers"))


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
