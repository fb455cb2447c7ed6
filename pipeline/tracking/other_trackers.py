"""Trackers beside the run folder and MLflow: TensorBoard's, Weights & Biases', and those of plug-ins.

None of them can end a run: one that fails is named, and left out from then on. ``metrics.jsonl`` has every number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo, Status
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.tracking.tracker import Tracker
from anchorfl.tasks.errors import InputError, first_line
from anchorfl.tasks.plugins import TRACKER, check_name_is_free, find_plugin

HOME = {"tensorboard": "tensorboard:TensorBoard", "wandb": "weights_and_biases:WeightsAndBiases"}
"""Name of a tracker -> module of this folder, and class."""
WHERE = "[tracking] trackers"
MakeTracker = Callable[[Path, int], Tracker]
"""Makes a tracker of a run folder, for a run whose next round has this number; 0: a new one."""


def find_trackers(names: str) -> list[tuple[str, MakeTracker]]:
    """Return each tracker's name and what makes it. names: with commas between. InputError where there is none."""
    return [(name, _find(name)) for name in (part.strip() for part in names.split(",")) if name]


def _find(name: str) -> MakeTracker:
    if name in HOME:
        check_name_is_free(TRACKER, name, f"{WHERE} = {name!r}", HOME)
        module, _, class_name = HOME[name].partition(":")
        try:
            found: Any = getattr(import_module(f"anchorfl.pipeline.tracking.{module}"), class_name)
        except ImportError as error:
            raise InputError(f"{WHERE} = {name!r} needs another package: pip install 'anchorfl[{name}]'") from error
    else:
        found = find_plugin(TRACKER, name, WHERE, HOME)
    if not callable(found):
        raise InputError(f"{WHERE} = {name!r}: a {type(found).__name__}, and no class that makes a tracker")
    return found  # type: ignore[no-any-return]  # whether it is one shows when it is called


def open_others(names: str, folder: Path, resume_at: int, log: Log) -> Sequence[Tracker]:
    """Return the trackers of a run; one that cannot be made is named, and left out."""
    return [_Guarded(name, make, folder, resume_at, log) for name, make in find_trackers(names)]


class _Guarded:
    """A tracker whose failures are said once and cost the run nothing."""

    def __init__(self, name: str, make: MakeTracker, folder: Path, resume_at: int, log: Log) -> None:
        self.name, self.log = name, log
        self.tracker: Tracker | None = None
        self._do(lambda: setattr(self, "tracker", make(folder, resume_at)))

    def begin(self, info: RunInfo) -> None:
        self._call("begin", info)

    def round(self, record: RoundRecord) -> None:
        self._call("round", record)

    def artifact(self, path: Path) -> None:
        self._call("artifact", path)

    def end(self, status: Status) -> None:
        self._call("end", status)

    def _call(self, verb: str, argument: Any) -> None:
        if self.tracker is not None:
            tracker = self.tracker
            self._do(lambda: getattr(tracker, verb)(argument))

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # it is anybody's code
            self.tracker = None
            self.log(f"tracker {self.name} failed and gets nothing more ({first_line(error)}); the run goes on")
