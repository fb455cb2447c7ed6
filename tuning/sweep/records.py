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
from anchorfl.pipeline.run.provenance import check_same_inputs, run_info
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo, Status, read_metadata, read_records
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.pipeline.tracking.mlflow_entities import TRIAL_STATUS
from anchorfl.pipeline.tracking.mlflow_run_tree import MlflowTreeUploader
from anchorfl.pipeline.tracking.mlflow_store import store_uri
from anchorfl.pipeline.tracking.mlflow_writer import MlflowWriter
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tuning.search.backup import move_aside
from anchorfl.tuning.search.results import Trial
from anchorfl.tuning.search.search_space import PRESET
from anchorfl.tuning.search.study import TrialState
from anchorfl.tuning.search.trial import as_trained

ENDED: Mapping[str, Status] = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}
"""MLflow has no word for a trial that the scheduler stopped, which did what it was asked to."""
RECORD = ("metrics.jsonl", "tracking.json", "error.txt", "run.json")
"""The record of a trial beside the run folders of its seeds. What says whose it is comes last."""


@dataclass
class SweepRecords:
    """An observer that writes the records of a sweep and of its trials."""

    folder: Path
    """The sweep's folder."""
    experiment: Experiment
    """The preset with its overrides."""
    run_specs: Mapping[str, Mapping[int, RunSpec]]
    """Preset -> seed of the search -> data and class-name vectors."""
    experiment_of: Callable[[Mapping[str, Any]], Experiment]
    """Returns the experiment of a point, with the first seed."""
    params: dict[str, Any]
    """Parameters of the sweep itself."""
    metric: str
    """``validation/f1_macro``, for example."""
    log: Callable[[str], None]
    """Takes a line for a person."""
    _open_records: dict[int, JsonLines] = field(default_factory=dict)
    _written_rounds: dict[int, int] = field(default_factory=dict)
    _end_counts: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        """Raise InputError where the sweep has trials on data that are prepared otherwise now."""
        check_same_inputs(self._shared_info().tags, self.folder)

    def begin(self) -> None:
        """Open the sweep's own record and start the writer."""
        base, run_spec = self._shared_info(), next(iter(next(iter(self.run_specs.values())).values()))
        rows = read_records(self.folder)[0]
        self._rows = max((r.round for r in rows), default=-1)
        self._sweep_record = JsonLines(self.folder, self._rows + 1)
        params = {**{k: v for k, v in flat(run_spec.experiment).items() if k not in ("seed", "output")}, **self.params}
        tags = {**base.tags, "kind": "sweep"}
        self._sweep_record.begin(replace(base, name=self.folder.name, params=params, tags=tags, folder=self.folder))
        options = self.experiment.tracking
        uri = store_uri(options.uri, self.folder)
        self._uploader = MlflowTreeUploader(self.folder, uri) if uri else None
        self._writer = None
        if self._uploader is not None:
            self._writer = MlflowWriter(self.folder, uri, self.log, uploader=self._uploader)
            self._writer.begin(base)

    def trial_folder(self, number: int) -> Path:
        """Return the folder of a trial: its record, and a run folder per seed."""
        return self.folder / "trials" / f"{number:04d}"

    def on_suggest(self, trial: TrialState) -> None:
        """Open the record of a trial; one that an earlier start closed stays as it is."""
        folder, experiment = self.trial_folder(trial.number), self.experiment_of(trial.point)
        base = self._shared_info(trial.point)
        metadata = read_metadata(folder)
        if metadata and metadata["tags"].get("config_digest", digest(experiment)) != digest(
            experiment
        ):  # the end of a ledger was lost
            self.log(f"{folder} held the record of another point: moved to {move_aside(folder, RECORD)}")
            metadata = {}
        self._send(folder)
        if metadata.get("status") in ENDED.values():
            return
        rows = read_records(folder)[0]
        self._written_rounds[trial.number] = max((r.round for r in rows), default=0)
        run_record = JsonLines(folder, self._written_rounds[trial.number] + 1 if rows else 0)
        trained = as_trained(experiment, int(self.params["sweep.rounds"]))
        params = {**flat(trained), "seed": self.params["seeds"], "trial": trial.number}
        tags = {**base.tags, "config_digest": digest(experiment), "trial": trial.trial_id, "kind": "trial"}
        info = replace(base, name=f"{self.folder.name}-{trial.trial_id}", params=params, tags=tags, folder=folder)
        run_record.begin(replace(info, parent=self.folder))
        self._open_records[trial.number] = run_record

    def on_report(self, trial: TrialState, round_: int) -> None:
        """Keep a round of a trial, unless an earlier start did."""
        if trial.number not in self._open_records or round_ <= self._written_rounds[trial.number]:
            return
        record = trial.records[round_]
        metrics = {**record["metrics"], **{f"{self.metric}/seed_{s}": v for s, v in record["scores"].items()}}
        if len(record["scores"]) > 1:
            metrics[f"{self.metric}/sd"] = statistics.stdev(record["scores"].values())
        self._open_records[trial.number].round(RoundRecord(round_, time.time(), metrics))
        self._written_rounds[trial.number] = round_
        self._send(self.trial_folder(trial.number))

    def on_end(self, trial: TrialState) -> None:
        """Close the record of a trial; count it in the sweep's."""
        run_record = self._open_records.pop(trial.number, None)
        if run_record is not None:
            if trial.trace:
                write_atomically(run_record.folder / "error.txt", trial.trace.encode())
                run_record.artifact(run_record.folder / "error.txt")
            run_record.end(ENDED[trial.status], {TRIAL_STATUS: trial.status})
        self._end_counts[trial.status] = self._end_counts.get(trial.status, 0) + 1
        if trial.records:
            score = trial.records[trial.rounds]["score"]
            whole = f"{self.metric}/{'whole' if trial.status == 'finished' else 'stopped'}"
            self._count({whole: score, "trial": float(trial.number)})
        else:
            self._count({"trial": float(trial.number)})
        self._send(self.trial_folder(trial.number))

    def add(self, folder: Path) -> None:
        """Upload a further run folder, whose record another process wrote."""
        self._send(folder)

    def wake_writer(self) -> None:
        """Have what has come since sent."""
        if self._writer is not None:
            self._writer.wake()

    def artifact(self, path: Path) -> None:
        """Keep a file or folder of the sweep."""
        self._sweep_record.artifact(path)

    def end(self, status: Status) -> None:
        """Close the sweep's record and wait for the writer."""
        self._sweep_record.end(status)
        if self._writer is not None:
            self._writer.end(status)

    def _count(self, metrics: dict[str, float]) -> None:
        done = sum(self._end_counts.values())
        if done > self._rows:
            counts = {f"trials/{status}": float(n) for status, n in self._end_counts.items()}
            self._sweep_record.round(RoundRecord(done, time.time(), metrics | counts))
            self._rows = done

    def _send(self, folder: Path) -> None:
        if self._uploader is not None and self._writer is not None:
            self._uploader.add(folder)
            self.wake_writer()

    def _shared_info(self, point: Mapping[str, Any] | None = None) -> RunInfo:
        """Return what the records of a point share, None: those of the first preset: study, data sets, digests over all
        seeds.
        """
        run_specs = self.run_specs[(point or {}).get(PRESET, next(iter(self.run_specs)))]
        infos = [run_info(run_spec, self.folder) for run_spec in run_specs.values()]
        tags = {k: ",".join(dict.fromkeys(i.tags[k] for i in infos)) for k in infos[0].tags}
        study = self.experiment.tracking.experiment or infos[0].experiment
        return replace(infos[0], experiment=study, tags={**tags, "config_digest": digest(self.experiment)})


def as_trial(trial: TrialState) -> Trial:
    """Return a trial as the report takes it."""
    curves: dict[int, dict[int, float]] = {}
    for round_, record in sorted(trial.records.items()):
        for seed, score in record["scores"].items():
            curves.setdefault(int(seed), {})[round_] = score
    last = trial.records.get(trial.rounds, {})
    return Trial(
        number=trial.number,
        point=trial.point,
        status=trial.status,  # type: ignore[arg-type]  # the words are the ledger's
        curves=curves,
        seconds=last.get("seconds", 0.0),
        training_seconds=last.get("training_seconds", 0.0),
        expense=last.get("expense", 0.0),
        error=trial.error,
    )
