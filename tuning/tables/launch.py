"""The missing runs of a table on Ray Tune: so many at a time as fit, each an ordinary run folder.

A serial run is one process; with ``--cluster.executor ray`` a run has actors in a placement group, as in a sweep.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback

from anchorfl.pipeline.run.progress import format_duration
from anchorfl.pipeline.storage.restore import backup_uri, restore_if_ahead
from anchorfl.pipeline.storage.run_folder import RESULT, read_result
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.trial import bundles, report_errors, run_to_end
from anchorfl.tuning.search.tune_adapter import NotPickled, fit, max_concurrent_trials
from anchorfl.tuning.sweep.final_runs import POLL_S, failure_reason
from anchorfl.tuning.tables.runs import Job


@dataclass(frozen=True)
class TableContext:
    """Data and folders of all runs of a table."""

    run_specs: Mapping[str, RunSpec]
    """Digest -> data and class-name vectors."""
    folders: Mapping[str, Path]
    """Digest -> run folder."""


def train_run(config: dict[str, Any], context: TableContext) -> None:
    """Train a run (Tune's trainable): ``config["job"]`` holds its digest."""
    report_errors(_train_run, config, context)


def _train_run(config: dict[str, Any], context: TableContext) -> None:
    run_spec = context.run_specs[config["job"]]
    experiment = run_spec.experiment
    # The driver alone writes to MLflow: a database file has one writer.
    untracked = replace(experiment, tracking=replace(experiment.tracking, uri="none"))
    result = run_to_end(replace(run_spec, experiment=untracked), context.folders[config["job"]], written=experiment)
    tune.report({"scores": len(result.scores)})


class TableProgress(NotPickled, Callback):
    """Tune's callback: says when a run starts and ends, and about how long the rest takes.

    notify: gets the folder of a run that has started or ended, and None now and then while runs go. figures: the
    table's own figures of a finished run, as text.
    """

    def __init__(
        self, jobs: Sequence[Job], at_once: int, log: Log, notify: Callable[[Path | None], None],
        figures: Callable[[Path], str],
    ) -> None:  # fmt: skip
        self.jobs = {job.run.digest: job for job in jobs}
        self.at_once, self.log, self.notify, self.figures = at_once, log, notify, figures
        self.began: dict[str, float] = {}
        self.spent: list[float] = []
        self.over = 0
        self.polled = time.monotonic()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Have news sent where ``POLL_S`` is over: Tune has been round its loop."""
        if time.monotonic() - self.polled > POLL_S:
            self.polled = time.monotonic()
            self.notify(None)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say that a run starts, or starts again where its process was lost."""
        job = self.jobs[trial.config["job"]]
        self.began[job.run.digest] = time.monotonic()
        self.notify(job.folder)
        self.log(f"{job.run.name}: starts in {os.path.relpath(job.folder)}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say how a run has ended, well or not."""
        self._ended(self.jobs[trial.config["job"]])

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say that Tune gives a run up: its process was lost too often."""
        self._ended(self.jobs[trial.config["job"]])

    def _ended(self, job: Job) -> None:
        backup = job.run.experiment.cluster.backup
        if backup and not (job.folder / RESULT).exists():
            restore_if_ahead(backup_uri(backup, job.folder), job.folder, self.log, finished=True)
        self.over += 1
        now = time.monotonic()
        seconds = now - self.began.get(job.run.digest, now)  # one whose process never came up has not started
        if not read_result(job.folder, "scores"):
            self.log(f"{job.run.name}: ended without a result after {seconds / 60:.1f} min  {self._rest()}")
            return
        self.spent.append(seconds)
        self.log(f"{job.run.name}: {self.figures(job.folder)}  {seconds / 60:.1f} min  {self._rest()}")
        self.notify(job.folder)

    def _rest(self) -> str:
        left = len(self.jobs) - self.over
        if not left or not self.spent:
            return f"{self.over}/{len(self.jobs)} done"
        batches = -(-left // self.at_once)  # runs go side by side
        seconds = batches * statistics.fmean(self.spent)
        return f"{self.over}/{len(self.jobs)} done  about {format_duration(seconds)} left"


def alike(jobs: Sequence[Job]) -> list[tuple[list[dict[str, float]], list[Job]]]:
    """Return the resources of a run, and the jobs that need these, in the order of the first of them. A row may train
    where its process is, and another on actors, or with a GPU.
    """
    groups: list[tuple[list[dict[str, float]], list[Job]]] = []
    for job in jobs:
        shares = bundles(job.run.experiment, SweepOptions())
        same = next((group for needed, group in groups if needed == shares), None)
        if same is None:
            groups.append((shares, [job]))
        else:
            same.append(job)
    return groups


def check_room(jobs: Sequence[Job]) -> None:
    """Raise InputError where the cluster has no room for one of the runs. Ray is running."""
    for shares, _ in alike(jobs):
        max_concurrent_trials(shares, 1)


def run_jobs(
    jobs: Sequence[Job], run_specs: Mapping[str, RunSpec], at_once: int, log: Log,
    notify: Callable[[Path | None], None], figures: Callable[[Path], str],
) -> dict[str, str]:  # fmt: skip
    """Run the jobs; return what failed, digest -> reason in a line. Ray is running; the rest as ``TableProgress``.

    Those with other resources come after one another. KeyboardInterrupt where Ctrl-C ended it early: every run stands
    after its last completed round.
    """
    failed: dict[str, str] = {}
    for shares, group in alike(jobs):
        failed |= _run_alike(group, shares, run_specs, at_once, log, notify, figures)
    return failed


def _run_alike(
    jobs: Sequence[Job], shares: list[dict[str, float]], run_specs: Mapping[str, RunSpec], at_once: int, log: Log,
    notify: Callable[[Path | None], None], figures: Callable[[Path], str],
) -> dict[str, str]:  # fmt: skip
    at_once = max_concurrent_trials(shares, min(at_once or len(jobs), len(jobs)))
    log(f"{len(jobs)} runs, {at_once} at a time")
    folders = {job.run.digest: job.folder for job in jobs}
    context = TableContext({digest: run_specs[digest] for digest in folders}, folders)
    results = fit(
        train_run, context, shares, at_once,
        reuse_actors=False,  # a process that took run after run kept growing; a run by itself lets go of its memory
        param_space={"job": tune.grid_search(list(folders))},
        callbacks=[TableProgress(jobs, at_once, log, notify, figures)],
    )  # fmt: skip
    reasons = {r.config["job"]: failure_reason(r, folders[r.config["job"]]) for r in results if r.config}
    failed = {digest: reason for digest, reason in reasons.items() if reason}
    if any(digest not in failed and not (folder / RESULT).exists() for digest, folder in folders.items()):
        raise KeyboardInterrupt
    return failed
