"""The MLflow stores that a run may be sent to: which one is meant, and how it is opened for the first time."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shlex
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock

from anchorfl.pipeline.config.redaction import redact
from anchorfl.tasks.errors import InputError

QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # we try again ourselves, at a later round
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nothing about a run leaves for a server that its user did not name
    "MLFLOW_UV_AUTO_DETECT": "false",  # else a model takes along whatever project lies in the current folder
}
"""Environment of MLflow where the user set nothing else."""
ARTIFACTS = "mlartifacts"
"""Folder of artifacts, beside a local database."""
CONNECT_S = 5
"""Seconds that a database server may take to answer."""
MIGRATION = 4_710_205_311
"""Key of the PostgreSQL advisory lock under which MLflow's tables are made."""
_IMPORT = threading.Lock()  # two threads that import mlflow at once can see it half made
_SQLITE = threading.Lock()  # SQLite has one writer; the runs of this process take turns


def sync_command(folder: Path, store: str) -> str:
    """Return what to type to send a run folder to a store later; a password is to be put in again."""
    return shlex.join(["anchorfl", "sync", str(folder), *(["--uri", redact(store)] if store else [])])


def store_uri(uri: str, folder: Path) -> str:
    """Return the MLflow store that ``TrackingOptions.uri`` means for a run folder; "" for ``none``.

    An empty uri means $MLFLOW_TRACKING_URI, and without that mlflow.db beside the run. SQLite paths become absolute.
    Raises InputError for a file store, which MLflow refuses, an unknown scheme, or a PostgreSQL driver that is missing.
    """
    if uri == "none":
        return ""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        return f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"
    scheme, colon, _ = uri.partition("://")
    if uri.startswith("sqlite:///"):
        return f"sqlite:///{Path(uri.removeprefix('sqlite:///')).resolve()}"
    if is_postgres(uri):
        check_driver(uri)
    if colon and scheme.split("+")[0] in {"http", "https", "postgresql", "mysql", "mssql"}:
        return uri
    raise InputError(
        f"tracking.uri {redact(uri)!r} is no store that MLflow accepts (it refuses plain folders and file:); write "
        "sqlite:///<file>.db, postgresql://<user>@<host>/<database> or http://<host>:<port>, or 'none', or leave it "
        "empty for mlflow.db beside the run"
    )


def is_postgres(uri: str) -> bool:
    """Return True for ``postgresql://`` and ``postgresql+<driver>://``."""
    return uri.startswith(("postgresql://", "postgresql+"))


def check_driver(uri: str) -> None:
    """Raise InputError where the Python package that speaks to this PostgreSQL server is not installed."""
    named = uri.partition("://")[0].partition("+")[2]
    recent = tuple(map(int, version("sqlalchemy").split(".")[:2])) >= (2, 1)  # the default changed with 2.1
    driver = named or ("psycopg" if recent else "psycopg2")
    if importlib.util.find_spec(driver) is None:
        package = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary"}.get(driver, driver)
        raise InputError(f"{redact(uri)} needs the Python package {driver}: pip install {package}")


def reason(error: BaseException) -> str:
    """Return why it failed, in one short line: the system's own words where an exception wraps them."""
    text = redact(" ".join(str(error).split())) or type(error).__name__
    if isinstance(error, InputError):
        return text
    low_level = re.search(r"\[Errno -?\d+\] [^'\")]+", text)
    return low_level.group(0) if low_level else text[:160]


def lock(uri: str) -> AbstractContextManager[object]:
    """Return the lock to hold while writing to a store."""
    return _SQLITE if uri.startswith("sqlite") else nullcontext()


def artifact_uri(uri: str, folder: Path, experiment: str) -> str | None:
    """Return the URI where a new experiment keeps its artifacts; None where a server decides.

    That is beside the SQLite file, or beside the run folder for another database. MLflow's own default would be
    ./mlruns of whatever folder the run started in.
    """
    if uri.startswith("http"):
        return None
    base = Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite") else folder.resolve()
    return (base.parent / ARTIFACTS / re.sub(r"[^\w.-]", "_", experiment)).as_uri()


def check_artifact_place(uri: str, location: str) -> None:
    """Raise InputError where a SQLite file was moved: MLflow would make the folder at its old place again, and send
    artifacts there.

    location: where an experiment keeps its artifacts, which MLflow can't change.
    """
    place = Path(url2pathname(urlsplit(location).path))
    if uri.startswith("sqlite") and location.startswith("file:") and place.parent.name == ARTIFACTS:
        database = Path(uri.removeprefix("sqlite:///"))
        if place.parent.parent.resolve() != database.parent.resolve() and not place.parent.exists():
            raise InputError(
                f"{database} was moved: it keeps artifacts in {place.parent}, which is gone; move it back, or remove it"
                " and send its runs to a new one with anchorfl sync"
            )


def open_store(uri: str) -> Any:
    """Return an ``MlflowClient``. The import costs seconds, so it stands here, on the thread that sends."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    with _IMPORT:
        import mlflow

        # What these would print breaks a progress display, and the caller says in one line what went wrong.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        if is_postgres(uri):
            return _open_postgres(uri, mlflow.MlflowClient)
        if uri.startswith("sqlite:///"):
            make_database(Path(uri.removeprefix("sqlite:///")), mlflow.MlflowClient)
        return mlflow.MlflowClient(tracking_uri=uri)


def _open_postgres(uri: str, client: Callable[..., Any]) -> Any:
    """Return a client of a PostgreSQL store, whose tables are made by one process at a time.

    MLflow guards its first migration with a file of this machine only, so two machines could run it at once; a killed
    one is rolled back. The own connection also fails at once where MLflow would try again for two minutes.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.pool import NullPool

    check_driver(uri)
    wait = {"connect_timeout": CONNECT_S} if "psycopg" in make_url(uri).get_driver_name() else {}
    engine = create_engine(uri, poolclass=NullPool, connect_args=wait)
    with engine.connect() as connection:  # the lock ends with the connection, however it ends
        connection.execute(text("select pg_advisory_lock(:key)"), {"key": MIGRATION})
        return client(tracking_uri=uri)


def make_database(path: Path, client: Callable[..., Any]) -> None:
    """Make a new SQLite database, there whole or not at all.

    MLflow's first migration takes seconds, and one that is killed leaves a file that MLflow can never open again
    (measured with 3.17.2).
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft, lock = path.with_name(path.name + ".new"), path.with_name(f".{path.name}.lock")
    with FileLock(lock, fallback_to_soft=False):  # released by any death
        if path.exists():
            return
        draft.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            client(tracking_uri=f"sqlite:///{folder}/mlflow.db")
            with closing(sqlite3.connect(f"{folder}/mlflow.db")) as source, closing(sqlite3.connect(draft)) as target:
                source.backup(target)
        draft.replace(path)
        with suppress(OSError):  # Windows removes no open file; whoever still waits finds the database
            lock.unlink()
