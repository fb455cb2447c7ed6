"""Where a run's numbers go: first to its own folder, which is the truth (``journal.py``), and from there to MLflow.

One background thread per run sends what MLflow lacks, so that a slow or dead server never slows or stops a run.
Sending is idempotent: how far it got is asked of MLflow. tracking.json says which MLflow run a folder became.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pipeline.deliveries import Deliveries, parts_of
from pipeline.delivery import Delivery, reason, shown, store_uri
from pipeline.journal import JsonLines, RoundRecord, RunInfo, Status, read_about
from tasks.contract import InputError

__all__ = [
    "JsonLines",
    "MlflowWriter",
    "RoundRecord",
    "RunInfo",
    "Sender",
    "Status",
    "Tracker",
    "Trackers",
    "TrackingOptions",
    "open_tracker",
    "send",
]

LONGEST_PAUSE_S = 300.0
LOCAL_WAIT_S, SERVER_WAIT_S = 60.0, 20.0
"""How long a run waits at its end: a file is only slow (first import and migration), a server may be dead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackingOptions:
    """Where a run is recorded besides its own folder."""

    uri: str = ""
    """MLflow store: empty: ``$MLFLOW_TRACKING_URI``, or where that is not set the SQLite file ``mlflow.db`` in the
    folder that holds the runs; ``none``: no MLflow; ``http://...``: a server; ``sqlite:///...``: another file;
    ``postgresql://...``: a database server. A password is left out of every record, so that a resumed run has none:
    leave it to ``~/.pgpass``, ``PGPASSWORD`` or ``MLFLOW_TRACKING_PASSWORD``."""
    experiment: str = ""
    """MLflow experiment; empty: name of the task."""
    run_name: str = ""
    """Name of the run in MLflow; empty: name of the run folder."""
    log_model: bool = True
    """Log the trained model as an MLflow model (weights as safetensors, no pickle); false: only its files."""
    register: str = ""
    """Name in MLflow's model registry under which the trained model becomes a version, with the alias ``champion``;
    empty: none."""

    def __post_init__(self) -> None:
        if set(self.register) & set("/:'\"`"):
            raise ValueError(f"tracking.register = {self.register!r}: MLflow takes no / : or quotes in a model's name")
        if self.register and not self.log_model:
            raise ValueError("tracking.register needs the model in MLflow: leave tracking.log_model true")


class Tracker(Protocol):
    """Receives a run: ``begin``, then ``round`` and ``artifact`` in any order, then ``end``."""

    def begin(self, info: RunInfo) -> None:
        """Open the record of a run, new or resumed."""

    def round(self, record: RoundRecord) -> None:
        """Keep one round."""

    def artifact(self, path: Path) -> None:
        """Keep a file or folder that exists now and stays where it is."""

    def end(self, status: Status) -> None:
        """Close the record."""


class Sender(Protocol):
    """What brings run folders to MLflow: ``Delivery`` one, ``Deliveries`` a sweep."""

    folder: Path
    uri: str

    @property
    def last(self) -> int:
        """Last round of ``folder`` that stands in MLflow."""

    def turn(self) -> AbstractContextManager[object]:
        """What to hold while sending."""

    def advance(self) -> int:
        """Send what is missing; returns the number of rounds."""

    def finish(self) -> list[str]:
        """Send what comes at the end; returns the artifacts that are gone."""


class MlflowWriter:
    """The tracker that feeds MLflow from the run folder, which ``JsonLines`` must have written before each call.

    say: takes one line, from any thread. delivery: what sends, on the writer's one thread; None: this run folder
    alone. pause_s: first wait after a failure, doubled by each further one. timeout_s: how long ``end`` waits for the
    rest at most. failures: attempts that failed.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        say: Callable[[str], None],
        *,
        delivery: Sender | None = None,
        pause_s: float = 5.0,
        timeout_s: float = SERVER_WAIT_S,
    ) -> None:
        self.folder, self.uri, self.say = folder, uri, say
        self.delivery = delivery or Delivery(folder, uri)
        self.pause_s, self.timeout_s = pause_s, timeout_s
        self.failures = 0
        self._in_a_row = 0
        self._said = False
        self._retry_at = 0.0
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"mlflow {folder.name}", daemon=True)

    def begin(self, info: RunInfo) -> None:
        """Get ready; to import MLflow and open its store takes seconds of CPU, which the first round needs more."""
        self._thread.start()

    def round(self, record: RoundRecord) -> None:
        """Let the thread know that there is more; it reads the journal itself. Round 0 waits for round 1."""
        if record.round:
            self.wake()

    def wake(self) -> None:
        """Let the thread look for news, from any thread; it costs nothing where there is none."""
        self._wake.set()

    def artifact(self, path: Path) -> None:
        """Nothing yet: artifacts are sent at the end, from run.json."""

    def end(self, status: Status) -> None:
        """Send the rest."""
        self.close(self.timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the thread to send what is left; true if it ended."""
        self._ending.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._complain(f"no answer within {timeout_s:g} s")
        return not self._thread.is_alive()

    def _work(self) -> None:
        ending = False
        while not ending:
            self._wake.wait()
            self._wake.clear()
            ending = self._ending.is_set()
            if ending or time.monotonic() >= self._retry_at:
                self._attempt(ending)

    def _attempt(self, ending: bool) -> None:
        try:
            with self.delivery.turn():
                self.delivery.advance()
                gone = self.delivery.finish() if ending else []
        except (
            Exception
        ) as error:  # whatever goes wrong with tracking: it is said, counted, tried again; the run goes on
            self.failures += 1
            self._in_a_row += 1
            self._retry_at = time.monotonic() + min(self.pause_s * 2 ** (self._in_a_row - 1), LONGEST_PAUSE_S)
            self._complain(reason(error))
        else:
            self._in_a_row, self._retry_at = 0, 0.0
            if gone:
                self.say(f"MLflow did not get {', '.join(gone)}: no longer in {self.folder}")
            if ending and self._said:
                self.say(f"MLflow at {shown(self.uri)} has everything now ({self.failures} attempts failed)")

    def _complain(self, why: str) -> None:
        if not self._said:
            self._said = True
            self.say(
                f"MLflow at {shown(self.uri)} cannot be reached ({why}); the run goes on, metrics are kept in "
                f"{self.folder / 'metrics.jsonl'}; send them later with: anchorfl track {self.folder}"
            )


def send(folder: Path, uri: str = "") -> int:
    """Send to MLflow what it lacks of a run folder, and of the runs in it that are its parts; returns the number of
    rounds. ``uri`` as in ``TrackingOptions``.

    Errors: InputError where there is no run, no store is named, or the store cannot be reached.
    """
    if not read_about(folder):
        raise InputError(
            f"{folder} is no run folder (run.json is not there); name a folder like runs/digits-fedavg-s0-..."
        )
    store = store_uri(uri, folder)
    if not store:
        raise InputError("tracking.uri is 'none'; say where to send with --tracking.uri")
    delivery = Deliveries(folder, store)
    for part in parts_of(folder):
        delivery.add(part)
    try:
        with delivery.turn():
            count = delivery.advance()
            delivery.finish()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"MLflow at {shown(store)} took {delivery.last + 1} rounds, then: {reason(error)}") from error
    return count


class Trackers:
    """Several trackers as one, told in order; the options' names for experiment and run hold for all."""

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


def open_tracker(options: TrackingOptions, folder: Path, resume_at: int, say: Callable[[str], None]) -> Trackers:
    """The run folder and, unless ``uri`` is ``none``, MLflow. ``resume_at``: the round that is computed next; new: 0.

    Errors: InputError for a store that MLflow refuses.
    """
    store = store_uri(options.uri, folder)
    journal: list[Tracker] = [JsonLines(folder, resume_at)]
    if not store:
        return Trackers(journal, options)
    wait = LOCAL_WAIT_S if store.startswith("sqlite") else SERVER_WAIT_S
    return Trackers([*journal, MlflowWriter(folder, store, say, timeout_s=wait)], options)
