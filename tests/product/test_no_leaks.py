"""No secret and no row of the data leaves with the records of a run: a run on a table whose rows carry markers, with
made-up credentials in its environment, and then a search through every byte that it left and printed.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
MARK = "zqxjvk"
"""Begins every marker; the search is for it in any case, in several encodings. Three letters were met by chance in the
packed code of a model."""
KINDS = ("ash", "beech")
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIA{}KEYID",
    "AWS_SECRET_ACCESS_KEY": "{}AwsSecret",
    "AWS_SESSION_TOKEN": "{}AwsSession",
    "MLFLOW_TRACKING_USERNAME": "{}MlflowUser",
    "MLFLOW_TRACKING_PASSWORD": "{}MlflowPassword",
    "MLFLOW_TRACKING_TOKEN": "{}MlflowToken",
    "PGPASSWORD": "{}PgPassword",
    "HF_TOKEN": "{}HfToken",
    "ANY_API_KEY": "{}ApiKey",
    "RAY_AUTH_TOKEN": "{}RayToken",
}
"""What stands in the environment."""
USER, PASSWORD = f"{MARK}UriUser", f"{MARK}UriPassword"
OPTIONS = (
    "--federation.rounds", "2", "--federation.epochs", "1", "--federation.clients_per_round", "2",
    "--evaluation.save_state_every", "1",
)  # fmt: skip


def table(folder: Path, *, texts: bool) -> Path:
    """Make rows whose text, patient and file name carry markers, each but once."""
    rng = np.random.default_rng(0)
    kind = [KINDS[i % 2] for i in range(60)]
    columns = {
        "kind": kind,
        "site": [f"s{i % 3}" for i in range(60)],
        "patient": [f"{MARK}Patient{i}" for i in range(60)],
        "file": [f"/scans/{MARK}File{i}.png" for i in range(60)],
    }
    if texts:
        columns["note"] = [f"the {k} tree {MARK}word{i}" for i, k in enumerate(kind)]
    else:
        columns |= {"height": [KINDS.index(k) + rng.normal() for k in kind], "girth": rng.normal(size=60).tolist()}
    pq.write_table(pa.table(columns), folder / "trees.parquet")
    return folder / "trees.parquet"


def anchorfl(folder: Path, *words: str, **env: str) -> str:
    """Run a command in an environment that holds the secrets; return what it prints."""
    secrets = {name: value.format(MARK) for name, value in SECRETS.items()}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-m", "anchorfl", *words], cwd=folder, capture_output=True, text=True,
        timeout=500, check=False,
        env=inherited | {"PYTHONPATH": str(ROOT / "src"), "ANCHORFL_CACHE": str(folder / "cache")} | secrets | env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def needles() -> list[bytes]:
    """Return the marker in the encodings that a record may have: UTF-8, UTF-16, a list of numbers as text."""
    return [MARK.encode(), MARK.encode("utf-16-le"), ", ".join(str(b) for b in MARK.encode()).encode()]


def leaks(folder: Path) -> list[str]:
    """Files below ``folder`` that hold the marker, with what stands around it."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        content = path.read_bytes()
        for needle in needles():
            for hit in re.finditer(re.escape(needle), content, re.IGNORECASE):
                around = content[max(0, hit.start() - 40) : hit.end() + 20]
                found.append(f"{path.relative_to(folder)}: {around!r}")
    return found


def database_text(file: Path) -> str:
    """Return every cell of a SQLite database."""
    with closing(sqlite3.connect(file)) as store:
        tables = [row[0] for row in store.execute("select name from sqlite_master where type = 'table'")]
        return "\n".join(str(row) for name in tables for row in store.execute(f'select * from "{name}"'))


@pytest.mark.slow
@pytest.mark.parametrize("texts", [False, True], ids=["numbers", "texts"])
def test_no_row_and_no_secret_is_in_the_records(tmp_path, texts):
    """Run folder, MLflow's database and artifacts, output; the cache holds the rows by nature, and is closed."""
    file = table(tmp_path, texts=texts)
    own = (
        "--task.file",
        str(file),
        "--task.input_columns",
        "note" if texts else "height,girth",
        "--task.label_columns",
        "kind",
    )
    said = anchorfl(
        tmp_path, "run", *own, "--task.client_column", "site", "--cluster.executor", "serial",
        "--class_embeddings.init", "random",
        *OPTIONS,
    )  # fmt: skip
    assert MARK not in said.lower()
    assert "weights sha256" in said
    assert leaks(tmp_path / "runs") == []
    assert {p.name for p in (tmp_path / "runs").iterdir()} >= {"mlflow.db", "mlartifacts"}
    stored = database_text(tmp_path / "runs" / "mlflow.db")
    assert "trees-" in stored, "the search looks where there is something to find"
    assert MARK not in stored.lower()
    prepared = [p for p in (tmp_path / "cache").iterdir() if p.is_dir() and (p / "manifest.json").exists()]
    assert prepared
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o700 for p in prepared), "rows are for their owner alone"


@pytest.mark.slow
def test_the_password_of_a_store_is_in_no_record(tmp_path):
    """An address with user and password, and a server that does not answer, so that it is spoken of."""
    uri = f"http://{USER}:{PASSWORD}@127.0.0.1:9/"
    words = ("run", "digits/fedavg", "--cluster.executor", "serial", "--output", "runs/one", "--tracking.uri", uri)
    said = anchorfl(tmp_path, *words, *OPTIONS)
    assert "cannot be reached" in said
    assert "http://***@127.0.0.1:9" in said
    assert MARK not in said.lower()
    assert leaks(tmp_path) == []
    config = json.loads((tmp_path / "runs" / "one" / "config.json").read_text())
    assert config["tracking"]["uri"] == "http://127.0.0.1:9/"
    assert json.loads((tmp_path / "runs/one/run.json").read_text())["params"]["tracking.uri"] == "http://127.0.0.1:9/"
    said = anchorfl(tmp_path, "sync", "runs/one", "--uri", f"sqlite:///{tmp_path}/later.db")
    assert MARK not in database_text(tmp_path / "later.db").lower() + said.lower()
    assert leaks(tmp_path) == []


@pytest.mark.ray
@pytest.mark.slow
def test_no_row_and_no_secret_is_in_the_logs_of_ray(tmp_path):
    """A run with client actors: all that Ray writes into the session's folder, and the records, too."""
    import tempfile

    file = table(tmp_path, texts=True)
    with tempfile.TemporaryDirectory(prefix="afl-", dir="/tmp") as place:  # Ray's sockets lie there: short paths
        said = anchorfl(
            tmp_path, "run", "--task.file", str(file), "--task.input_columns", "note", "--task.label_columns", "kind",
            "--task.client_column", "site", "--cluster.clients_per_actor", "3",
            "--tracking.uri", f"postgresql+psycopg://me:{PASSWORD}@127.0.0.1:9/runs", *OPTIONS, RAY_TMPDIR=place,
        )  # fmt: skip
        logs = [p for p in Path(place).rglob("*") if p.is_file() and "logs" in p.parts]
        assert any(p.name.startswith("raylet") for p in logs)
        assert any(p.name.startswith("worker") for p in logs)
        assert leaks(Path(place)) == []
    assert MARK not in said.lower()
    assert leaks(tmp_path / "runs") == []
