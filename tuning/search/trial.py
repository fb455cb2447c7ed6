"""The inside of a trial: one point with several seeds in step, on actors that belong to the trial.

Each seed is an ordinary run in a folder of its own, with its checkpoint, so a trial that died goes on after its last
round, in whatever process. Its actors live in the trial's placement group: bundle 0 holds the server, each further one
a client slot, and their number follows from the group, never from the options, so no actor waits for a place for ever.
"""

from __future__ import annotations

import errno
import io
import json
import math
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util import get_current_placement_group

from anchorfl.pipeline.cluster.layout import Layout
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.schema import with_options
from anchorfl.pipeline.execution.actor_pool import ActorPool
from anchorfl.pipeline.execution.executor import Executor
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.run.lifecycle import Result, federate, open_loop
from anchorfl.pipeline.run.progress import Progress
from anchorfl.pipeline.run.round_loop import RoundLoop
from anchorfl.pipeline.storage.restore import backup_uri, restore_if_ahead
from anchorfl.pipeline.storage.run_folder import lock_run, write_config
from anchorfl.pipeline.storage.run_record import COMMUNICATION, RoundRecord, read_records
from anchorfl.pipeline.terminal import say_error
from anchorfl.pipeline.training.errors import fault_line
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError, PreparedDataError, first_line
from anchorfl.tuning.search.backup import backup_of, set_aside
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.search_space import PRESET, Value
from anchorfl.tuning.search.searchers import EXPENSE, HyperParams
from anchorfl.tuning.search.tune_adapter import ENDS, ERROR

SERVER_CPUS = 0.1
"""CPU share of a trial's server: it works while the clients wait."""
_ACTOR_POOLS: dict[str, ActorPool] = {}
"""The actor pools of this process by placement group: a process that Tune gives another trial keeps its actors."""


@dataclass(frozen=True)
class TrialContext:
    """All that the trials of a sweep share."""

    run_specs: Mapping[str, Mapping[int, RunSpec]]
    """Preset -> seed -> data and class-name vectors, made before the sweep."""
    names: Mapping[str, str]
    """Searched name -> option."""
    folder: str
    """Folder of the trials."""
    rounds: int
    """Rounds of a whole trial."""
    metric: str
    """Key in a round's record: ``validation/f1_macro``, for example."""
    slots: int
    """Client actors of a trial."""
    against: str = ""
    """Second objective (``SweepOptions.against``); "" for none."""

    def of(self, point: Mapping[str, Value]) -> Mapping[int, RunSpec]:
        """Return seed -> data and class-name vectors of a point's preset."""
        first = next(iter(self.run_specs))
        return self.run_specs[str(point.get(PRESET, first))]


def bundles(experiment: Experiment, options: SweepOptions) -> list[dict[str, float]]:
    """Return the resources of a trial: where its own process trains, with the GPU share of whichever of server and
    clients has the larger one, or of the server and all forked workers; else nothing for that process, then the server,
    then every client slot.
    """
    cluster = experiment.cluster
    if not cluster.uses_ray or experiment.federation.batched_clients:
        share = max(cluster.client_gpus, cluster.server_gpus)
        if cluster.forks and cluster.client_gpus and not experiment.federation.batched_clients:
            workers = cluster.max_concurrent_clients or max(1, int(options.cpus))
            share = round(min(1.0, cluster.server_gpus + workers * cluster.client_gpus), 4)
        return [{"CPU": options.cpus} | _gpu(share)]
    server = {"CPU": min(SERVER_CPUS, options.cpus / 2)} | _gpu(cluster.server_gpus)
    each = int(1e4 * (options.cpus - server["CPU"]) / options.slots) / 1e4
    return [{}, server, *[{"CPU": each} | _gpu(cluster.client_gpus)] * options.slots]


def _gpu(share: float) -> dict[str, float]:
    return {"GPU": share} if share else {}


def point_experiment(experiment: Experiment, names: Mapping[str, str], point: HyperParams, seed: int) -> Experiment:
    """Return the experiment of a point; ``experiment``: of its preset. InputError where the options refuse it."""
    experiment = with_options(experiment, {names[name]: value for name, value in point.items() if name != PRESET})
    return replace(experiment, seed=seed, output="", tracking=replace(experiment.tracking, uri="none", run_name=""))


def as_trained(experiment: Experiment, rounds: int) -> Experiment:
    """Return the experiment of a point as a trial trains it: so many rounds, each scored, never on the test split."""
    return replace(
        experiment,
        federation=replace(experiment.federation, rounds=rounds),
        evaluation=replace(experiment.evaluation, test="never", model_selection="last", every=1),
    )


def final_experiment(experiment: Experiment, names: Mapping[str, str], point: HyperParams, seed: int) -> Experiment:
    """Return the experiment of a final run. InputError where the options refuse the point."""
    experiment = point_experiment(experiment, names, point, seed)
    return replace(experiment, evaluation=replace(experiment.evaluation, test="last"))


def train_trial(config: dict[str, Any], context: TrialContext) -> None:
    """Train a trial (Tune's trainable): ``config`` holds its number, its point, and the rounds reported before."""
    report_errors(_train_trial, config, context)


def train_final(config: dict[str, Any], context: TrialContext) -> None:
    """Train a point in full on one fresh seed, tested once (Tune's trainable): an ordinary run with its model.

    ``config["job"]`` holds seed, point, name of the folder, and name for the registry.
    """
    report_errors(_train_final, config, context)


def report_errors(train: Callable[[dict[str, Any], Any], None], config: dict[str, Any], context: Any) -> None:
    """Report what goes wrong in training, which would go wrong again; Tune itself only sees processes that are lost."""
    try:
        train(config, context)
    except Exception as error:
        while _ACTOR_POOLS:  # their server may be what died
            _ACTOR_POOLS.popitem()[1].close()
        trace, line = traceback.format_exc(), fault_line(error)
        if line != first_line(error):  # it says where in a plug-in, and the last line is what tables and sweeps show
            trace += f"{line}\n"
        report = {"round": 0, "score": 0.0, ERROR: trace}
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or isinstance(error, PreparedDataError):  # no fault of its point: all others would meet it
            report[ENDS] = first_line(error)
        tune.report(report)


def _train_trial(config: dict[str, Any], context: TrialContext) -> None:
    began, folder = time.perf_counter(), Path(context.folder) / f"{config['number']:04d}"
    with ExitStack() as stack:
        loops = {}
        for seed, run_spec in context.of(config["point"]).items():
            run_folder = folder / f"seed-{seed}"
            experiment = point_experiment(run_spec.experiment, context.names, config["point"], seed)
            backup = backup_of(experiment.cluster.backup, Path(context.folder).parent, run_folder)
            experiment = as_trained(experiment, context.rounds)
            experiment = replace(experiment, cluster=replace(experiment.cluster, backup=backup))
            trained = replace(run_spec, experiment=experiment)
            loops[seed] = _open_loop(trained, run_folder, stack)
        steps = {seed: loop.steps() for seed, loop in loops.items()}
        for round_ in range(1, context.rounds + 1):
            for seed, loop in loops.items():
                while loop.state.round < round_:
                    next(steps[seed])
            if round_ > config["after"]:
                record = _record(folder, list(loops), round_, context, _at_once(trained, context.slots))
                record["seconds"] = config["seconds"] + time.perf_counter() - began
                tune.report({"round": round_, "score": record["score"], "record": json.dumps(record)})
        for loop in loops.values():
            loop.tracker.end("FINISHED")


def _train_final(config: dict[str, Any], context: TrialContext) -> None:
    job, began = config["job"], time.perf_counter()
    seed, folder, sweep = job["seed"], Path(context.folder) / job["name"], Path(context.folder).parent
    run_spec = context.of(job["point"])[seed]
    experiment = final_experiment(run_spec.experiment, context.names, job["point"], seed)
    experiment = replace(
        experiment,
        cluster=replace(experiment.cluster, backup=backup_of(experiment.cluster.backup, sweep, folder)),
        tracking=replace(experiment.tracking, run_name=f"{sweep.name}-{job['name']}", register=job["register"]),
    )
    result = run_to_end(replace(run_spec, experiment=experiment), folder, sweep)
    tune.report({"scores": json.dumps(result.scores), "seconds": time.perf_counter() - began})


def run_to_end(
    run_spec: RunSpec, folder: Path, parent: Path | None = None, written: Experiment | None = None
) -> Result:
    """Run to the end inside a trial, from the checkpoint where there is one; return the result.

    parent: folder of the sweep that it is a part of; written: the options that its folder keeps for whoever resumes it
    elsewhere, where those are not what it runs with here.
    """
    with ExitStack() as stack:
        executor, progress = _start(run_spec, folder, written or run_spec.experiment, stack)
        return federate(run_spec, executor, folder, progress, _log, parent)


def _open_loop(run_spec: RunSpec, folder: Path, stack: ExitStack) -> RoundLoop:
    executor, progress = _start(run_spec, folder, run_spec.experiment, stack)
    loop = open_loop(run_spec, executor, folder, progress, _log)
    if loop.backup is not None:
        stack.callback(loop.backup.close)
    return loop


def _start(run_spec: RunSpec, folder: Path, written: Experiment, stack: ExitStack) -> tuple[Executor, Progress]:
    """Lock a run's folder and fetch what another node did of it; return the executor and a progress without output."""
    stack.enter_context(lock_run(folder, patience_s=60))
    backup = run_spec.experiment.cluster.backup
    uri = backup_uri(backup, folder) if backup else ""
    if uri:
        restore_if_ahead(uri, folder, _log)
    set_aside(folder, written, uri, _log)
    executor = executor_for(_within_share(run_spec), _actor_pool, placed=True)
    stack.callback(executor.close)
    write_config(folder, written)
    return executor, Progress(run_spec.experiment.federation.rounds, out=io.StringIO())


def _within_share(run_spec: RunSpec) -> RunSpec:
    """Return a run of which no more workers are forked than this trial has CPUs, or shares of its GPU."""
    cluster = run_spec.experiment.cluster
    if not cluster.forks or cluster.max_concurrent_clients:
        return run_spec
    assigned = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
    most = int(assigned.get("CPU", 1.0))
    if cluster.client_gpus:
        most = min(most, int((assigned.get("GPU", 0.0) - cluster.server_gpus) / cluster.client_gpus + 1e-9))
    cluster = replace(cluster, max_concurrent_clients=max(1, most))
    return replace(run_spec, experiment=replace(run_spec.experiment, cluster=cluster))


def _at_once(run_spec: RunSpec, slots: int) -> int:
    """Return how many clients of a trial train at a time. slots: client actors, where it has any."""
    experiment = run_spec.experiment
    if experiment.federation.batched_clients or experiment.cluster.executor == "serial":
        return 1
    workers = _within_share(run_spec).experiment.cluster.max_concurrent_clients
    return min(slots if experiment.cluster.uses_ray else workers, experiment.selected_clients)


def _actor_pool() -> ActorPool:
    """Return the actor pool of this trial's placement group."""
    group = get_current_placement_group()
    if group is None:
        raise RuntimeError("a trial needs the placement group that Tune gives it")
    key = group.id.hex()
    if key not in _ACTOR_POOLS:
        _ACTOR_POOLS[key] = ActorPool(_layout(group, group.bundle_specs))
    return _ACTOR_POOLS[key]


def _layout(group: Any, shares: Sequence[Mapping[str, float]]) -> Layout:
    server, *slots = shares
    return Layout(
        actors=len(slots),
        client_cpus=slots[0].get("CPU", 0.0),
        client_gpus=slots[0].get("GPU", 0.0),
        server_cpus=server.get("CPU", 0.0),
        server_gpus=server.get("GPU", 0.0),
        concurrent=len(slots),
        group=group,
    )


def _record(folder: Path, seeds: Sequence[int], round_: int, context: TrialContext, at_once: int) -> dict[str, Any]:
    """Return a trial's report of a round: means over its seeds, the score of each, and seconds of training so far.

    at_once: clients that trained at a time.
    """
    rows = {seed: read_records(folder / f"seed-{seed}")[0] for seed in seeds}
    now = {seed: next(r for r in rows[seed] if r.round == round_) for seed in seeds}
    if missing := [seed for seed, record in now.items() if context.metric not in record.metrics]:
        raise InputError(f"seeds {missing} have no {context.metric} (docs/metrics.md says when): give another --metric")
    scores = {seed: record.metrics[context.metric] for seed, record in now.items()}
    shared = set.intersection(*(set(r.metrics) for r in now.values()))
    means = {k: statistics.fmean(r.metrics[k] for r in now.values()) for k in sorted(shared)}
    means = {k: v for k, v in means.items() if math.isfinite(v)}  # the loss of a trial that diverged is none
    so_far = [r for records in rows.values() for r in records if r.round <= round_]
    training = sum(_training(r, at_once) for r in so_far)
    moved = sum(r.metrics.get(name, 0.0) for r in so_far for name in COMMUNICATION) / 1e6
    expense = {"megabytes": moved, "seconds": training}
    return {
        **({EXPENSE: expense[context.against] / len(rows)} if context.against else {}),
        "score": statistics.fmean(scores.values()),
        "scores": {str(seed): score for seed, score in scores.items()},
        "metrics": {k: v for k, v in means.items() if not k.startswith("system/")},
        "training_seconds": training,
    }


def _training(record: RoundRecord, at_once: int) -> float:
    """Return the seconds of a round in which clients trained, of whom so many did at a time, models were scored or the
    server aggregated.
    """
    alone = record.metrics["time/evaluate"] + record.metrics.get("time/aggregate", 0.0)  # round 0 aggregates nothing
    return record.metrics["time/clients"] / at_once + alone


def _log(line: str) -> None:
    """Print to Ray's log of this process: a trial shows its progress through what it reports alone."""
    say_error(line)
