"""Ray Tune as the engine of a sweep: it places trials, runs them, restarts what a lost node took with it, stops them.

What Tune is told comes from the ``Study``, through the searcher and the scheduler that it expects; what Tune would
save of its own is not needed, since a sweep resumes from its ledger.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import OutOfMemoryError
from ray.tune import FailureConfig, PlacementGroupFactory, RunConfig, Stopper, TuneConfig, Tuner
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from anchorfl.pipeline.cluster.layout import nodes
from anchorfl.pipeline.cluster.placement import count_groups
from anchorfl.pipeline.training.errors import LostError
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.search.searchers import SCORE
from anchorfl.tuning.search.study import Study, TrialState

RETRIES = 2
"""A trial whose process or node is lost goes on from its checkpoint so many times."""


ERROR = "error"
"""Key under which a trial reports the traceback of its own error: that is not tried again."""


ENDS = "ends"
"""Key under which a trial reports why no trial can go on: none has failed then, and the search is over."""


def last_line(trace: str) -> str:
    """Return the last line of a traceback; "" of none."""
    return next((line.strip() for line in reversed(trace.splitlines()) if line.strip()), "")


class NotPickled:
    """Mix-in of what Tune would pickle to be able to restore a search by itself: it gets an empty shell."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Searcher(NotPickled, Searcher):
    """Tune's questions to a searcher, answered by the study."""

    def __init__(self, study: Study, states: dict[str, TrialState]) -> None:
        super().__init__(metric=SCORE, mode="max")
        self.study, self.states = study, states

    def suggest(self, trial_id: str) -> Any:
        state = self.study.next_trial()
        if state is None:
            return Searcher.FINISHED
        self.states[trial_id] = state
        spent = state.records[state.rounds]["seconds"] if state.records else 0.0
        return {"number": state.number, "point": state.point, "after": state.rounds, "seconds": spent}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """End a trial that Tune gives up: its process was lost too often. Other ends are the scheduler's to tell."""
        if error:
            self.study.close_trial(self.states[trial_id], f"its process died {RETRIES + 1} times")

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the ledger is all that is saved."""


class _Scheduler(NotPickled, TrialScheduler):
    """Tune's questions to a scheduler, answered by the study; trials run in the order in which they came."""

    def __init__(self, study: Study, states: dict[str, TrialState], budget: Budget) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # ray has no annotation here
        self._metric = SCORE
        self.study, self.states, self.budget = study, states, budget

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take note of a trial that was made, or that Tune starts again because its process was lost: then what it met
        is over, and its clock starts from what the config says, which is older than what it spent.
        """
        state = self.states[trial.trial_id]
        state.trace = ""
        state.unseen = state.records[state.rounds]["seconds"] - trial.config["seconds"] if state.records else 0.0

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        state = self.states[trial.trial_id]
        if result.get(ENDS):
            self.budget.ended = self.budget.ended or str(result[ENDS])
            return str(TrialScheduler.STOP)
        if result.get(ERROR):
            state.trace = result[ERROR]
            return str(TrialScheduler.STOP)
        record = json.loads(result["record"])
        record["seconds"] += state.unseen
        return self.study.add_result(state, result["round"], record)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        state = self.states[trial.trial_id]
        self.study.close_trial(state, last_line(state.trace))

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self.study.close_trial(self.states[trial.trial_id])

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Keep the trace of a lost process or node: Tune runs it again, from its checkpoint, or tells the searcher."""
        if trial.error_file:
            self.states[trial.trial_id].trace = Path(trial.error_file).read_text(encoding="utf-8")

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        for trial in tune_controller.get_trials():
            if trial.status == "PENDING":
                return trial
        return None

    def debug_string(self) -> str:
        return "study"


@dataclass
class Budget(NotPickled, Stopper):
    """The stopper of a search that has spent its time or its money."""

    hours: float
    """Limit in hours; 0: none."""
    cost: float
    """Limit in the currency of the prices; 0: none."""
    spent: Callable[[], tuple[float, float]]
    """Returns (hours, cost) so far."""
    ended: str = ""
    """Why no trial can go on; "": nothing is in the way."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False: no single trial is stopped by it."""
        return False

    def stop_all(self) -> bool:
        """Return whether a limit is reached, or no trial can go on."""
        if self.ended:
            return True
        hours, cost = self.spent()
        return bool(self.hours and hours >= self.hours) or bool(self.cost and cost >= self.cost)


def fit(
    trainable: Callable[..., None], context: Any, resources: Sequence[dict[str, float]], at_once: int, **tuner: Any
) -> Any:
    """Run trials of ``trainable(config, context)`` to their end; return Tune's results. LostError where a machine has
    no memory for them.

    ``tuner``: search_alg, scheduler, stop, param_space, num_samples, callbacks; reuse_actors: whether a process takes
    the next trial (true unless said otherwise).
    """
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # records are our own
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failures are told in a line each, with their trace kept
    os.environ["TUNE_RESULT_BUFFER_LENGTH"] = "1"  # every round is decided on when it ends
    folder = tempfile.mkdtemp(prefix="anchorfl-tune-")
    run = RunConfig(
        name="sweep",
        storage_path=folder,
        failure_config=FailureConfig(max_failures=RETRIES),
        verbose=0,
        stop=tuner.pop("stop", None),
        callbacks=tuner.pop("callbacks", None),
    )
    space = tuner.pop("param_space", None)
    config = TuneConfig(reuse_actors=tuner.pop("reuse_actors", True), max_concurrent_trials=at_once, **tuner)
    bound = tune.with_parameters(trainable, context=context)
    placed = tune.with_resources(bound, PlacementGroupFactory(list(resources)))
    try:
        return Tuner(placed, run_config=run, tune_config=config, param_space=space).fit()
    except RuntimeError as error:
        if isinstance(error.__cause__, OutOfMemoryError):  # Tune starts again what dies otherwise, and knows this not
            raise LostError(
                "Ray's memory monitor ended a process, as its machine's memory was nearly full: run fewer at a time"
            ) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def search(
    study: Study, trainable: Any, context: Any, resources: Sequence[dict[str, float]], at_once: int, budget: Budget
) -> None:
    """Run the search until nothing is left or the budget is spent. InputError where a trial met what all would, OSError
    where the ledger cannot be written; then no trial has failed by it.
    """
    states: dict[str, TrialState] = {}
    try:
        fit(
            trainable, context, resources, at_once,
            search_alg=_Searcher(study, states),
            scheduler=_Scheduler(study, states, budget),
            num_samples=study.count + len(study.trials),
            stop=budget,
        )  # fmt: skip
    except Exception as error:
        if study.ledger.fault is not None:  # Tune wraps it into errors of its own
            raise study.ledger.fault from error
        raise
    if study.ledger.fault is not None:  # Tune swallows what goes wrong at a trial's end
        raise study.ledger.fault
    if budget.ended:
        command = shlex.join(["anchorfl", "sweep", "--resume", str(study.ledger.path.parent)])
        raise InputError(f"{budget.ended}: mend that; no trial is lost, go on with: {command}")


def max_concurrent_trials(resources: Sequence[Mapping[str, float]], wanted: int) -> int:
    """Return how many trials of these bundles the cluster holds at a time, at most ``wanted`` (0: no limit).

    InputError where it holds none: such a trial would wait for ever.
    """
    have = nodes()
    shares = [(bundle.get("CPU", 0.0), bundle.get("GPU", 0.0)) for bundle in resources]
    most = wanted or 1 + int(sum(node.cpus for node in have) / max(sum(cpus for cpus, _ in shares), 1e-4))
    fits = count_groups(have, shares, most)
    if not fits:
        each = ", ".join(f"{node.cpus:g} CPUs and {len(node.devices)} GPUs" for node in have)
        needs = " + ".join(f"({cpus:g} CPU, {gpus:g} GPU)" for cpus, gpus in shares if cpus or gpus)
        raise InputError(
            f"a trial needs {needs}, where each part lies on one node and one GPU; the cluster has no room for it"
            f" (nodes: {each}): lower --cpus, --slots or --cluster.client_gpus"
        )
    return fits
