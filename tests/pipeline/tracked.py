"""Records of made-up runs and sweeps, and what MLflow holds of them."""

from __future__ import annotations

from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.pipeline.tracking.mlflow_run_tree import MlflowTreeUploader
from anchorfl.pipeline.tracking.mlflow_store import open_store

ROUNDS = 3


def info_of(folder, study, parent=None, **changes):
    fields = {"params": {"method": "fedavg", "task": "toy-single", "seed": 0}} | changes
    return RunInfo(name=folder.name, experiment=study, folder=folder, parent=parent, **fields)


def record(number, **extra):
    return RoundRecord(number, 1_700_000_000.0 + number, {"test/f1_macro": number / 10} | extra)


def begin(folder, study, parent=None, *, resume_at=0, **changes):
    record_file = JsonLines(folder, resume_at)
    record_file.begin(info_of(folder, study, parent, **changes))
    return record_file


def rounds(tracker, numbers, **extra):
    for number in numbers:
        tracker.round(record(number, **extra))


def finished(folder, study, parent=None, **extra):
    """Write the record of a run that is over; return its folder."""
    record_file = begin(folder, study, parent)
    rounds(record_file, range(ROUNDS), **extra)
    record_file.end("FINISHED")
    return folder


def sweep(base, study, children, **extra):
    """Write the records of a sweep that is over; return the folders of the parent and of its children."""
    parent = base / "sweep"
    above = begin(parent, study)
    folders = [finished(parent / "trials" / f"{number:04d}", study, parent, **extra) for number in range(children)]
    rounds(above, range(ROUNDS))
    above.end("FINISHED")
    return parent, folders


def tree_of(parent, uri, folders):
    """Return an uploader of a sweep that knows these children."""
    tree_uploader = MlflowTreeUploader(parent, uri)
    for folder in folders:
        tree_uploader.add(folder)
    return tree_uploader


def in_store(uri, study):
    """Return name -> (status, name of the parent, steps) of the runs in MLflow."""
    client = open_store(uri)
    found = client.search_runs([client.get_experiment_by_name(study).experiment_id])
    names = {run.info.run_id: run.info.run_name for run in found}
    assert len(set(names.values())) == len(found)
    return {
        run.info.run_name: (
            run.info.status,
            names.get(run.data.tags.get("mlflow.parentRunId")),
            [row.step for row in client.get_metric_history(run.info.run_id, "test/f1_macro")],
        )
        for run in found
    }


def whole(*folders, parent=None):
    """Return what ``in_store`` gives where every round of these finished runs has arrived."""
    return {folder.name: ("FINISHED", parent, list(range(ROUNDS))) for folder in folders}
