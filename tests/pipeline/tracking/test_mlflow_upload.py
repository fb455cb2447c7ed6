"""The store that an address means, and the making of a new one."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from anchorfl.pipeline.config.redaction import redact, redact_uri
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.run.lifecycle import open_tracker
from anchorfl.pipeline.tracking import mlflow_store
from anchorfl.pipeline.tracking.mlflow_store import reason, store_uri
from anchorfl.pipeline.tracking.mlflow_writer import send
from anchorfl.tasks.errors import InputError


def test_a_database_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "runs" / "mlflow.db"
    path.parent.mkdir()
    path.with_name("mlflow.db.new").write_text("left by a process that was killed while it made the database")

    def killed(tracking_uri):
        Path(tracking_uri.removeprefix("sqlite:///")).write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mlflow_store.make_database(path, killed)
    assert not path.exists()

    def migrate(tracking_uri):
        with closing(sqlite3.connect(tracking_uri.removeprefix("sqlite:///"))) as database:
            database.execute("create table experiments (name text)")

    mlflow_store.make_database(path, migrate)
    mlflow_store.make_database(path, killed)  # there is one: not made again
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
    monkeypatch.setattr(mlflow_store.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'psycopg\[binary\]'") as error:
        store_uri("postgresql+psycopg://me:secret@127.0.0.1/runs", tmp_path)
    assert "secret" not in str(error.value)
    with pytest.raises(InputError, match="pip install psycopg2-binary"):
        open_tracker(TrackingOptions(uri="postgresql+psycopg2://me@127.0.0.1/runs"), tmp_path / "run", 0, print)


def test_where_artifacts_go(tmp_path):
    base = tmp_path.as_uri()
    assert mlflow_store.artifact_uri(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "runs/a", "x y") == (
        f"{base}/mlartifacts/x_y"
    )
    assert mlflow_store.artifact_uri("postgresql://h/d", tmp_path / "runs/a", "x") == f"{base}/runs/mlartifacts/x"
    assert mlflow_store.artifact_uri("http://127.0.0.1:1", tmp_path / "runs/a", "x") is None


def test_a_database_that_was_moved_is_refused(tmp_path):
    """MLflow would make a folder at the old place, which a finished run of it names for ever."""
    old, new = tmp_path / "runs", tmp_path / "elsewhere"
    database, location = f"sqlite:///{new}/mlflow.db", mlflow_store.artifact_uri(f"sqlite:///{old}/mlflow.db", old, "x")
    (old / "mlartifacts").mkdir(parents=True)
    mlflow_store.check_artifact_place(database, location)  # a copy, say: the first is where it was
    old.rename(new)
    with pytest.raises(InputError, match=re.escape(f"{new}/mlflow.db was moved: it keeps artifacts in {old}")) as error:
        mlflow_store.check_artifact_place(database, location)
    assert reason(error.value).endswith("with anchorfl sync")  # whole
    mlflow_store.check_artifact_place("postgresql://h/d", location)
    mlflow_store.check_artifact_place(database, "s3://bucket/mlartifacts/x")
    mlflow_store.check_artifact_place(database, f"{old.as_uri()}/own/x")  # made by somebody else
    (tmp_path / "link").symlink_to(new)
    (new / "mlartifacts").rmdir()
    mlflow_store.check_artifact_place(f"sqlite:///{tmp_path}/link/mlflow.db", f"{new.as_uri()}/mlartifacts/x")


def test_no_password_is_said():
    assert redact("at postgresql://me:secret@host/db") == "at postgresql://***@host/db"
    assert reason(OSError("connect to http://me:secret@host\n  failed")) == "connect to http://***@host failed"
    assert reason(ValueError()) == "ValueError"
    for uri in (
        "postgresql://me:se@cr/et@host/db", "http://me:secret@host:5000", "https://secret@host/x",
        "postgresql://host/db?user=me&password=secret&sslmode=require", "mysql+pymysql://me:secret@host/db?charset=utf8",
    ):  # fmt: skip
        redacted = redact(f"cannot reach '{uri}' now")
        assert "host" in redacted, redacted
        assert not any(part in redacted for part in ("secret", "se@", "cr/et")), redacted
    for harmless in ("http://host:5000/#/experiments", "s3://bucket/runs", "sqlite:////tmp/a/mlflow.db", "a@b.org"):
        assert redact(harmless) == harmless


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("", ""),
        ("none", "none"),
        ("sqlite:////tmp/a@b/mlflow.db", "sqlite:////tmp/a@b/mlflow.db"),
        ("http://127.0.0.1:5000/a@b", "http://127.0.0.1:5000/a@b"),
        ("http://me:secret@host:5000/path", "http://host:5000/path"),
        ("https://secret@host", "https://host"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql+psycopg://me:se@cr/et@host:1/db", "postgresql+psycopg://me@host:1/db"),
        ("postgresql://host/db?user=me&password=secret", "postgresql://host/db?user=me"),
        ("postgresql://me:secret@host/db?sslpassword=secret", "postgresql://me@host/db"),
        ("mysql://host/db?email=a:b@c", "mysql://host/db?email=a:b@c"),
        ("postgresql://me:se?cret@host/db", "postgresql://me@host/db"),
        ("postgresql://me:se@c?re@t@host/db?sslmode=require", "postgresql://me@host/db?sslmode=require"),
        ("postgresql://me:secret@/db?host=/run/a@b", "postgresql://me@/db?host=/run/a@b"),
    ],
)
def test_what_is_recorded_of_an_address_can_be_used_and_has_no_password(uri, kept):
    assert redact_uri(uri) == kept
    assert redact_uri(kept) == kept


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
