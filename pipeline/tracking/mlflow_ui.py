"""The MLflow pages of a store, on this machine only."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.storage.run_folder import RUNS
from anchorfl.pipeline.terminal import say
from anchorfl.pipeline.tracking.mlflow_store import ARTIFACTS, check_driver, is_postgres, open_store, reason
from anchorfl.tasks.errors import InputError

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
EXPERIMENTS = "/#/experiments"
"""The page of all experiments. MLflow's own first page is about language-model traces."""
LOOPBACK_NAMES = "localhost:*,127.0.0.1:*,[[]::1]:*"
"""Names by which a browser may ask for the pages, as patterns of ``fnmatch``; any port, for a tunnel."""


def serve(uri: str, port: int, host: str = LOOPBACK, *, explicit_host: bool = False) -> NoReturn:
    """Become the MLflow server of ``uri`` (``sqlite:///...`` or ``postgresql://...``) and print its address.

    explicit_host: the user typed ``--host``. MLflow has no login by default, so any other way to a host that is not
    loopback is refused. Raises InputError for that, for a database that does not exist or does not answer, and for a
    port that is taken.
    """
    command = server_command(uri, port, host, explicit_host=explicit_host)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if is_postgres(uri):
        _reach(uri)
        os.environ["MLFLOW_BACKEND_STORE_URI"] = uri  # not an argument: everybody can read those, password and all
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    say(f"MLflow at {address}{EXPERIMENTS} (stop it with Ctrl-C; it needs some seconds to start)")
    if not _is_loopback(host):
        say("Everyone who can reach this address can read and change the records: there is no login.")
    os.execv(command[0], command)


def server_command(uri: str, port: int, host: str = LOOPBACK, *, explicit_host: bool = False) -> list[str]:
    """Return the command that ``serve`` becomes, after its checks; a PostgreSQL address is left to the environment."""
    store, base = _store(uri)
    if not _is_loopback(host) and not explicit_host:
        raise InputError(f"{host} can be reached by others and MLflow has no login; ask for it with: --host {host}")
    if not 1 <= port <= MAX_PORT:
        raise InputError(f"--port {port}: must be from 1 to {MAX_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just left counts as free
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(
                f"cannot listen on {host}:{port} ({error.strerror}); try --port {port % MAX_PORT + 1}"
            ) from error
    # one worker: four (the default) import MLflow four times and show the same pages to one reader
    listen = ["--host", host, "--port", str(port), "--workers", "1"]
    # for what others log through this server; MLflow's own default is ./mlartifacts of whatever folder it started in
    keep = ["--artifacts-destination", str(base / ARTIFACTS)]
    return [sys.executable, "-m", "mlflow", "server", *store, *keep, *listen, *_names(host)]


def _names(host: str) -> list[str]:
    """Return the option against DNS rebinding: a web page whose name comes to mean 127.0.0.1 gets nothing.

    MLflow's default also takes names such as ``10.example.org``, since it compares with ``10.*``. None for another host
    than loopback, whose names only the user knows, and where ``MLFLOW_SERVER_ALLOWED_HOSTS`` says others.
    """
    own = _is_loopback(host) and not os.environ.get("MLFLOW_SERVER_ALLOWED_HOSTS")
    return ["--allowed-hosts", LOOPBACK_NAMES] if own else []


def _store(uri: str) -> tuple[list[str], Path]:
    """Return the option that names the store, and the folder beside which artifacts belong."""
    if uri.startswith(("http://", "https://")):
        raise InputError(f"{redact(uri)} is a server already; open it in a browser")
    if is_postgres(uri):
        check_driver(uri)
        return [], RUNS.absolute()
    if not uri.startswith("sqlite:///"):
        raise InputError(
            f"cannot show {redact(uri)!r}; write --uri sqlite:///<folder of the runs>/mlflow.db or"
            " postgresql://<user>@<host>/<database>"
        )
    file = Path(uri.removeprefix("sqlite:///")).resolve()
    if not file.is_file():
        raise InputError(f"no MLflow database at {file}; make one with: anchorfl run, or: anchorfl sync <run folder>")
    return ["--backend-store-uri", f"sqlite:///{file}"], file.parent


def _reach(uri: str) -> None:
    """Connect once, and make MLflow's tables where there are none: a server that fails would say so in many pages."""
    try:
        open_store(uri)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{redact(uri)} cannot be shown: {reason(error)}") from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
