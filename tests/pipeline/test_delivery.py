"""Which store is meant, and how a new one comes to be."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pipeline import delivery
from pipeline.delivery import store_uri
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
        delivery._make_database(path, killed)
    assert not path.exists()

    def migrate(tracking_uri):
        with closing(sqlite3.connect(tracking_uri.removeprefix("sqlite:///"))) as database:
            database.execute("create table experiments (name text)")

    delivery._make_database(path, migrate)
    delivery._make_database(path, killed)  # there is one: not made again
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("select name from sqlite_master").fetchall() == [("experiments",)]
    assert [file.name for file in path.parent.iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize("uri", ["runs/mlruns", "file:///tmp/mlruns", "file:", "ftp://x"])
def test_a_store_that_mlflow_refuses_is_named(uri, tmp_path):
    with pytest.raises(InputError, match="sqlite:///"):
        open_tracker(TrackingOptions(uri=uri), tmp_path / "run", 0, print)


def test_stores(tmp_path):
    assert store_uri("", tmp_path / "run") == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert store_uri("none", tmp_path) == ""
    assert len(open_tracker(TrackingOptions(uri="none"), tmp_path / "run", 0, print).parts) == 1
    with pytest.raises(InputError, match=r"run\.json"):
        send(tmp_path, "none")
