"""The labels that clients do not see, read from the raw data again: for analysis after training alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorfl.pipeline.diagnosis.analysis import Analysis
from anchorfl.pipeline.terminal import Log
from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import ClientData
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.ingest.raw_digest import raw_digest
from anchorfl.tasks.ingest.raw_table import canonicalize_options, given_labels, read_rows
from anchorfl.tasks.registry import task_of


@dataclass(frozen=True, slots=True)
class Truth:
    """The labels of the raw data, in ascending order of the raw ids."""

    labels: Labels
    """Positive labels."""
    given: Labels | None
    """Labels that the raw data have, positive or negative; None: all."""

    def of(self, row_B: Ints) -> tuple[Bools, Bools]:
        """Return labels, and whether the raw data have them, [B, C], of the rows with these ids in ``Prepared``."""
        y_BC = self.labels.take(row_B).matrix()
        return y_BC, np.ones_like(y_BC) if self.given is None else self.given.take(row_B).matrix()


def read_truth(analysis: Analysis, log: Log) -> Truth:
    """Read the raw rows. Raise InputError where they are missing, or not those that the run was prepared from."""
    experiment, manifest = analysis.run_spec.experiment, analysis.prepared.manifest
    task = task_of(experiment.task)
    options = canonicalize_options(task, experiment.task, experiment.seed)
    folder = raw_folder(task, options)
    if raw_digest(task, options, folder) != manifest.raw_digest:
        raise InputError(f"{analysis.folder}: the raw files of {task.name} have changed since: restore them")
    table, task = read_rows(task, options, folder, log)
    table = table.take(np.argsort(table["row"].to_numpy(), kind="stable"))
    labels = Labels.of_lists(table["labels"], len(task.class_names))
    return Truth(labels, given_labels(table, labels.classes))


def check_labels(data: ClientData, y_NC: Bools, client: str) -> None:
    """Raise InputError where the truth contradicts a label that a client was given: it is not that of these rows."""
    known_NC = data.known_NC.numpy() > 0
    if ((data.y_NC.numpy() > 0) != y_NC)[known_NC].any():
        raise InputError(
            f"{client}: its labels are not those of the raw data: prepare the data again and repeat the run"
        )
