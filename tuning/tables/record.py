"""The record of a table in MLflow: one run for the page of a call, and the way there for the runs that it made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.storage.atomic_files import read_json
from anchorfl.pipeline.storage.run_folder import CONFIG, check_no_record
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo, Status, read_metadata, read_records
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.pipeline.tracking.mlflow_run_tree import MlflowTreeUploader
from anchorfl.pipeline.tracking.mlflow_store import store_uri
from anchorfl.pipeline.tracking.mlflow_upload import read_notes
from anchorfl.pipeline.tracking.mlflow_writer import MlflowWriter
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.plugins import version_of
from anchorfl.tuning.tables.statistics import Table

EXPERIMENT = "tables"
"""MLflow's experiment of all tables."""


class TableRecord:
    """A run folder in ``out`` of kind table.

    A call that changes the page's numbers adds a step: the number of runs that the table has, or the next one where it
    has as many as before. A call with other options is a run of its own. runs: beside it lies the default store; uri:
    as ``tracking.uri``; params: arguments of the call. InputError where ``out`` holds a run of another kind.
    """

    def __init__(
        self, out: Path, runs: Path, uri: str, params: dict[str, str | int], log: Callable[[str], None]
    ) -> None:
        if (out / CONFIG).exists():
            raise InputError(f"{out} holds a run: give another --out")
        check_no_record(out, ("sweep", "trial"))
        self.folder, self.uri = out, store_uri(uri, runs / "any")
        tags = {"kind": "table", "table": str(params["table"]), "anchorfl": version_of("anchorfl")}
        info = RunInfo(name=out.name, experiment=EXPERIMENT, params=dict(params), tags=tags, folder=out)
        records = read_records(out)[0] if read_metadata(out).get("params") == info.params else []
        self.last_step = max((record.round for record in records), default=-1)
        self.metrics = records[-1].metrics if records else {}
        self.run_record = JsonLines(out, self.last_step + 1)
        self.run_record.begin(info)
        self.writer: MlflowWriter | None = None
        if self.uri:
            self.tree_uploader = MlflowTreeUploader(out, self.uri)
            self.writer = MlflowWriter(out, self.uri, log, uploader=self.tree_uploader)
            self.writer.begin(info)

    def notify(self, folder: Path | None) -> None:
        """Upload a run that has begun or ended; None: what the known ones have done since."""
        if self.writer is not None:
            if folder is not None:
                self.tree_uploader.add(folder)
            self.writer.wake()

    def upload_missing(self, folders: Sequence[Path]) -> None:
        """Upload those finished runs that should stand in this store, by their own options, and do not.

        An earlier call was killed before they were sent.
        """
        for folder in folders if self.writer is not None else ():
            tracking = read_json(folder / CONFIG).get("tracking", {})
            sent = read_notes(folder).get(redact(self.uri), {}).get("artifacts", {})
            if "metrics.jsonl" not in sent and store_uri(tracking.get("uri", "none"), folder) == self.uri:
                self.notify(folder)

    def keep_page(self, table: Table, files: Sequence[Path]) -> None:
        """Keep the page's files, and its means and costs as metrics."""
        metrics = {"runs": float(len(table.finished)), "cpu_hours": table.hours}
        means = {f"{entry.row.key}/{entry.metric.published}": entry.mean for entry in table.entries}
        for row in table.rows:
            cost = table.cost(row)
            means |= {f"{row.key}/mb_down": cost.down, f"{row.key}/mb_up": cost.up}
        metrics |= {name: value for name, value in means.items() if value is not None}
        if metrics != self.metrics:  # runs may be other ones of the same number
            self.run_record.round(RoundRecord(max(len(table.finished), self.last_step + 1), time.time(), metrics))
        for path in files:
            self.run_record.artifact(path)

    def end(self, status: Status) -> None:
        """Close the record and wait for the writer."""
        self.run_record.end(status)
        if self.writer is not None:
            self.writer.end(status)
