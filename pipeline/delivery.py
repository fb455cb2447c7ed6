"""The way of a run folder (``journal.py``) into MLflow: what is missing there, and no row twice.

Only ``MlflowClient`` is used, never MLflow's active run, so several runs of one process do not meet.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import re
import sqlite3
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

from pipeline.journal import RoundRecord, read_json, read_records, write_json
from tasks.contract import InputError

MARK = "fault/nonfinite"
"""Logged last in every round, so its last step in MLflow is the last round that arrived whole."""
METRICS_PER_BATCH, PARAMS_PER_BATCH, VALUE_LENGTH, DIGEST_LENGTH, KEY_LENGTH = 1000, 100, 6000, 36, 250
"""MLflow's own limits (mlflow/utils/validation.py, 3.17.2)."""
QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # we try again ourselves, at a later round
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nothing about a run leaves for a server that its user did not name
}
"""Environment of MLflow where the user set nothing else."""
_IMPORT = threading.Lock()  # two threads that import mlflow at once can see it half made
_SQLITE = threading.Lock()  # SQLite has one writer; the runs of this process take turns


def store_uri(uri: str, folder: Path) -> str:
    """The MLflow store that ``TrackingOptions.uri`` means for a run folder; "" for ``none``; SQLite paths absolute.

    Errors: InputError for a file store, which MLflow refuses, and for an unknown scheme.
    """
    if uri == "none":
        return ""
    if not uri:
        return f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"
    scheme, colon, _ = uri.partition("://")
    if uri.startswith("sqlite:///"):
        return f"sqlite:///{Path(uri.removeprefix('sqlite:///')).resolve()}"
    if colon and scheme.split("+")[0] in {"http", "https", "postgresql", "mysql", "mssql"}:
        return uri
    raise InputError(
        f"tracking.uri {shown(uri)!r} is no store that MLflow accepts (it refuses plain folders and file:); "
        "write sqlite:///<file>.db or http://<host>:<port>, or 'none', or leave it empty for mlflow.db beside the run"
    )


def shown(text: str) -> str:
    """A text without the passwords of the addresses in it."""
    return re.sub(r"//[^/@\s]*@", "//***@", text)


def reason(error: BaseException) -> str:
    """Why it failed, in one short line: the system's own words where an exception wraps them."""
    text = shown(" ".join(str(error).split())) or type(error).__name__
    low_level = re.search(r"\[Errno -?\d+\] [^'\")]+", text)
    return low_level.group(0) if low_level else text[:160]


class Delivery:
    """The way of one run folder into one MLflow store. Every step may be repeated: it sends only what is not there."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = folder, uri
        self.last = -1  # last round that stands in MLflow
        self.run_id = ""
        self._client: Any = None
        self._offset = 0
        self._resumed = False

    def turn(self) -> AbstractContextManager[object]:
        """What to hold while sending."""
        return _SQLITE if self.uri.startswith("sqlite") else nullcontext()

    def advance(self) -> int:
        """Send all rounds that MLflow lacks; returns how many."""
        if not self.run_id:
            self._connect()
        records, offset = read_records(self.folder, self._offset)
        missing = [record for record in records if record.round > self.last]
        for batch in self._batches(missing):
            self._client.log_batch(self.run_id, metrics=batch)
            self.last = max((row.step for row in batch if row.key == MARK), default=self.last)
        self._offset = offset
        return len(missing)

    def finish(self) -> list[str]:
        """Send the artifacts that are new or changed and the run's status; returns the artifacts that are gone."""
        about, notes = read_json(self.folder / "run.json"), read_json(self.folder / "tracking.json")
        sent, gone = notes[shown(self.uri)].setdefault("artifacts", {}), []
        for name in [*about["artifacts"], "metrics.jsonl"]:
            path = self.folder / name
            if not path.exists():
                gone.append(name)
                continue
            stamp = [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in sorted([path, *path.rglob("*")])]
            if sent.get(name) == stamp:
                continue
            inside = "" if Path(name).is_absolute() else Path(name).parent.as_posix().removeprefix(".")
            self._client.log_artifact(self.run_id, str(path), inside or None)
            sent[name] = stamp
            write_json(self.folder / "tracking.json", notes)
        if about["status"] != "RUNNING":
            self._client.set_terminated(self.run_id, about["status"], int(about["ended"] * 1000))
        return gone

    def _connect(self) -> None:
        """Open the store, find or make the run, log what it is, and ask how far it got."""
        about = read_json(self.folder / "run.json")
        if self._client is None:
            self._client = _open_store(self.uri)
        experiment = self._experiment(about["experiment"])
        run = self._find(about, experiment)
        self._resumed = run is not None
        if run is None:
            tags = {"anchorfl.run": about["id"]}
            run = self._client.create_run(experiment, int(about["created"] * 1000), tags, about["name"])
        notes = read_json(self.folder / "tracking.json")
        notes.setdefault(shown(self.uri), {})["run_id"] = run.info.run_id
        write_json(self.folder / "tracking.json", notes)
        if run.info.status != "RUNNING" and about["status"] == "RUNNING":
            self._client.update_run(run.info.run_id, status="RUNNING")
        self._describe(run, about)
        history = self._client.get_metric_history(run.info.run_id, MARK) if self._resumed else []
        self.last = max((row.step for row in history), default=-1)
        self.run_id = run.info.run_id

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            # beside the database; MLflow's own default would be ./mlruns of whatever folder the run started in
            place = Path(self.uri.removeprefix("sqlite:///")).parent / "mlartifacts" / re.sub(r"[^\w.-]", "_", name)
            return str(self._client.create_experiment(name, place.as_uri() if self.uri.startswith("sqlite") else None))
        return str(found.experiment_id)

    def _find(self, about: dict[str, Any], experiment: str) -> Any:
        """The MLflow run of this folder: by the id in tracking.json, else by tag (killed before the id was written)."""
        from mlflow.exceptions import MlflowException

        known = read_json(self.folder / "tracking.json").get(shown(self.uri), {}).get("run_id")
        if known:
            try:
                run = self._client.get_run(known)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                if run.info.lifecycle_stage == "active":
                    return run
        found = self._client.search_runs([experiment], f"tags.`anchorfl.run` = '{about['id']}'", max_results=1)
        return found[0] if found else None

    def _describe(self, run: Any, about: dict[str, Any]) -> None:
        """Params, tags and data sets. A param of a resumed run that changed becomes a tag, as params cannot change."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        old, tags = run.data.params, {_key(key): str(value) for key, value in about["tags"].items()}
        params = {_key(key): str(value)[:VALUE_LENGTH] for key, value in about["params"].items()}
        tags |= {
            f"resumed/{key}"[:KEY_LENGTH]: params[key] for key in params if old.get(key, params[key]) != params[key]
        }
        rows = [Param(key, value) for key, value in params.items() if key not in old]
        for start in range(0, len(rows), PARAMS_PER_BATCH):
            self._client.log_batch(run.info.run_id, params=rows[start : start + PARAMS_PER_BATCH])
        labels = [RunTag(key, value[:VALUE_LENGTH]) for key, value in tags.items()]
        for start in range(0, len(labels), PARAMS_PER_BATCH):
            self._client.log_batch(run.info.run_id, tags=labels[start : start + PARAMS_PER_BATCH])
        inputs = [
            DatasetInput(
                Dataset(name, digest[:DIGEST_LENGTH], "local", json.dumps({"uri": source})),
                [InputTag("mlflow.data.context", split)],
            )
            for name, digest, split, source in about["datasets"]
        ]
        if inputs and not run.inputs.dataset_inputs:
            self._client.log_inputs(run.info.run_id, inputs)

    def _batches(self, records: list[RoundRecord]) -> Iterator[list[Any]]:
        """Metrics of many rounds in few requests: rounds stay whole unless one alone is over MLflow's limit."""
        pending: list[Any] = []
        for record in records:
            rows = _metrics(record)
            if self._resumed and len(rows) > METRICS_PER_BATCH and record is records[0]:  # may be there in part
                rows = rows[bisect_left(rows, True, key=lambda row: not self._has(row)) :]  # what came is a prefix
            if pending and len(pending) + len(rows) > METRICS_PER_BATCH:
                yield pending
                pending = []
            pending += rows
            while len(pending) > METRICS_PER_BATCH:
                yield pending[:METRICS_PER_BATCH]
                pending = pending[METRICS_PER_BATCH:]
        if pending:
            yield pending

    def _has(self, row: Any) -> bool:
        return any(old.step == row.step for old in self._client.get_metric_history(self.run_id, row.key))


def _key(name: str) -> str:
    return re.sub(r"[^\w./: -]", "_", name)[:KEY_LENGTH]


def _metrics(record: RoundRecord) -> list[Any]:
    """MLflow metrics of a round: the finite ones (MLflow stores infinity as 1.8e308), then the count of the others."""
    from mlflow.entities import Metric

    finite = {key: value for key, value in sorted(record.metrics.items()) if math.isfinite(value) and key != MARK}
    count = len(record.metrics) - len(finite) - (MARK in record.metrics) + record.metrics.get(MARK, 0)
    when = int(record.time * 1000)
    return [Metric(_key(key), value, when, record.round) for key, value in (finite | {MARK: float(count)}).items()]


def _open_store(uri: str) -> Any:
    """An ``MlflowClient``. The import costs seconds, so it stands here, on the thread that sends."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    with _IMPORT:
        import mlflow

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # its INFO lines break a progress display
        if uri.startswith("sqlite:///"):
            _make_database(Path(uri.removeprefix("sqlite:///")), mlflow.MlflowClient)
        return mlflow.MlflowClient(tracking_uri=uri)


def _make_database(path: Path, client: Callable[..., Any]) -> None:
    """A new database, there whole or not at all.

    MLflow's first migration takes seconds, and one that is killed leaves a file that MLflow can never open again
    (measured with 3.17.2).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)  # of the folder: released by any death, and no lock file stays behind
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            client(tracking_uri=f"sqlite:///{folder}/mlflow.db")
            with closing(sqlite3.connect(f"{folder}/mlflow.db")) as made, closing(sqlite3.connect(draft)) as kept:
                made.backup(kept)
        draft.replace(path)
    finally:
        os.close(lock)
