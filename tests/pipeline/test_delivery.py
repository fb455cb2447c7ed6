"""Which store is meant, and how a new one comes to be."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pipeline import stores
from pipeline.stores import reason, shown, store_uri
from pipeline.tracking import TrackingOptions, open_tracker, send
from tasks.contract import InputError


def test_a_database_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "runs" / "mlflow.db"
    path.parent.mkdir()
    path.with_name("mlflow.db.new").write_text("left by a process that was killed while it made the database")

    def killed(tracking_uri):
        Path(tracking_uri.removeprefix("sqlite:///")).write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stores.make_database(path, killed)
    assert not path.exists()

    def migrate(tracking_uri):
        with closing(sqlite3.connect(tracking_uri.removeprefix("sqlite:///"))) as database:
            database.execute("create table experiments (name text)")

    stores.make_database(path, migrate)
    stores.make_database(path, killed)  # there is one: not made again
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("select name from sqlite_master").fetchall() == [("experiments",)]
    assert [file.name for file in path.parent.iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize("uri", ["runs/mlruns", "file:///tmp/mlruns", "file:", "ftp://x"])
def test_a_store_that_mlflow_refuses_is_named(uri, tmp_path):
    with pytest.raises(InputError, match="sqlite:///"):
        open_tracker(TrackingOptions(uri=uri), tmp_path / "run", 0, print)


def test_postgres_needs_its_driver(tmp_path, monkeypatch):
    uri = "postgresql://me:secret@127.0.0.1/runs"
    assert store_uri(uri, tmp_path) == uri
    monkeypatch.setattr(stores.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'psycopg\[binary\]'") as told:
        store_uri("postgresql+psycopg://me:secret@127.0.0.1/runs", tmp_path)
    assert "secret" not in str(told.value)
    with pytest.raises(InputError, match="pip install psycopg2-binary"):
        open_tracker(TrackingOptions(uri="postgresql+psycopg2://me@127.0.0.1/runs"), tmp_path / "run", 0, print)


def test_where_artifacts_go(tmp_path):
    base = tmp_path.as_uri()
    assert stores.artifact_place(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "runs/a", "x y") == (
        f"{base}/mlartifacts/x_y"
    )
    assert stores.artifact_place("postgresql://h/d", tmp_path / "runs/a", "x") == f"{base}/runs/mlartifacts/x"
    assert stores.artifact_place("http://127.0.0.1:1", tmp_path / "runs/a", "x") is None


def test_no_password_is_said():
    assert shown("at postgresql://me:secret@host/db") == "at postgresql://***@host/db"
    assert reason(OSError("connect to http://me:secret@host\n  failed")) == "connect to http://***@host failed"
    assert reason(ValueError()) == "ValueError"


def test_stores(tmp_path):
    assert store_uri("", tmp_path / "run") == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert store_uri("none", tmp_path) == ""
    assert len(open_tracker(TrackingOptions(uri="none"), tmp_path / "run", 0, print).parts) == 1
    with pytest.raises(InputError, match=r"run\.json"):
        send(tmp_path, "none")


@pytest.mark.parametrize("options", [{"register": "a/b"}, {"register": "it's"}, {"register": "a", "log_model": False}])
def test_what_cannot_be_registered_is_refused(options):
    with pytest.raises(ValueError, match=r"tracking\.register"):
        TrackingOptions(**options)
