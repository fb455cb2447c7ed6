"""The tracker that sends a run to MLflow, from a thread of its own that never holds up a round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo, Status, check_artifacts, read_metadata
from anchorfl.pipeline.tracking.mlflow_run_tree import MlflowTreeUploader, child_runs
from anchorfl.pipeline.tracking.mlflow_store import reason, store_uri, sync_command
from anchorfl.pipeline.tracking.mlflow_upload import MlflowUploader
from anchorfl.tasks.errors import InputError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""Seconds of rest after a failure, doubled by each further one."""
LOCAL_WAIT_S, SERVER_WAIT_S = 60.0, 20.0
"""Seconds that a run waits at its end: a file is only slow (first import and migration), a server may be dead."""


class Sender(Protocol):
    """The uploader of run folders to MLflow: ``MlflowUploader`` of one, ``MlflowTreeUploader`` of a sweep."""

    folder: Path
    uri: str

    @property
    def last(self) -> int:
        """The last round of ``folder`` that stands in MLflow."""

    def lock(self) -> AbstractContextManager[object]:
        """Return the lock to hold while sending."""

    def upload_new(self) -> int:
        """Send what is missing; return the number of rounds."""

    def upload_final(self) -> list[str]:
        """Send what comes at the end; return the artifacts that are gone."""


class MlflowWriter:
    """The tracker that feeds MLflow from the run folder, which ``JsonLines`` must have written before each call.

    ``failures``: attempts that failed.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        log: Callable[[str], None],
        *,
        uploader: Sender | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """log: takes one line, from any thread.

        uploader: sends, on the writer's one thread; None: this run folder alone.
        timeout_s: seconds that ``end`` waits for the rest at most; None: ``LOCAL_WAIT_S`` or ``SERVER_WAIT_S``.
        """
        self.folder, self.uri, self.log = folder, uri, log
        self.pause_s = FIRST_PAUSE_S
        wait = LOCAL_WAIT_S if uri.startswith("sqlite") else SERVER_WAIT_S
        self.timeout_s = wait if timeout_s is None else timeout_s
        self.uploader = uploader or MlflowUploader(folder, uri)
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
        """Let the thread know that there is more; it reads the run record itself. Round 0 waits for round 1."""
        if record.round:
            self.wake()

    def wake(self) -> None:
        """Let the thread look for news, from any thread; it costs nothing where there is none."""
        self._wake.set()

    def artifact(self, path: Path) -> None:
        """Do nothing yet: artifacts are sent at the end, from run.json."""

    def end(self, status: Status) -> None:
        """Send the rest."""
        self.close(self.timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the thread to send what is left; return whether it ended."""
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
            with self.uploader.lock():
                self.uploader.upload_new()
                missing = self.uploader.upload_final() if ending else []
        except Exception as error:
            # whatever goes wrong with tracking: it is said, counted, tried again; the run goes on
            self.failures += 1
            self._in_a_row += 1
            self._retry_at = time.monotonic() + min(self.pause_s * 2 ** (self._in_a_row - 1), LONGEST_PAUSE_S)
            self._complain(reason(error))
        else:
            self._in_a_row, self._retry_at = 0, 0.0
            if missing:
                self.log(f"MLflow did not get {', '.join(missing)}: no longer in {self.folder}")
            if ending and self._said:
                self.log(f"MLflow at {redact(self.uri)} has everything now ({self.failures} attempts failed)")

    def _complain(self, why: str) -> None:
        if not self._said:
            self._said = True
            self.log(
                f"MLflow at {redact(self.uri)} cannot be reached ({why}); the run goes on, metrics are kept in "
                f"{self.folder / 'metrics.jsonl'}; send them later with: {sync_command(self.folder, self.uri)}"
            )


def send(folder: Path, uri: str = "") -> int:
    """Send to MLflow what it lacks of a run folder and of its child runs; return the number of rounds.

    uri: as in ``TrackingOptions``. Raises InputError where there is no run, no store is named, or it cannot be reached.
    """
    if not read_metadata(folder):
        raise InputError(
            f"{folder} is no run folder (run.json is not there); name a folder like runs/digits-fedavg-s0-..."
        )
    store = store_uri(uri, folder)
    if not store:
        raise InputError("tracking.uri is 'none'; say where to send with --uri")
    uploader = MlflowTreeUploader(folder, store)
    children = child_runs(folder)
    for run in (folder, *children):
        check_artifacts(run)  # before anything is sent
    for child in children:
        uploader.add(child)
    try:
        with uploader.lock():
            count = uploader.upload_new()
            uploader.upload_final()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"MLflow at {redact(store)} took {uploader.last + 1} rounds, then: {reason(error)}") from error
    return count
