"""Trackers of a run's numbers: first its own folder, which is the truth (``run_record.py``), and from there MLflow.

One background thread per run sends what MLflow lacks, so that a slow or dead server never slows or stops a run.
Sending is idempotent: how far it got is asked of MLflow. tracking.json says which MLflow run a folder became.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo, Status


class Tracker(Protocol):
    """A receiver of a run: ``begin``, then ``round`` and ``artifact`` in any order, then ``end``."""

    def begin(self, info: RunInfo) -> None:
        """Open the record of a run, new or resumed."""

    def round(self, record: RoundRecord) -> None:
        """Keep one round."""

    def artifact(self, path: Path) -> None:
        """Keep a file or folder that exists now and stays where it is."""

    def end(self, status: Status) -> None:
        """Close the record."""


class Trackers:
    """Several trackers as one, called in order; the options' names for experiment and run hold for all."""

    def __init__(self, parts: list[Tracker], options: TrackingOptions) -> None:
        self.parts = parts
        self.options = options

    def begin(self, info: RunInfo) -> None:
        """Open the record of a run."""
        o = self.options
        name, experiment = o.run_name or info.name, o.experiment or info.experiment
        info = replace(info, name=name, experiment=experiment, log_model=o.log_model, register=o.register)
        for part in self.parts:
            part.begin(info)

    def round(self, record: RoundRecord) -> None:
        """Keep one round."""
        for part in self.parts:
            part.round(record)

    def artifact(self, path: Path) -> None:
        """Keep a file or folder."""
        for part in self.parts:
            part.artifact(path)

    def end(self, status: Status) -> None:
        """Close the record."""
        for part in self.parts:
            part.end(status)
