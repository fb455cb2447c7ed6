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
from anchorfl.tuning.search.searchers import ROUND, SCORE, Point, draw


@dataclass(slots=True)
class Entry:
    """A trial as the driver knows it. records: what it reported, by round; searched_as: its name in the searcher, ""
    where the searcher does not know it; verdict: whether the scheduler said to stop it. Ray's schedulers take it for a
    trial: they look at ``trial_id`` alone.
    """

    number: int
    point: Point
    searched_as: str
    status: str = "running"
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    verdict: str = TrialScheduler.CONTINUE
    error: str = ""
    trace: str = ""
    """The whole traceback of ``error``, where it happened in this start."""
    unseen: float = 0.0
    """Seconds that its process does not know of: those of the processes that were lost before it."""

    @property
    def trial_id(self) -> str:
        """A name that stays the same over all starts of the sweep."""
        return f"{self.number:04d}"

    @property
    def rounds(self) -> int:
        """Rounds that it reported."""
        return max(self.records, default=0)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Observer(Protocol):
    """Who is told what happens; at a resumption also of what had happened before."""

    def suggested(self, entry: Entry) -> None:
        """A trial exists."""

    def reported(self, entry: Entry, round_: int) -> None:
        """It finished a round."""

    def ended(self, entry: Entry) -> None:
        """It is over."""


@dataclass
class Conductor:
    """A search. first: the preset's own point, which is trial 0; known: the searcher was told to suggest it first;
    allowed: whether the options take a point; count: trials in all; rounds: of a whole trial.
    """

    space: Space
    first: Point
    known: bool
    allowed: Callable[[Point], bool]
    count: int
    rounds: int
    searcher: Searcher
    scheduler: Any  # a TrialScheduler, given entries for trials and no controller
    ledger: Ledger
    observers: Sequence[Observer]
    entries: list[Entry] = field(default_factory=list)
    exhausted: bool = False
    _again: deque[Entry] = field(default_factory=deque)

    def replay(self) -> None:
        """Bring searcher, scheduler and entries to where the ledger ends."""
        for event in list(self.ledger.events):
            self._apply(event)
        for entry in self.entries:
            self.over(entry)  # a kill may have come between the last result and the end
        self._again = deque(e for e in self.entries if e.status == "running")

    def next(self) -> Entry | None:
        """The trial to run next: first those that a kill interrupted. None: there are no more."""
        if self._again:
            return self._again.popleft()
        if len(self.entries) >= self.count or self.exhausted:
            return None
        entry = self._draw()
        if entry is None:
            self.exhausted = True
            return None
        self.ledger.write({"event": "suggest", "trial": entry.number, "point": entry.point, "time": time.time()})
        self._add(entry)
        return entry

    def result(self, entry: Entry, round_: int, record: dict[str, Any]) -> str:
        """Take a round's record; the scheduler's decision. A round that was reported before changes nothing."""
        if round_ <= entry.rounds:
            return entry.verdict
        event = {"event": "result", "trial": entry.number, "round": round_, "time": time.time(), "record": record}
        self.ledger.write(event)
        self._take(entry, round_, record)
        return entry.verdict

    def over(self, entry: Entry, error: str = "") -> None:
        """The trial's process has ended. One that neither failed, nor is whole, nor was stopped goes on later."""
        status = self._status(entry, error)
        if entry.status != "running" or status == "running":
            return
        self.ledger.write(
            {"event": "end", "trial": entry.number, "status": status, "error": error, "time": time.time()}
        )
        self._end(entry, status, error)

    @property
    def done(self) -> bool:
        """Whether nothing is left to run."""
        none_left = len(self.entries) >= self.count or self.exhausted
        return none_left and all(e.status != "running" for e in self.entries)

    def _status(self, entry: Entry, error: str) -> str:
        if error:
            return "failed"
        if entry.rounds >= self.rounds:
            return "finished"
        return "stopped" if entry.verdict == TrialScheduler.STOP else "running"

    def _draw(self) -> Entry | None:
        """Trial 0 is the preset's own point; of the others no two are equal."""
        number = len(self.entries)
        if number == 0:
            name = "0000" if self.known else ""
            if self.known:
                self.searcher.suggest(name)
            return Entry(0, dict(self.first), name)
        tried = [e.point for e in self.entries]
        drawn = draw(self.searcher, self.space, number, lambda p: p not in tried and self.allowed(p))
        return None if drawn is None else Entry(number, drawn[1], drawn[0])

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.scheduler.on_trial_add(None, entry)
        for observer in self.observers:
            observer.suggested(entry)

    def _take(self, entry: Entry, round_: int, record: dict[str, Any]) -> None:
        entry.records[round_] = record
        told = {ROUND: round_, SCORE: record["score"]}
        if round_ < self.rounds:
            entry.verdict = self.scheduler.on_trial_result(None, entry, told)
        if entry.verdict != TrialScheduler.STOP and entry.searched_as:
            self.searcher.on_trial_result(entry.searched_as, told)
        for observer in self.observers:
            observer.reported(entry, round_)

    def _end(self, entry: Entry, status: str, error: str) -> None:
        entry.status, entry.error = status, error
        last = entry.records.get(entry.rounds)
        told = None if last is None else {ROUND: entry.rounds, SCORE: last["score"]}
        if status == "failed" or told is None:
            self.scheduler.on_trial_error(None, entry)
        else:
            self.scheduler.on_trial_complete(None, entry, told)
        if entry.searched_as:
            failed = status == "failed"
            self.searcher.on_trial_complete(entry.searched_as, None if failed else told, error=failed)
        for observer in self.observers:
            observer.ended(entry)

    def _apply(self, event: Event) -> None:
        kind = event["event"]
        if kind == "suggest":
            entry = self._draw()
            if entry is None or entry.point != event["point"]:
                raise InputError(
                    f"{self.ledger.path}: the searcher no longer suggests trial {event['trial']} as it did"
                    f" ({_why(self.ledger.events)}); resume with the versions that started it, or start a new one"
                )
            self._add(entry)
        elif kind == "result":
            self._take(self.entries[event["trial"]], event["round"], event["record"])
        elif kind == "end":
            self._end(self.entries[event["trial"]], event["status"], event["error"])


def read_entries(events: Sequence[Event]) -> list[Entry]:
    """The trials of a ledger, without a searcher or scheduler."""
    entries: list[Entry] = []
    for event in events:
        if event["event"] == "suggest":
            entries.append(Entry(event["trial"], event["point"], ""))
        elif event["event"] == "result":
            entries[event["trial"]].records[event["round"]] = event["record"]
        elif event["event"] == "end":
            entries[event["trial"]].status, entries[event["trial"]].error = event["status"], event["error"]
    return entries


def _why(events: list[Event]) -> str:
    """Which versions changed between the first start and the last."""
    starts: list[Mapping[str, str]] = [e["versions"] for e in events if e["event"] == "start"]
    first, last = starts[0], starts[-1]
    changed = [f"{name} {first[name]} -> {last.get(name)}" for name in first if last.get(name) != first[name]]
    return ", ".join(changed) or "the versions are those that started it"
