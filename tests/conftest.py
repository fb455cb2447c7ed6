"""Fixtures of several folders: small experiments on the toy tasks, an S3 server, a cache folder of the tests' own."""

from __future__ import annotations

import os
import shutil
import uuid
from functools import cache
from pathlib import Path

import pytest
import torch

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run import lifecycle
from anchorfl.pipeline.run.lifecycle import Result, run
from anchorfl.pipeline.tracking import mlflow_store
from anchorfl.tasks.synthetic import SYNTHETIC
from anchorfl.testing import small_experiment, without_pictures
from tests.made_concepts import with_encoder
from tests.runs import quiet

os.environ["HF_HUB_OFFLINE"] = "1"  # before the hub's library reads it; else a wrong name is asked for six times, 46 s


@cache
def _says_ray(path: Path) -> bool:
    return "mark.ray" in path.read_text(encoding="utf-8")


def pytest_itemcollected(item):
    """Refuse a test that starts Ray in a file that ``make test`` does not find."""
    if item.get_closest_marker("ray") and not _says_ray(item.path):
        raise pytest.UsageError(f"{item.nodeid} is marked 'ray': write pytest.mark.ray in its file (see the Makefile)")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep tests off the user's cache and key; all share a cache, so that data are prepared once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        patch.setenv("ANCHORFL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def _own_records(monkeypatch):
    """Keep a test off the user's records, and off those of the test before: MLflow sets this variable itself."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


MAKE_DATABASE = mlflow_store.make_database


@pytest.fixture(scope="session", autouse=True)
def _one_migration(tmp_path_factory):
    """Let new SQLite stores of this process start from a copy of one: MLflow's migration takes 3 s of a CPU each."""
    template = tmp_path_factory.getbasetemp() / "migrated" / "mlflow.db"

    def make(path, client):
        def copied(tracking_uri):
            MAKE_DATABASE(template, client)
            shutil.copyfile(template, tracking_uri.removeprefix("sqlite:///"))

        MAKE_DATABASE(path, copied if client.__name__ == "MlflowClient" else client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_store, "make_database", make)
        yield


@pytest.fixture(autouse=True)
def _same_threads():
    """Runs set one intra-op thread; leave the process as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def made_up(tmp_path_factory):
    """Return a maker of the folder of made-up raw files of a data set, by name, rows and seed; to be read only."""

    @cache
    def make(name: str, rows: int, seed: int) -> Path:
        folder = tmp_path_factory.mktemp(name)
        SYNTHETIC[name](folder, rows, seed)
        return folder

    return make


@pytest.fixture(scope="session")
def _s3_server():
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'anchorfl[dev]'")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def s3(monkeypatch, _s3_server):
    """Return an empty bucket on an S3 server of our own, as ``s3://bucket``; the environment leads there."""
    import boto3

    credentials = {"ACCESS_KEY_ID": "someone", "SECRET_ACCESS_KEY": "sesame", "DEFAULT_REGION": "us-east-1"}
    for name, value in (credentials | {"ENDPOINT_URL": _s3_server, "EC2_METADATA_DISABLED": "true"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}"


SMALL = {
    "fedbm": {"cgde": False},
    "fedtsp": {"prompt_length": 2, "prompt_steps": 2},
    "fedmlp": {"warm_up": 1, "positive_share": 0.2, "negative_share": 0.1},
}
"""Options of methods that do not fit the toys by their defaults: the generator makes images, the tiny BERT reads 16
tokens, and in three rounds of a few rows nothing would be tagged."""


DRAW = lifecycle._draw


@pytest.fixture(scope="session", autouse=True)
def _no_pictures():
    """Runs draw none at their end, which is most of the time of a run on a toy task; ``pictures`` has them drawn."""
    with without_pictures():
        yield


@pytest.fixture
def pictures(monkeypatch):
    """Runs of this process draw their pictures, as they do for users."""
    monkeypatch.setattr(lifecycle, "_draw", DRAW)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, _own_cache, _no_pictures):
    """Return a maker of finished runs, one per experiment and session; their folders are to be read only."""

    @cache
    def make(e: Experiment) -> Result:
        return run(e, tmp_path_factory.mktemp("finished") / "run", quiet)

    return make


@pytest.fixture(scope="session")
def experiment():
    """Return a maker of small experiments: 4 clients of a toy task, 3 per round, serial; keywords are options."""

    def make(method="fedavg", task="", *, seed=1, options=None, **sections) -> Experiment:
        given = METHODS[method](**(SMALL.get(method, {}) | (options or {})))
        made = small_experiment(given, task, seed=seed, **sections)
        return with_encoder(made)

    return make
