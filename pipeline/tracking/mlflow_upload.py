"""Upload a run folder to MLflow, exactly once, resuming where the last upload stopped.

Only ``MlflowClient`` is used, never MLflow's active run, so several runs of one process do not meet.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.storage.atomic_files import read_json, write_json
from anchorfl.pipeline.storage.named_files import named_files
from anchorfl.pipeline.storage.run_record import (
    FINAL_SCORES,
    RoundRecord,
    read_metadata,
    read_records,
    with_final_scores,
)
from anchorfl.pipeline.tracking import mlflow_entities, mlflow_store
from anchorfl.pipeline.tracking.mlflow_entities import (
    KEY_LENGTH,
    METRICS_PER_BATCH,
    PARAMS_PER_BATCH,
    PARENT_TAG,
    ROUND_COMPLETE,
    RUN_TAG,
    SCORE,
    TRIAL_STATUS,
)
from anchorfl.pipeline.tracking.mlflow_model import send_model
from anchorfl.pipeline.tracking.mlflow_store import artifact_uri, check_artifact_place, open_store, sync_command
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import type_error

NOTES = "tracking.json"
"""File of a run folder that says what was sent where."""


class SentNotes(TypedDict):
    """The content of ``tracking.json`` for one store."""

    run_id: NotRequired[str]
    """Id of the MLflow run."""
    artifacts: NotRequired[dict[str, list[Any]]]
    """Artifact -> stamp of its files when it was sent."""
    model: NotRequired[str]
    """Id of the MLflow model."""


def read_notes(folder: Path) -> dict[str, Any]:
    """Return ``tracking.json`` of a run folder: store -> ``SentNotes``; {} where there is none.

    Raises InputError where it is damaged.
    """
    notes = read_json(folder / NOTES)
    if fault := type_error(notes, dict[str, SentNotes]):
        raise InputError(f"{folder / NOTES} is damaged ({fault}); delete it: runs are found by their tags, too")
    return notes


class MlflowUploader:
    """The uploader of one run folder into one MLflow store. Every step may be repeated: it sends what is missing."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = folder, uri
        self.last = -1  # last round that stands in MLflow
        self.run_id = ""
        self._client: Any = None
        self._begun: float | None = None  # when the run that we know was begun or resumed
        self._inode = 0  # of the metrics.jsonl that the offset belongs to
        self._offset = 0
        self._resumed = False

    def lock(self) -> AbstractContextManager[object]:
        """Return the lock to hold while sending."""
        return mlflow_store.lock(self.uri)

    def upload_new(self) -> int:
        """Send all rounds that MLflow lacks; return their number. Nothing new: no request."""
        metadata = read_metadata(self.folder)
        if not self.run_id or metadata.get("begun") != self._begun:
            self._connect(metadata)
        path = self.folder / "metrics.jsonl"
        inode = path.stat().st_ino if path.exists() else 0
        if inode != self._inode:  # a run that is resumed writes its records anew
            self._inode, self._offset = inode, 0
        records, offset = read_records(self.folder, self._offset)
        missing = [record for record in records if record.round > self.last]
        for batch in self._batches(missing):
            self._client.log_batch(self.run_id, metrics=batch)
            self.last = max((row.step for row in batch if row.key == ROUND_COMPLETE), default=self.last)
        self._offset = offset
        return len(missing)

    def upload_final(self) -> list[str]:
        """Send the model, new and changed artifacts and the run's status; return the artifacts that are gone."""
        metadata, notes = read_metadata(self.folder), read_notes(self.folder)
        entry, missing = notes[redact(self.uri)], []
        sent = entry.setdefault("artifacts", {})
        for name in [*metadata["artifacts"], "metrics.jsonl"]:
            path, files = self.folder / name, named_files(self.folder, name, self.folder / "run.json")
            if not files:
                missing.append(name)
                continue
            stamp = [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in files]
            is_model = metadata.get("log_model", True) and (path / "model.json").is_file()
            if is_model:
                stamp.append(["register", metadata.get("register", "")])
            if sent.get(name) == stamp:
                continue
            if is_model:
                entry["model"] = send_model(self._client, self.run_id, path, metadata, with_final_scores(self.folder))
            else:
                self._send_metrics(path)
                self._send(path, Path(name).parent.as_posix().removeprefix(".") or None)
            sent[name] = stamp
            write_json(self.folder / NOTES, notes)
        if metadata["status"] != "RUNNING":
            if status := metadata["tags"].get(TRIAL_STATUS):  # it came after the others
                self._client.set_tag(self.run_id, TRIAL_STATUS, status)
            self._client.set_terminated(self.run_id, metadata["status"], int(metadata["ended"] * 1000))
        return missing

    def _send_metrics(self, path: Path) -> None:
        """Send the metrics.jsonl of what was measured after the run, without what MLflow has already.

        ``pipeline/diagnosis/diagnose.py`` writes such a folder.
        """
        records = read_records(path)[0] if path.is_dir() else []
        rows = [row for record in records for row in mlflow_entities.metrics(record) if row.key != ROUND_COMPLETE]
        if path.name == FINAL_SCORES and (rounds := read_records(self.folder)[0]):
            rows = [mlflow_entities.at_step(row, rounds[-1].round) if row.key == SCORE else row for row in rows]
        logged: dict[tuple[str, int], float] = {}
        for key in {row.key for row in rows}:
            history = self._client.get_metric_history(self.run_id, key)
            logged |= {(key, row.step): row.value for row in sorted(history, key=lambda row: row.timestamp)}
        missing = [row for row in rows if logged.get((row.key, row.step)) != row.value]
        for start in range(0, len(missing), METRICS_PER_BATCH):
            self._client.log_batch(self.run_id, metrics=missing[start : start + METRICS_PER_BATCH])

    def _send(self, path: Path, inside: str | None) -> None:
        """Send an artifact; a JSON file that names this store goes without the password in its address."""
        text = path.read_text(encoding="utf-8") if path.suffix == ".json" and redact(self.uri) != self.uri else ""
        if self.uri not in text:
            self._client.log_artifact(self.run_id, str(path), inside)
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copy(path, folder))
            copy.write_text(text.replace(self.uri, redact(self.uri)), encoding="utf-8")
            self._client.log_artifact(self.run_id, str(copy), inside)

    def _connect(self, metadata: dict[str, Any]) -> None:
        """Open the store, find or make the run, log what it is, and ask how far it got."""
        self.run_id = ""
        if self._client is None:
            self._client = open_store(self.uri)
        experiment = self._experiment(metadata["experiment"])
        identity_tags = {RUN_TAG: metadata["id"]} | self._parent(metadata, experiment)
        run = self._find(metadata, experiment)
        self._resumed = run is not None
        if run is None:
            identity_tags |= mlflow_entities.first_tags(metadata)
            run = self._client.create_run(experiment, int(metadata["created"] * 1000), identity_tags, metadata["name"])
        notes = read_notes(self.folder)
        if notes.get(redact(self.uri), {}).get("run_id", run.info.run_id) != run.info.run_id:
            del notes[redact(self.uri)]  # what was sent is gone with the run that it was sent to
        notes.setdefault(redact(self.uri), {})["run_id"] = run.info.run_id
        write_json(self.folder / NOTES, notes)
        if run.info.status != "RUNNING" and metadata["status"] == "RUNNING":
            self._client.update_run(run.info.run_id, status="RUNNING")
        self._describe(run, metadata, identity_tags)
        history = self._client.get_metric_history(run.info.run_id, ROUND_COMPLETE) if self._resumed else []
        self.last = max((row.step for row in history), default=-1)
        self._inode = self._offset = 0
        self.run_id, self._begun = run.info.run_id, metadata.get("begun")

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, artifact_uri(self.uri, self.folder, name)))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = self._client.get_experiment_by_name(name)  # another run made it in between
        check_artifact_place(self.uri, experiment.artifact_location)
        return str(experiment.experiment_id)

    def _parent(self, metadata: dict[str, Any], experiment: str) -> dict[str, str]:
        """Return the tag that puts a run below its parent; {} where it has none.

        Raises LookupError where the parent is not there yet.
        """
        if not metadata.get("parent"):
            return {}
        folder = self.folder / metadata["parent"]
        if set(folder.relative_to(self.folder).parts) != {".."}:
            raise InputError(f"{self.folder / 'run.json'} names {folder} as the parent run, which does not hold it")
        parent = read_metadata(folder)
        if not parent:
            raise InputError(f"{folder} has no run.json, but {self.folder / 'run.json'} names it as the parent run")
        run = self._search(parent["id"], experiment)
        if run is None:
            raise LookupError(
                f"its parent run is not there yet; send it with: {sync_command(folder.resolve(), self.uri)}"
            )
        return {PARENT_TAG: run.info.run_id}

    def _search(self, identity: str, experiment: str) -> Any:
        runs = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{identity}'", max_results=1)
        return runs[0] if runs else None

    def _find(self, metadata: dict[str, Any], experiment: str) -> Any:
        """Return the folder's MLflow run: by the id in tracking.json, else by tag (killed before that was written)."""
        from mlflow.exceptions import MlflowException

        known = read_notes(self.folder).get(redact(self.uri), {}).get("run_id")
        if known:
            try:
                run = self._client.get_run(known)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                if run.info.lifecycle_stage == "active":
                    return run
        return self._search(metadata["id"], experiment)

    def _describe(self, run: Any, metadata: dict[str, Any], identity_tags: dict[str, str]) -> None:
        """Log params, tags and data sets.

        A param of a resumed run that changed becomes a tag, as params cannot change.
        """
        from mlflow.entities import Param, RunTag

        old, params = run.data.params, mlflow_entities.params(metadata)
        changed = {name: value for name, value in params.items() if old.get(name, value) != value}
        resumed = {f"resumed/{name}"[:KEY_LENGTH]: value for name, value in changed.items()}
        tags = identity_tags | mlflow_entities.tags(metadata) | resumed
        rows = [Param(name, value) for name, value in params.items() if name not in old]
        labels = [RunTag(name, value) for name, value in tags.items() if run.data.tags.get(name) != value]
        for start in range(0, max(len(rows), len(labels)), PARAMS_PER_BATCH):
            stop = start + PARAMS_PER_BATCH
            self._client.log_batch(run.info.run_id, params=rows[start:stop], tags=labels[start:stop])
        inputs = mlflow_entities.datasets(metadata)
        if inputs and not run.inputs.dataset_inputs:
            self._client.log_inputs(run.info.run_id, inputs)

    def _batches(self, records: list[RoundRecord]) -> Iterator[list[Any]]:
        """Yield the metrics of many rounds in few requests.

        Rounds stay whole unless one alone is over MLflow's limit.
        """
        pending: list[Any] = []
        for record in records:
            rows = mlflow_entities.metrics(record)
            if self._resumed and len(rows) > METRICS_PER_BATCH and record is records[0]:  # may be there in part
                rows = rows[self._count_logged(rows) :]
            if pending and len(pending) + len(rows) > METRICS_PER_BATCH:
                yield pending
                pending = []
            pending += rows
            while len(pending) > METRICS_PER_BATCH:
                yield pending[:METRICS_PER_BATCH]
                pending = pending[METRICS_PER_BATCH:]
        if pending:
            yield pending

    def _count_logged(self, rows: list[Any]) -> int:
        """Return how many of a round's metrics MLflow has, by binary search: what came of them is a prefix."""
        return bisect_left(rows, True, key=lambda row: not self._is_logged(row))

    def _is_logged(self, row: Any) -> bool:
        return any(old.step == row.step for old in self._client.get_metric_history(self.run_id, row.key))
