"""The records of a sweep: a run folder for the sweep and one per trial, and from there MLflow, by one writer.

In MLflow the experiment is the study, the sweep a parent run, every trial a child. They are found again by the tag that
``anchorfl.pipeline.storage.run_record`` gives a folder, so that a resumed sweep doubles none.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anchorfl.pipeline.config.experiment import Experiment, digest, flat
from anchorfl.pipeline.run.provenance import check_same_data, run_info
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo, Status, read_metadata, read_records
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.pipeline.tracking.mlflow_run_tree import MlflowTreeUploader
from anchorfl.pipeline.tracking.mlflow_store import store_uri
from anchorfl.pipeline.tracking.mlflow_writer import LOCAL_WAIT_S, SERVER_WAIT_S, MlflowWriter
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tuning.search.backup import move_aside
from anchorfl.tuning.search.results import Trial
from anchorfl.tuning.search.study import Entry

ENDED: Mapping[str, Status] = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}
"""MLflow has no word for a trial that the scheduler stopped, which did what it was asked to."""
RECORD = ("metrics.jsonl", "tracking.json", "error.txt", "run.json")
"""The record of a trial beside the run folders of its seeds. What says whose it is comes last."""


@dataclass
class Records:
    """Writes what the conductor tells it. experiment_of: the experiment of a point, with the first seed; setups: by
    seed; about: parameters of the sweep itself; say: takes a line for a person.
    """

    folder: Path
    experiment: Experiment
    run_specs: Mapping[int, RunSpec]
    experiment_of: Callable[[Mapping[str, Any]], Experiment]
    about: dict[str, Any]
    metric: str
    log: Callable[[str], None]
    _trials: dict[int, JsonLines] = field(default_factory=dict)
    _known: dict[int, int] = field(default_factory=dict)
    _ended: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        """InputError where the sweep has trials on data that are prepared otherwise now."""
        check_same_data(self._base().tags, self.folder)

    def begin(self) -> None:
        """Open the sweep's own record and start the writer."""
        base, run_spec = self._base(), next(iter(self.run_specs.values()))
        rows = read_records(self.folder)[0]
        self._rows = max((r.round for r in rows), default=-1)
        self._parent = JsonLines(self.folder, self._rows + 1)
        params = {**{k: v for k, v in flat(run_spec.experiment).items() if k not in ("seed", "output")}, **self.about}
        self._parent.begin(replace(base, name=self.folder.name, params=params, folder=self.folder))
        options = self.experiment.tracking
        uri = store_uri(options.uri, self.folder)
        self._deliveries = MlflowTreeUploader(self.folder, uri) if uri else None
        self._writer = None
        if self._deliveries is not None:
            wait = LOCAL_WAIT_S if uri.startswith("sqlite") else SERVER_WAIT_S
            self._writer = MlflowWriter(self.folder, uri, self.log, timeout_s=wait, uploader=self._deliveries)
            self._writer.begin(base)

    def trial_folder(self, number: int) -> Path:
        """Folder of a trial: its record, and a run folder per seed."""
        return self.folder / "trials" / f"{number:04d}"

    def suggested(self, entry: Entry) -> None:
        """Open the record of a trial; one that an earlier start closed stays as it is."""
        folder, experiment, base = self.trial_folder(entry.number), self.experiment_of(entry.point), self._base()
        about = read_metadata(folder)
        if about and about["tags"].get("config_digest", digest(experiment)) != digest(
            experiment
        ):  # the end of a ledger was lost
            self.log(f"{folder} held the record of another point: moved to {move_aside(folder, RECORD)}")
            about = {}
        self._send(folder)
        if about.get("status") in ENDED.values():
            return
        rows = read_records(folder)[0]
        self._known[entry.number] = max((r.round for r in rows), default=0)
        journal = JsonLines(folder, self._known[entry.number] + 1 if rows else 0)
        params = {**flat(experiment), "seed": self.about["seeds"], "trial": entry.number}
        tags = {**base.tags, "config_digest": digest(experiment), "trial": entry.trial_id}
        info = replace(base, name=f"{self.folder.name}-{entry.trial_id}", params=params, tags=tags, folder=folder)
        journal.begin(replace(info, parent=self.folder))
        self._trials[entry.number] = journal

    def reported(self, entry: Entry, round_: int) -> None:
        """Keep a round of a trial, unless an earlier start did."""
        if entry.number not in self._trials or round_ <= self._known[entry.number]:
            return
        record = entry.records[round_]
        metrics = {**record["metrics"], **{f"{self.metric}/seed_{s}": v for s, v in record["scores"].items()}}
        if len(record["scores"]) > 1:
            metrics[f"{self.metric}/sd"] = statistics.stdev(record["scores"].values())
        self._trials[entry.number].round(RoundRecord(round_, time.time(), metrics))
        self._known[entry.number] = round_
        self._send(self.trial_folder(entry.number))

    def ended(self, entry: Entry) -> None:
        """Close the record of a trial; count it in the sweep's."""
        journal = self._trials.pop(entry.number, None)
        if journal is not None:
            if entry.trace:
                (journal.folder / "error.txt").write_text(entry.trace, encoding="utf-8")
                journal.artifact(journal.folder / "error.txt")
            journal.end(ENDED[entry.status])
        self._ended[entry.status] = self._ended.get(entry.status, 0) + 1
        if entry.records:
            score = entry.records[entry.rounds]["score"]
            whole = f"{self.metric}/{'whole' if entry.status == 'finished' else 'stopped'}"
            self._count({whole: score, "trial": float(entry.number)})
        else:
            self._count({"trial": float(entry.number)})
        self._send(self.trial_folder(entry.number))

    def add(self, folder: Path) -> None:
        """Deliver a further run folder, whose record another process wrote."""
        self._send(folder)

    def look(self) -> None:
        """Send what has come since."""
        if self._writer is not None:
            self._writer.wake()

    def artifact(self, path: Path) -> None:
        """Keep a file or folder of the sweep."""
        self._parent.artifact(path)

    def end(self, status: Status) -> None:
        """Close the sweep's record and wait for the writer."""
        self._parent.end(status)
        if self._writer is not None:
            self._writer.end(status)

    def _count(self, metrics: dict[str, float]) -> None:
        done = sum(self._ended.values())
        if done > self._rows:
            counts = {f"trials/{status}": float(n) for status, n in self._ended.items()}
            self._parent.round(RoundRecord(done, time.time(), metrics | counts))
            self._rows = done

    def _send(self, folder: Path) -> None:
        if self._deliveries is not None and self._writer is not None:
            self._deliveries.add(folder)
            self.look()

    def _base(self) -> RunInfo:
        """What all records share: study, data sets, digests over all seeds."""
        infos = [run_info(run_spec, self.folder) for run_spec in self.run_specs.values()]
        tags = {k: ",".join(dict.fromkeys(i.tags[k] for i in infos)) for k in infos[0].tags}
        study = self.experiment.tracking.experiment or infos[0].experiment
        return replace(infos[0], experiment=study, tags={**tags, "config_digest": digest(self.experiment)})


def as_trial(entry: Entry) -> Trial:
    """An entry as the report takes it."""
    curves: dict[int, dict[int, float]] = {}
    for round_, record in sorted(entry.records.items()):
        for seed, score in record["scores"].items():
            curves.setdefault(int(seed), {})[round_] = score
    last = entry.records.get(entry.rounds, {})
    return Trial(
        number=entry.number,
        point=entry.point,
        status=entry.status,  # type: ignore[arg-type]  # the words are the ledger's
        curves=curves,
        seconds=last.get("seconds", 0.0),
        training_seconds=last.get("training_seconds", 0.0),
        error=entry.error,
    )
