"""The chosen point in full on fresh seeds, tested once; and the preset's own point beside it where asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.execution.ray_errors import cause_of
from anchorfl.pipeline.run.provenance import check_same_data, run_info
from anchorfl.pipeline.storage.run_folder import RESULT, read_result
from anchorfl.pipeline.storage.run_record import note_register
from anchorfl.tasks.errors import InputError, first_line
from anchorfl.tuning.search.backup import bring
from anchorfl.tuning.search.results import Final
from anchorfl.tuning.search.search_space import Value
from anchorfl.tuning.search.searchers import Point
from anchorfl.tuning.search.trial import Work, final_experiment, train_final
from anchorfl.tuning.search.tune_adapter import ERROR, Unsaved, fit, last_line
from anchorfl.tuning.sweep.records import Records

LOOK_S = 5.0
"""Seconds between two looks for news of runs whose records other processes write."""


class Tell(Unsaved, Callback):
    """Lets the records look for news now and then while runs go, and says when one has ended."""

    def __init__(self, folder: Path, backup: str, records: Records, log: Callable[[str], None]) -> None:
        self.folder, self.backup, self.records, self.log = folder, backup, records, log
        self.looked = time.monotonic()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune has been round its loop."""
        if time.monotonic() - self.looked > LOOK_S:
            self.looked = time.monotonic()
            self.records.look()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A run has ended well."""
        name = trial.config["job"]["name"]
        bring(self.backup, self.folder.parent, self.folder / name, self.log)
        self.records.add(self.folder / name)
        if not (self.folder / name / RESULT).exists():
            return
        result = read_result(self.folder / name, "scores")
        scores = "  ".join(f"{metric} {100 * value:.2f}" for metric, value in result["scores"]["test"].items())
        self.log(f"final run {name}: test {scores}")


def run_finals(
    points: Mapping[str, Point], seeds: Sequence[int], work: Work, resources: Sequence[dict[str, float]], at_once: int,
    records: Records, register: str,
) -> list[str]:  # fmt: skip
    """Run every point (by the word that opens its folders' names) on every seed, those that have no result yet;
    returns what failed, a line each. ``register``: name in MLflow's registry for the model of the first.

    KeyboardInterrupt where Ctrl-C ended it early; InputError where one has a result on data that are prepared otherwise
    now.
    """
    folder, backup = Path(work.folder), next(iter(work.run_specs.values())).experiment.cluster.backup
    jobs: list[dict[str, Any]] = [
        {"name": f"{word}-seed-{seed}", "seed": seed, "point": dict(point), "register": ""}
        for word, point in points.items()
        for seed in seeds
    ]
    jobs[0]["register"] = register
    folder.mkdir(parents=True, exist_ok=True)  # that there were final runs is seen where all of them failed
    wanted = {job["name"]: digest_of(work, job["point"], job["seed"]) for job in jobs}
    for job in jobs:  # those of an earlier start, too: their records may not have arrived
        bring(backup, folder.parent, folder / job["name"], records.log)
        if has_result(folder / job["name"], wanted[job["name"]]):
            check_same_data(run_info(work.run_specs[job["seed"]], folder).tags, folder / job["name"])
            if job["register"]:  # named by a resumption first
                note_register(folder / job["name"], job["register"])
        records.add(folder / job["name"])
    missing = [job for job in jobs if not has_result(folder / job["name"], wanted[job["name"]])]
    if not missing:
        return []
    results = fit(
        train_final, work, resources, at_once,
        param_space={"job": tune.grid_search(missing)},
        callbacks=[Tell(folder, backup, records, records.log)],
    )  # fmt: skip
    errors = {r.config["job"]["name"]: why(r, folder / r.config["job"]["name"]) for r in results}
    failed = [f"final run {name} failed: {error}" for name, error in errors.items() if error]
    if len(failed) < sum(not has_result(folder / job["name"], wanted[job["name"]]) for job in missing):
        raise KeyboardInterrupt
    return failed


def digest_of(work: Work, point: Mapping[str, Value], seed: int) -> str:
    """Of the options of a final run."""
    return digest(final_experiment(work.run_specs[seed].experiment, work.names, dict(point), seed))


def has_result(folder: Path, wanted: str) -> bool:
    """Whether a final run of these options has ended: there may be one of another point, of a ledger that was cut."""
    return bool(content := read_result(folder)) and content.get("digest", wanted) == wanted


def why(result: Any, folder: Path) -> str:
    """Why a run in ``folder`` failed, by what Tune says of it, in a line; "" where it did not."""
    if result.error:
        return first_line(cause_of(result.error))
    told = result.metrics or {}
    if "scores" in told and not (folder / RESULT).exists():
        return "it ended on another node and its folder is not here: set --cluster.backup, or mend it and go on"
    return last_line(told.get(ERROR, ""))


def read_finals(folder: Path, word: str, digests: Mapping[int, str]) -> tuple[Final, ...]:
    """The final runs of a word that have a result. digests: seed -> of the run's options. InputError where one has
    other scores on the test split than the first, or none.
    """
    out = list[Final]()
    for seed, wanted in digests.items():
        place = folder / f"{word}-seed-{seed}"
        if has_result(place, wanted):
            content = read_result(place, "rounds", "scores", "seconds")
            names = content["scores"].get("test", {}).keys()
            if not names or (out and names != out[0].scores["test"].keys()):
                fault = f"scores of the test split are {', '.join(names) or 'missing'}"
                raise InputError(f"{place / RESULT} is damaged ({fault}); delete it, and resume the sweep")
            out.append(
                Final(
                    seed=seed,
                    rounds=content["rounds"],
                    scores=content["scores"],
                    folder=str(place),
                    seconds=content["seconds"],
                )
            )
    return tuple(out)
