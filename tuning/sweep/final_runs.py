"""The chosen point in full on fresh seeds, tested once; and the preset's own point beside it where asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.execution.ray_errors import cause_of
from anchorfl.pipeline.run.provenance import check_same_inputs, run_info
from anchorfl.pipeline.storage.run_folder import RESULT, read_result
from anchorfl.pipeline.storage.run_record import note_register
from anchorfl.tasks.errors import InputError, first_line
from anchorfl.tuning.search.backup import bring
from anchorfl.tuning.search.results import FinalRun
from anchorfl.tuning.search.search_space import Value
from anchorfl.tuning.search.searchers import HyperParams
from anchorfl.tuning.search.trial import TrialContext, final_experiment, train_final
from anchorfl.tuning.search.tune_adapter import ERROR, NotPickled, fit, last_line
from anchorfl.tuning.sweep.records import SweepRecords

POLL_S = 5.0
"""Seconds between two looks for news of runs whose records other processes write."""


class FinalRunsCallback(NotPickled, Callback):
    """Tune's callback while final runs go: has news sent now and then, and says when a run has ended."""

    def __init__(self, folder: Path, backup: str, records: SweepRecords, log: Callable[[str], None]) -> None:
        self.folder, self.backup, self.records, self.log = folder, backup, records, log
        self.polled = time.monotonic()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Have news sent where ``POLL_S`` is over: Tune has been round its loop."""
        if time.monotonic() - self.polled > POLL_S:
            self.polled = time.monotonic()
            self.records.wake_writer()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record a run that has ended well, and say its scores."""
        name = trial.config["job"]["name"]
        bring(self.backup, self.folder.parent, self.folder / name, self.log)
        self.records.add(self.folder / name)
        if not (self.folder / name / RESULT).exists():
            return
        result = read_result(self.folder / name, "scores")
        scores = "  ".join(f"{metric} {100 * value:.2f}" for metric, value in result["scores"]["test"].items())
        self.log(f"final run {name}: test {scores}")


def run_final_runs(
    points: Mapping[str, HyperParams], seeds: Sequence[int], context: TrialContext,
    resources: Sequence[dict[str, float]], at_once: int, records: SweepRecords, register: str,
) -> list[str]:  # fmt: skip
    """Run every point on every seed, where there is no result yet; return what failed, a line each.

    points: by the word that opens their folders' names. register: name in MLflow's registry for the model of the first.
    KeyboardInterrupt where Ctrl-C ended it early; InputError where one has a result on data that are prepared otherwise
    now.
    """
    folder, backup = Path(context.folder), context.of({})[seeds[0]].experiment.cluster.backup
    jobs: list[dict[str, Any]] = [
        {"name": f"{word}-seed-{seed}", "seed": seed, "point": dict(point), "register": ""}
        for word, point in points.items()
        for seed in seeds
    ]
    jobs[0]["register"] = register
    folder.mkdir(parents=True, exist_ok=True)  # that there were final runs is seen where all of them failed
    wanted = {job["name"]: final_run_digest(context, job["point"], job["seed"]) for job in jobs}
    for job in jobs:  # those of an earlier start, too: their records may not have arrived
        bring(backup, folder.parent, folder / job["name"], records.log)
        if has_result(folder / job["name"], wanted[job["name"]]):
            run_spec = context.of(job["point"])[job["seed"]]
            final = final_experiment(run_spec.experiment, context.names, dict(job["point"]), job["seed"])
            tags = run_info(replace(run_spec, experiment=final), folder).tags
            check_same_inputs(tags, folder / job["name"])
            if job["register"]:  # named by a resumption first
                note_register(folder / job["name"], job["register"])
        records.add(folder / job["name"])
    missing = [job for job in jobs if not has_result(folder / job["name"], wanted[job["name"]])]
    if not missing:
        return []
    results = fit(
        train_final, context, resources, at_once,
        param_space={"job": tune.grid_search(missing)},
        callbacks=[FinalRunsCallback(folder, backup, records, records.log)],
    )  # fmt: skip
    errors = {r.config["job"]["name"]: failure_reason(r, folder / r.config["job"]["name"]) for r in results}
    failed = [f"final run {name} failed: {error}" for name, error in errors.items() if error]
    if len(failed) < sum(not has_result(folder / job["name"], wanted[job["name"]]) for job in missing):
        raise KeyboardInterrupt
    return failed


def final_run_digest(context: TrialContext, point: Mapping[str, Value], seed: int) -> str:
    """Return the digest of a final run's options."""
    return digest(final_experiment(context.of(point)[seed].experiment, context.names, dict(point), seed))


def has_result(folder: Path, wanted: str) -> bool:
    """Return whether a final run of these options has ended; there may be one of a point of a ledger that was cut."""
    return bool(content := read_result(folder)) and content.get("digest", wanted) == wanted


def failure_reason(result: Any, folder: Path) -> str:
    """Return why a run in ``folder`` failed, by what Tune says of it, in a line; "" where it did not."""
    if result.error:
        return first_line(cause_of(result.error))
    report = result.metrics or {}
    if "scores" in report and not (folder / RESULT).exists():
        return "it ended on another node and its folder is not here: set --cluster.backup, or mend it and go on"
    return last_line(report.get(ERROR, ""))


def read_final_runs(folder: Path, word: str, digests: Mapping[int, str]) -> tuple[FinalRun, ...]:
    """Return the final runs of a word that have a result. digests: seed -> of the run's options.

    InputError where one has other scores on the test split than the first, or none.
    """
    out, keys = list[FinalRun](), ("rounds", "scores", "seconds")
    for seed, wanted in digests.items():
        path = folder / f"{word}-seed-{seed}"
        if has_result(path, wanted):
            content = read_result(path, *keys)
            names = content["scores"].get("test", {}).keys()
            if not names or (out and names != out[0].scores["test"].keys()):
                fault = f"scores of the test split are {', '.join(names) or 'missing'}"
                raise InputError(f"{path / RESULT} is damaged ({fault}); delete it, and resume the sweep")
            out.append(FinalRun(seed=seed, folder=str(path), **{key: content[key] for key in keys}))
    return tuple(out)
