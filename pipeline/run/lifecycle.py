"""A run from options to results, as ``anchorfl run`` and ``resume`` call it: prepare, federate, record, save."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.config.experiment import Experiment, digest, plugins_of
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.execution.executor import Executor
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.results.client_scores import (
    CLIENT_SCORES,
    PARTS,
    names_without_scores,
    spread,
    write_client_scores,
)
from anchorfl.pipeline.results.per_class import PER_CLASS, write_per_class
from anchorfl.pipeline.run.callbacks import Callback, Callbacks
from anchorfl.pipeline.run.client_test import score_clients
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.progress import Progress
from anchorfl.pipeline.run.provenance import check_records, check_same_inputs, run_info
from anchorfl.pipeline.run.round_loop import RoundLoop, final_checksum, record_of, weights_in
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.backup import Backup
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.pipeline.storage.restore import backup_uri, check_backup_owner, update_backup
from anchorfl.pipeline.storage.run_folder import (
    CONFIG,
    RESULT,
    check_digest,
    check_is_same_run,
    lock_run,
    read_own_experiment,
    read_result,
    write_config,
)
from anchorfl.pipeline.storage.run_record import (
    COMMUNICATION,
    FINAL_SCORES,
    Status,
    check_artifacts,
    note_failed,
    note_finished,
    read_records,
    write_final_scores,
)
from anchorfl.pipeline.storage.saved_model import NO_MODEL, check_checksum, save_model
from anchorfl.pipeline.terminal import Log, say
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.pipeline.tracking.mlflow_store import store_uri, sync_command
from anchorfl.pipeline.tracking.mlflow_writer import MlflowWriter, send
from anchorfl.pipeline.tracking.other_trackers import find_trackers, open_others
from anchorfl.pipeline.tracking.tracker import Tracker, Trackers
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError, has_controls
from anchorfl.tasks.metrics.scores import FAMILIES
from anchorfl.tasks.plugins import check_as_imported

if TYPE_CHECKING:
    from anchorfl.pipeline.execution.actor_pool import ActorPool, ActorPools

SIMULATED = (
    "secure aggregation: the server gets sums alone, which more than half of a round's clients open; all secrets lie in"
    " this run's own processes"
)
SHOWN = 10
"""Clients of a list in the log, at most."""


def run(
    experiment: Experiment,
    folder: Path,
    log: Log = say,
    actor_pools: ActorPools | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> Result:
    """Run ``experiment`` in ``folder``, from its checkpoint where it holds one. InputError on bad options or data.

    actor_pools: of several runs, one after the other, whose data are prepared: Ray Data would wait for CPUs that the
    actors of the run before hold. callbacks: as ``callbacks.py`` has them; CallbackError where one fails. quiet: print
    no line per round.
    """
    if has_controls(folder.name):
        raise InputError(f"run folder {folder.name!r}: holds control characters; give another --output")
    store_uri(experiment.tracking.uri, folder)  # a store that MLflow refuses is refused before anything is written
    find_trackers(experiment.tracking.trackers)
    for plugin in plugins_of(experiment).values():
        check_as_imported(plugin)
    with ExitStack() as stack:
        stack.enter_context(lock_run(folder))
        check_is_same_run(folder, experiment)
        if experiment.cluster.backup:
            check_backup_owner(backup_uri(experiment.cluster.backup, folder), folder, log)
        if experiment.cluster.uses_ray:
            from anchorfl.pipeline.cluster import ray_cluster, ray_watch  # serial runs need no Ray
            from anchorfl.pipeline.cluster.layout import batched_share, layout

            command = shlex.join(["anchorfl", "resume", str(folder)])
            stack.enter_context(ray_watch.if_ray_dies(command, folder / CONFIG, lambda: note_failed(folder)))
            stack.enter_context(ray_cluster.session(experiment.cluster))
            # shares that the cluster has no room for are refused now, and not after hours of preparation
            if experiment.federation.batched_clients:
                batched_share(experiment.cluster)
            else:
                sites, clients = experiment.task.site_resources, experiment.task.clients
                actors = layout(experiment.cluster, clients, sites).actors
                if experiment.cluster.client_gpus and not experiment.cluster.clients_per_actor and actors < clients:
                    share = experiment.cluster.client_gpus
                    log(f"{actors} client actors of {share:g} GPU, which take turns for {clients} clients")
        elif experiment.cluster.forks:
            from anchorfl.pipeline.execution.worker_host import WorkerHost

            WorkerHost.of_process()  # it imports torch while data are prepared
        run_spec = make_run_spec(experiment, log)
        executor = _executor(run_spec, actor_pools)
        stack.callback(executor.close)
        write_config(folder, experiment)
        if notice := experiment.method.notice(experiment.federation.rounds):
            log(notice)
        if privacy := experiment.federation.client_privacy(experiment.task.clients):
            log(privacy.notice(experiment.federation.rounds))
        if experiment.federation.secure_aggregation:
            log(SIMULATED)
        progress = Progress(experiment.federation.rounds, quiet=quiet)
        return federate(run_spec, executor, folder, progress, log, callbacks=callbacks)


def resume(
    folder: Path,
    log: Log = say,
    places: Mapping[str, str] | None = None,
    copy: str = "",
    *,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> Result:
    """Continue an interrupted run from its last completed round; a finished one gives its result again.

    places: as the user types them now, option -> value. copy: where the folder was fetched from. callbacks, quiet: as
    ``run``. InputError where the folder names places that this user has not named, or files that are not its own.
    """
    experiment = read_own_experiment(folder, places or {}, copy)
    check_artifacts(folder)
    if (folder / RESULT).exists():
        content = read_result(folder, "checksum", "scores")
        if (folder / "model").exists():
            check_checksum(folder / "model", content["checksum"], folder / RESULT)
        log(f"{folder} is finished: nothing to train")
        _finish_record(experiment, folder, log)
        if experiment.cluster.backup:
            cluster = experiment.cluster
            update_backup(backup_uri(cluster.backup, folder), folder, cluster.keep_checkpoints, log)
        return Result(folder, content["checksum"], content["scores"])
    check_digest(folder, experiment)
    return run(experiment, folder, log, callbacks=callbacks, quiet=quiet)


def _finish_record(experiment: Experiment, folder: Path, log: Log) -> None:
    """Close the record of a finished run and send MLflow what it lacks: a kill may have come before the end of that."""
    with lock_run(folder):
        note_finished(folder)
        _write_missing(folder)
        uri = ""
        try:
            if uri := store_uri(experiment.tracking.uri, folder):
                send(folder, uri)
        except InputError as error:
            log(f"{error}; send it later with: {sync_command(folder, uri or experiment.tracking.uri)}")


def _write_missing(folder: Path) -> None:
    """Write again what is made of the records alone and is gone, or was left empty by a kill of an earlier version."""
    if _is_gone(folder / PER_CLASS):
        write_per_class(folder)
    from anchorfl.pipeline.results import compare  # it imports matplotlib

    if any(_is_gone(folder / "report" / name) for name in compare.FILES):
        compare.compare([folder], folder / "report")


def _is_gone(path: Path) -> bool:
    return not path.exists() or not path.stat().st_size


def _executor(run_spec: RunSpec, actor_pools: ActorPools | None) -> Executor:
    if actor_pools is None:
        return executor_for(run_spec)

    def shared() -> ActorPool:
        from anchorfl.pipeline.cluster.layout import layout  # serial runs need no Ray

        experiment = run_spec.experiment
        sites = experiment.task.site_resources
        return actor_pools.actor_pool(layout(experiment.cluster, experiment.task.clients, sites))

    return executor_for(run_spec, shared)


def open_loop(
    run_spec: RunSpec, executor: Executor, folder: Path, progress: Progress, log: Log, parent: Path | None = None
) -> RoundLoop:
    """Return the round loop of a run folder, after its last completed round, with its record opened.

    parent: folder of the sweep that the run is a part of.
    """
    experiment = run_spec.experiment
    # The tracker needs to know where the loop goes on, so it comes after the checkpoint.
    no_tracker = Trackers([], experiment.tracking)
    checkpoints = Checkpoints(folder, experiment.cluster.keep_checkpoints, digest(experiment))
    class_names = run_spec.data().manifest.class_names
    loop = RoundLoop(experiment, class_names, executor, no_tracker, checkpoints, progress)
    loop.resume()
    last_round, info = loop.state.round, run_info(run_spec, folder)
    if last_round:
        check_same_inputs(info.tags, folder)
        check_records(folder, last_round)
    loop.tracker = open_tracker(experiment.tracking, folder, last_round + 1 if last_round else 0, log)
    kind = "run" if parent is None else "final"
    loop.tracker.begin(replace(info, parent=parent, tags={**info.tags, "kind": kind}))
    if experiment.cluster.backup:
        loop.backup = Backup(folder, backup_uri(experiment.cluster.backup, folder), log, loop.checkpoints)
    if last_round:
        progress.start = last_round
        known = [record.metrics for record in read_records(folder)[0] if record.round <= last_round]
        progress.moved = sum(metrics.get(name, 0.0) for metrics in known for name in COMMUNICATION)
        progress.log(f"going on after round {last_round}")
    return loop


def federate(
    run_spec: RunSpec,
    executor: Executor,
    folder: Path,
    progress: Progress,
    log: Log = say,
    parent: Path | None = None,
    *,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run what is left of a run folder that this process holds, to its result. parent: as in ``open_loop``; callbacks:
    as in ``run``.
    """
    loop = open_loop(run_spec, executor, folder, progress, log, parent)
    if callbacks:
        loop.callbacks = Callbacks(callbacks, run_spec.experiment.federation.rounds, folder)
        loop.callbacks.asked_before(loop.state.stop)
        if last := loop.state.round:  # a kill may have come before they had it, and what they said of it is not kept
            loop.unreported = next(record for record in read_records(folder)[0] if record.round == last)
    else:
        loop.state.stop = ""  # an end that was asked for is none to whoever has no callback
    if loop.goes_on:
        (folder / RESULT).unlink(missing_ok=True)  # of an end that a callback asked for: the run goes on
    status: Status = "FAILED"
    try:
        result = conclude(run_spec, folder, loop.run(), loop)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        try:
            loop.tracker.end(status)
        finally:
            if loop.backup is not None:
                loop.backup.close()
    return result


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    folder: Path
    """The run folder."""
    checksum: str
    """SHA-256 of the final weights."""
    scores: dict[str, dict[str, float]]
    """split -> metric -> value of the selected round."""


def conclude(run_spec: RunSpec, folder: Path, server_state: Tensors, loop: RoundLoop) -> Result:
    """Save the selected model, the result and the pictures, and hand them to the tracker."""
    experiment, state, tracker = run_spec.experiment, loop.state, loop.tracker
    checksum, scores, final = final_checksum(server_state), state.scores, None
    if state.best_round:
        scores = _scores_of(folder, state.best_round, scores)
        if experiment.tested == "last":
            final_scores = loop.test_selected(server_state)
            scores |= {split: dict(s.values) for split, s in final_scores.items()}
            final = record_of(state.best_round, final_scores, loop.class_names)
    elif loop.stopped and experiment.tested == "last":  # its last round was to be tested, and never came
        final_scores = loop.test_last()
        scores = scores | {split: dict(s.values) for split, s in final_scores.items()}
        final = record_of(state.round, final_scores, loop.class_names)
    selected = state.best_round or state.round
    of_clients = _score_clients(run_spec, folder, server_state, loop)
    if of_clients:
        final = final or record_of(selected, {}, loop.class_names)
        figures = {f"client_test/{m}_{part}": v for m, parts in of_clients.items() for part, v in parts.items()}
        final = replace(final, metrics=final.metrics | figures)
        tracker.artifact(folder / CLIENT_SCORES)
    if final is not None:
        write_final_scores(folder, final)
        tracker.artifact(folder / FINAL_SCORES)
    elif (folder / FINAL_SCORES).exists():  # of an end that a callback asked for, and a resumption did not
        shutil.rmtree(folder / FINAL_SCORES)
    artifacts = [CONFIG, PER_CLASS, "report"]
    if experiment.method.evaluate_on == "server":
        metadata = {"round": selected, "scores": scores, "run": folder.name}
        save_model(folder / "model", run_spec, weights_in(server_state), metadata)
        artifacts.append("model")
    else:
        loop.progress.log(f"{experiment.method.name} {NO_MODEL}: none is saved")
    content = {
        "checksum": checksum, "scores": scores, "round": selected, "rounds": state.round, "seconds": state.seconds,
        "failed": state.failures, "retried": state.retries, "faults": state.faults,
        # a run that a callback ended is not what its options say: no table takes it for that
        "digest": f"{loop.stopped}: {digest(experiment)}" if loop.stopped_by_callback else digest(experiment),
    }  # fmt: skip
    if of_clients:
        content["client_test"] = of_clients
    if loop.stopped:
        content["stopped"] = loop.stopped
    if summary := state.summary(loop.restarts):
        loop.progress.log(summary)
    write_per_class(folder)
    _draw(run_spec, folder, content)
    for name in artifacts:
        tracker.artifact(folder / name)
    # Last, since its presence says that the run is finished and everything else is there.
    write_atomically(folder / RESULT, json.dumps(content, indent=1).encode())
    return Result(folder, checksum, scores)


def _score_clients(
    run_spec: RunSpec, folder: Path, server_state: Tensors, loop: RoundLoop
) -> dict[str, dict[str, float]]:
    """Score every client on its own test rows and write that down; return the spread, {} where nothing is to score."""
    if not run_spec.data().manifest.client_test or run_spec.experiment.tested == "never":
        return {}
    scores = loop.client_scores(partial(score_clients, run_spec, server_state))
    write_client_scores(folder, scores)
    figures = spread(scores)
    if without := names_without_scores(scores):
        more = f" and {len(without) - SHOWN} more" if len(without) > SHOWN else ""
        loop.progress.log(f"clients without a test row of their own: {', '.join(without[:SHOWN])}{more}")
    measure = FAMILIES[run_spec.experiment.evaluation.metrics].primary
    if shown := figures.get(measure.name):
        words = ", ".join(f"{head} {100 * shown[part]:.2f}" for part, head in PARTS.items())
        loop.progress.log(f"clients' own test rows, {measure.short} of {shown['clients']:.0f} clients: {words}")
    return figures


def _draw(run_spec: RunSpec, folder: Path, result: Mapping[str, Any]) -> None:
    """Draw the curves and the partition of a run, and write its page, below its folder. result: of result.json."""
    # here, since matplotlib takes a second to import, and a run starts without
    from anchorfl.pipeline.results.compare import compare
    from anchorfl.pipeline.results.partition_plot import draw_partition
    from anchorfl.pipeline.results.run_page import PAGE, run_page
    from anchorfl.pipeline.results.run_view import Run

    compare([folder], folder / "report", ended=result)
    data = run_spec.data()
    draw_partition(data.manifest, data.class_histogram(), folder / "report" / "partition.png")
    page = run_page([Run(folder, data, run_spec.experiment)], ended=result)
    write_atomically(folder / "report" / PAGE, page.encode())


def _scores_of(folder: Path, round_: int, names: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return scores of a round in the records, split by split as ``names`` has them. InputError where they are gone."""
    metrics = {r.round: r.metrics for r in read_records(folder)[0]}
    try:
        return {split: {name: metrics[round_][f"{split}/{name}"] for name in values} for split, values in names.items()}
    except KeyError as error:
        path = folder / "metrics.jsonl"
        raise InputError(f"{path} lacks {error} of round {round_}; restore it from a copy") from error


def open_tracker(options: TrackingOptions, folder: Path, resume_at: int, log: Log) -> Trackers:
    """Return the trackers of a run: its folder; unless ``uri`` is ``none``, MLflow; and others that the options name.
    Raise InputError for a store that MLflow refuses. resume_at: the round that is computed next; 0 for a new run.
    """
    trackers: list[Tracker] = [JsonLines(folder, resume_at)]
    if store := store_uri(options.uri, folder):
        trackers.append(MlflowWriter(folder, store, log))
    trackers += open_others(options.trackers, folder, resume_at, log)
    return Trackers(trackers, options)
