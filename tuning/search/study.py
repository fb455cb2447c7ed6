"""The driver's side of a search: one place that suggests points, takes results, decides, and writes the ledger.

Every decision of searcher and scheduler follows from the events before it, in their order. So a search that was killed
is taken up by replaying its ledger through a new searcher and scheduler: they decide again what they decided, trials
that had ended are not run again, and those that were running come first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from anchorfl.tasks.errors import InputError
from anchorfl.tuning.search.ledger import Event, Ledger
from anchorfl.tuning.search.search_space import Space
from anchorfl.tuning.search.searchers import EXPENSE, ROUND, SCORE, HyperParams, Report, draw, refusal


@dataclass(slots=True)
class TrialState:
    """A trial as the driver knows it. Ray's schedulers take it for one of theirs: they look at ``trial_id`` alone."""

    number: int
    """From 0, in the order of suggestion."""
    point: HyperParams
    """Searched name -> value."""
    searched_as: str
    """Name in the searcher; "" where the searcher does not know it."""
    status: str = "running"
    """``running``, ``finished``, ``stopped`` (by the scheduler) or ``failed``."""
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Round -> what it reported (``ledger.ReportedRound``)."""
    decision: str = TrialScheduler.CONTINUE
    """The scheduler's last word: go on or stop."""
    error: str = ""
    """Reason of the failure, one line."""
    trace: str = ""
    """The whole traceback of ``error``, where it happened in this start."""
    unseen: float = 0.0
    """Seconds that its process does not know of: those of the processes that were lost before it."""

    @property
    def trial_id(self) -> str:
        """Name that stays the same over all starts of the sweep."""
        return f"{self.number:04d}"

    @property
    def rounds(self) -> int:
        """Last round that it reported; 0 for none."""
        return max(self.records, default=0)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Observer(Protocol):
    """Listener to a search. At a resumption it also hears what had happened before."""

    def on_suggest(self, trial: TrialState) -> None:
        """Take note of a new trial."""

    def on_report(self, trial: TrialState, round_: int) -> None:
        """Take note of a round that a trial reported."""

    def on_end(self, trial: TrialState) -> None:
        """Take note of a trial that is over."""


@dataclass
class Study:
    """The driver's state of a search, always the one that follows from its ledger."""

    space: Space
    """Searched name -> dimension."""
    first: HyperParams
    """The preset's own point, which is trial 0."""
    searcher_knows_first: bool
    """True where the searcher was told to suggest ``first`` first."""
    allowed: Callable[[HyperParams], bool]
    """Returns whether the options take a point."""
    count: int
    """Trials in all."""
    rounds: int
    """Rounds of a whole trial."""
    searcher: Searcher
    """Ray Tune's, new: ``replay`` teaches it what the ledger has."""
    scheduler: Any  # a TrialScheduler, given TrialStates for trials and no controller
    """Ray Tune's, as new."""
    ledger: Ledger
    """Every event, before anybody acts on it."""
    observers: Sequence[Observer]
    """Listeners, told in this order."""
    trials: list[TrialState] = field(default_factory=list)
    """All trials by number."""
    exhausted: bool = False
    """True where the searcher has no further point."""
    _interrupted: deque[TrialState] = field(default_factory=deque)
    """Trials that a kill left running: they come first."""

    def replay(self) -> None:
        """Bring searcher, scheduler and trials to where the ledger ends."""
        for event in list(self.ledger.events):
            self._apply(event)
        for trial in self.trials:
            self.close_trial(trial)  # a kill may have come between the last result and the end
        self._interrupted = deque(trial for trial in self.trials if trial.status == "running")

    def next_trial(self) -> TrialState | None:
        """Return the trial to run next: first those that a kill interrupted. None: there are no more."""
        if self._interrupted:
            return self._interrupted.popleft()
        if len(self.trials) >= self.count or self.exhausted:
            return None
        trial = self._draw()
        if trial is None:
            self.exhausted = True
            return None
        self.ledger.write({"event": "suggest", "trial": trial.number, "point": trial.point, "time": time.time()})
        self._apply_suggestion(trial)
        return trial

    def add_result(self, trial: TrialState, round_: int, record: dict[str, Any]) -> str:
        """Take a round's record; return the scheduler's decision. A round that was reported before changes nothing."""
        if round_ <= trial.rounds:
            return trial.decision
        event = {"event": "result", "trial": trial.number, "round": round_, "time": time.time(), "record": record}
        self.ledger.write(event)
        self._apply_result(trial, round_, record)
        return trial.decision

    def close_trial(self, trial: TrialState, error: str = "") -> None:
        """End a trial whose process has ended. One that neither failed, nor is whole, nor was stopped goes on later."""
        status = self._status(trial, error)
        if trial.status != "running" or status == "running":
            return
        event = {"event": "end", "trial": trial.number, "status": status, "error": error, "time": time.time()}
        self.ledger.write(event)
        self._apply_end(trial, status, error)

    @property
    def done(self) -> bool:
        """True where nothing is left to run."""
        none_left = len(self.trials) >= self.count or self.exhausted
        return none_left and all(trial.status != "running" for trial in self.trials)

    def _status(self, trial: TrialState, error: str) -> str:
        if error:
            return "failed"
        if trial.rounds >= self.rounds:
            return "finished"
        return "stopped" if trial.decision == TrialScheduler.STOP else "running"

    def _draw(self) -> TrialState | None:
        """Return a new trial: trial 0 is the preset's own point; of the others no two are equal. None: no more."""
        number = len(self.trials)
        if number == 0:
            name = "0000" if self.searcher_knows_first else ""
            if self.searcher_knows_first:
                self.searcher.suggest(name)
            return TrialState(0, dict(self.first), name)
        drawn = draw(self.searcher, self.space, number, self._known)
        return None if drawn is None else TrialState(number, drawn[1], drawn[0])

    def _known(self, point: HyperParams) -> Report | None:
        """Return what is known of a point: the last report of the trial that has it, or that the options refuse it."""
        trial = next((trial for trial in self.trials if trial.point == point), None)
        if trial is None:
            return None if self.allowed(point) else refusal(self.searcher)
        last = trial.records.get(trial.rounds)
        return {} if last is None or trial.status == "failed" else _heard(trial.rounds, last)

    def _apply_suggestion(self, trial: TrialState) -> None:
        self.trials.append(trial)
        self.scheduler.on_trial_add(None, trial)
        for observer in self.observers:
            observer.on_suggest(trial)

    def _apply_result(self, trial: TrialState, round_: int, record: dict[str, Any]) -> None:
        trial.records[round_] = record
        report = _heard(round_, record)
        if round_ < self.rounds:
            trial.decision = self.scheduler.on_trial_result(None, trial, report)
        if trial.decision != TrialScheduler.STOP and trial.searched_as:
            self.searcher.on_trial_result(trial.searched_as, report)
        for observer in self.observers:
            observer.on_report(trial, round_)

    def _apply_end(self, trial: TrialState, status: str, error: str) -> None:
        trial.status, trial.error = status, error
        last = trial.records.get(trial.rounds)
        report = None if last is None else _heard(trial.rounds, last)
        if status == "failed" or report is None:
            self.scheduler.on_trial_error(None, trial)
        else:
            self.scheduler.on_trial_complete(None, trial, report)
        if trial.searched_as:
            failed = status == "failed"
            self.searcher.on_trial_complete(trial.searched_as, None if failed else report, error=failed)
        for observer in self.observers:
            observer.on_end(trial)

    def _apply(self, event: Event) -> None:
        kind = event["event"]
        if kind == "suggest":
            trial = self._draw()
            if trial is None or trial.point != event["point"]:
                changed = _changed_versions(self.ledger.events)
                raise InputError(
                    f"{self.ledger.path}: the searcher no longer suggests trial {event['trial']} as it did"
                    f" ({changed}); resume with the versions that started it, or start a new one"
                )
            self._apply_suggestion(trial)
        elif kind == "result":
            self._apply_result(self.trials[event["trial"]], event["round"], event["record"])
        elif kind == "end":
            self._apply_end(self.trials[event["trial"]], event["status"], event["error"])


def _heard(round_: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what searcher and scheduler hear of a round."""
    expense = {EXPENSE: record[EXPENSE]} if EXPENSE in record else {}
    return {ROUND: round_, SCORE: record["score"], **expense}


def read_trials(events: Sequence[Event]) -> list[TrialState]:
    """Return the trials of a ledger, without a searcher or scheduler."""
    trials: list[TrialState] = []
    for event in events:
        if event["event"] == "suggest":
            trials.append(TrialState(event["trial"], event["point"], ""))
        elif event["event"] == "result":
            trials[event["trial"]].records[event["round"]] = event["record"]
        elif event["event"] == "end":
            trials[event["trial"]].status, trials[event["trial"]].error = event["status"], event["error"]
    return trials


def _changed_versions(events: list[Event]) -> str:
    """Return the versions that changed between the first start and the last, in a line."""
    starts: list[Mapping[str, str]] = [event["versions"] for event in events if event["event"] == "start"]
    first, last = starts[0], starts[-1]
    changed = [f"{name} {first[name]} -> {last.get(name)}" for name in first if last.get(name) != first[name]]
    return ", ".join(changed) or "the versions are those that started it"
