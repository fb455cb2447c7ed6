"""The events of a sweep, in order, one line per event: a sweep is resumed from them.

Events: ``suggest`` (trial, point), ``result`` (trial, round, record), ``end`` (trial, status, error), ``start`` (a
process took the sweep up, with its versions). Searcher and scheduler hold nothing that replaying the events through
them would not give back, so they are never saved, and no pickle is ever read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.json_schema import parsed, type_error
from anchorfl.tasks.files.regular_files import regular

Event = dict[str, Any]


class StartEvent(TypedDict):
    """The event of a process that took the sweep up."""

    time: float
    versions: dict[str, str]


class SuggestEvent(TypedDict):
    """The event of a new trial."""

    trial: int
    point: dict[str, str | int | float | bool]
    time: float


class ReportedRound(TypedDict):
    """A trial's report of a round, as far as it is read again."""

    score: float
    """Mean over seeds, 0 to 1."""
    scores: dict[str, float]
    """Seed -> score."""
    expense: NotRequired[float]
    """Value of the second objective so far, as a mean over seeds; where the sweep has one."""
    seconds: NotRequired[float]
    """Wall time of the trial so far."""
    training_seconds: NotRequired[float]
    """The part in which clients trained or models were scored."""


class ResultEvent(TypedDict):
    """The event of a trial that finished a round."""

    trial: int
    round: int
    record: ReportedRound
    time: float


class EndEvent(TypedDict):
    """The event of a trial that is over."""

    trial: int
    status: Literal["finished", "stopped", "failed"]
    error: str
    time: float


KINDS: Mapping[str, Any] = {"start": StartEvent, "suggest": SuggestEvent, "result": ResultEvent, "end": EndEvent}


class Ledger:
    """The events of a sweep: read at first, then appended to; a line is on the disk when ``write`` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: OSError | None = None
        """Why the last event could not be written."""
        self._whole = 0
        self._torn = False
        self.events = list(self._read())

    def write(self, event: Event) -> None:
        """Append one event; it is on the disk on return."""
        try:
            self._append(event)
        except OSError as error:
            self.fault = error
            raise
        self.events.append(event)

    def _append(self, event: Event) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._torn:
            with self.path.open("r+b") as stream:
                stream.truncate(self._whole)
        line = f"{json.dumps(event, allow_nan=False)}\n".encode()
        self._torn = True  # until the line is on the disk
        with self.path.open("ab") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        self._torn, self._whole = False, self._whole + len(line)

    def _read(self) -> Iterator[Event]:
        """Yield the events of all whole lines. InputError names a damaged line.

        A half-written last line, which a kill leaves, is not among them. It is cut off only when something is written:
        a report may read while another process writes.
        """
        if not self.path.exists():
            return
        data = regular(self.path).read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        self._whole, self._torn = len(whole), len(whole) < len(data)
        hint = (
            "delete that line and what follows, then resume again: trials that had finished keep their folders and are"
            " not trained again"
        )
        trials = 0
        for number, line in enumerate(whole.splitlines(), 1):
            where = f"{self.path}:{number}"
            event: Event = parsed(line, dict[str, Any], where, hint)
            if fault := _fault(event, trials):
                raise InputError(f"{where} is damaged ({fault}); {hint}")
            trials += event["event"] == "suggest"
            yield event


def _fault(event: Event, trials: int) -> str:
    """Return what is wrong with an event after ``trials`` that were suggested; "" for nothing."""
    kind = event.get("event")
    if not isinstance(kind, str) or kind not in KINDS:
        return f"event must be one of {', '.join(KINDS)}"
    trial = event.get("trial", 0)
    known = range(trials, trials + 1) if kind == "suggest" else range(trials) if kind != "start" else (trial,)
    fault = type_error(event, KINDS[kind]) or ("" if trial in known else f"there is no trial {trial} at this place")
    return fault or ("" if math.isfinite(event["time"]) else "time must be finite") or _fault_of_round(event)


def _fault_of_round(event: Event) -> str:
    if event["event"] != "result":
        return ""
    record = event["record"]
    if event["round"] < 1 or not all(seed.removeprefix("-").isdecimal() for seed in record["scores"]):
        return "round must be at least 1, and scores must name seeds"
    if not record["scores"] or not all(0 <= score <= 1 for score in (record["score"], *record["scores"].values())):
        return "scores must be from 0 to 1"
    costs = [record.get(name, 0.0) for name in ("expense", "seconds", "training_seconds")]
    return "" if all(0 <= cost < math.inf for cost in costs) else "a trial's cost must be finite and at least 0"
