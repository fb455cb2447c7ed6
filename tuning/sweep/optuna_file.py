"""The trials of a sweep as a file of Optuna's, for ``optuna-dashboard`` and ``optuna.load_study``.

A copy of the ledger that nothing here reads: every start of a sweep writes it anew, and then appends to it.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.terminal import Log
from anchorfl.tasks.errors import first_line
from anchorfl.tuning.search.ledger import Event
from anchorfl.tuning.search.results import Rule
from anchorfl.tuning.search.search_space import Choice, Dimension, Space, Value
from anchorfl.tuning.search.study import TrialState, read_trials
from anchorfl.tuning.sweep.records import as_trial

FILE = "optuna.log"
STATES = {
    "running": optuna.trial.TrialState.RUNNING,
    "finished": optuna.trial.TrialState.COMPLETE,
    "stopped": optuna.trial.TrialState.PRUNED,
    "failed": optuna.trial.TrialState.FAIL,
}


class OptunaFile:
    """An observer of a search that keeps ``optuna.log`` in the sweep's folder: a study of the folder's name."""

    def __init__(
        self,
        folder: Path,
        space: Space,
        preset_point: Mapping[str, Value],
        rule: Rule,
        events: Sequence[Event],
        log: Log,
        *,
        two: bool = False,
    ) -> None:
        """events: the ledger's so far; the search replays them, and the file has them already. two: the sweep has a
        second objective.
        """
        self.folder, self.rule, self.log, self.two = folder, rule, log, two
        self.distributions = {name: distribution(d, preset_point[name]) for name, d in space.items()}
        self._to_replay = sum(event["event"] != "start" for event in events)
        self._broken = False
        self._do(lambda: self._write(events))

    def on_suggest(self, trial: TrialState) -> None:
        """Add a trial that runs."""
        self._do_new(lambda: self._storage.create_new_trial(self._study, self._frozen(trial, time.time(), 0)))

    def on_report(self, trial: TrialState, round_: int) -> None:
        """Add the score of a round."""
        score = trial.records[round_]["score"]
        self._do_new(lambda: self._storage.set_trial_intermediate_value(self._id(trial), round_, score))

    def on_end(self, trial: TrialState) -> None:
        """Give a trial its state and value."""
        self._do_new(
            lambda: self._storage.set_trial_state_values(self._id(trial), STATES[trial.status], self._values(trial))
        )

    def _write(self, events: Sequence[Event]) -> None:
        """Write the file as the ledger has it, and open it for what comes."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        begun, ended = (
            {event["trial"]: event["time"] for event in events if event["event"] == kind} for kind in ("suggest", "end")
        )
        path = self.folder / FILE
        with tempfile.TemporaryDirectory() as scratch:
            draft = Path(scratch) / FILE
            storage = JournalStorage(JournalFileBackend(str(draft)))
            directions = [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE][: 1 + self.two]
            study = storage.create_new_study(directions, self.folder.name)
            for trial in read_trials(events):
                storage.create_new_trial(study, self._frozen(trial, begun[trial.number], ended.get(trial.number, 0)))
            write_atomically(path, draft.read_bytes())
        path.with_name(f"{FILE}.lock").unlink(missing_ok=True)  # Optuna's, which a kill leaves; nobody else writes here
        self._storage = JournalStorage(JournalFileBackend(str(path)))
        self._study = self._storage.get_study_id_from_name(self.folder.name)

    def _frozen(self, trial: TrialState, begun: float, ended: float) -> FrozenTrial:
        """Return a trial as Optuna has it. begun, ended: Unix seconds; ended 0: it runs."""
        return FrozenTrial(
            number=trial.number,
            trial_id=trial.number,
            state=STATES[trial.status],
            value=None,
            values=self._values(trial),
            params=dict(trial.point),
            distributions=self.distributions,
            user_attrs={},
            system_attrs={},
            intermediate_values={round_: record["score"] for round_, record in trial.records.items()},
            datetime_start=datetime.fromtimestamp(begun, UTC),
            datetime_complete=datetime.fromtimestamp(ended, UTC) if ended else None,
        )

    def _values(self, trial: TrialState) -> list[float] | None:
        """Return the score by which the sweep ranks an ended trial, and its expense; None where there is none."""
        ended = as_trial(trial)
        scores = ended.scores(self.rule) if trial.status in ("finished", "stopped") else []
        return [statistics.fmean(scores), ended.expense][: 1 + self.two] if scores else None

    def _id(self, trial: TrialState) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study, trial.number)

    def _do_new(self, work: Callable[[], object]) -> None:
        """Do what an event asks for, unless it is one of those that the search replays."""
        if self._to_replay:
            self._to_replay -= 1
        else:
            self._do(work)

    def _do(self, work: Callable[[], object]) -> None:
        """Do something with the file. Who looks at it may change it, or delete the study: that ends no sweep."""
        if self._broken:
            return
        try:
            work()
        except Exception as error:
            self._broken = True
            self.log(f"{FILE} gets nothing more ({first_line(error)}); the sweep goes on, and --resume writes it anew")


def distribution(dimension: Dimension, own: Value) -> BaseDistribution:
    """Return the values of a dimension as Optuna has them, with the preset's own value, which may lie outside."""
    if isinstance(dimension, Choice):
        return CategoricalDistribution(dimension.values if own in dimension.values else (own, *dimension.values))
    low, high = min(dimension.low, float(own)), max(dimension.high, float(own))
    log = dimension.scale == "log" and low > 0
    if dimension.integer and float(own).is_integer():
        return IntDistribution(math.ceil(low), math.floor(high), log=log)
    return FloatDistribution(low, high, log=log)
