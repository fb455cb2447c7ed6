"""One run from options to results: prepare, federate, record, save. What ``anchorfl run`` and ``anchorfl resume``
call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.config.experiment import Experiment, digest
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.execution.executor import Executor
from anchorfl.pipeline.execution.pooled_executor import in_process
from anchorfl.pipeline.results.per_class import write_per_class
from anchorfl.pipeline.run.prepare import make_setup
from anchorfl.pipeline.run.progress import Log, Progress
from anchorfl.pipeline.run.provenance import check_records, check_same_data, run_info
from anchorfl.pipeline.run.round_loop import Loop, final_checksum, record_of, weights_in
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.storage.backup import Mirror
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.pipeline.storage.restore import claim, place_of, refresh
from anchorfl.pipeline.storage.run_folder import CONFIG, RESULT, held, read_experiment, read_result, write_config
from anchorfl.pipeline.storage.run_record import LATE, Status, note_finished, read_records, write_late
from anchorfl.pipeline.storage.saved_model import NO_MODEL, save_model
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.pipeline.tracking.mlflow_store import store_uri
from anchorfl.pipeline.tracking.mlflow_writer import LOCAL_WAIT_S, SERVER_WAIT_S, MlflowWriter, send
from anchorfl.pipeline.tracking.tracker import Tracker, Trackers
from anchorfl.pipeline.training.run_spec import Setup
from anchorfl.tasks.errors import InputError

if TYPE_CHECKING:
    from anchorfl.pipeline.execution.actor_pool import Crews


def run(experiment: Experiment, folder: Path, log: Log = print, crews: Crews | None = None) -> Result:
    """Run ``experiment`` in ``folder``, from its checkpoint where it holds one. InputError on bad options or data.

    crews: of several runs, one after the other.
    """
    store_uri(experiment.tracking.uri, folder)  # a store that MLflow refuses is refused before anything is written
    with ExitStack() as stack:
        stack.enter_context(held(folder))
        if experiment.cluster.backup:
            claim(place_of(experiment.cluster.backup, folder), folder, log)
        if experiment.cluster.executor == "ray":
            from anchorfl.pipeline.cluster import ray_cluster  # serial runs need no Ray

            if ray_cluster.start(experiment.cluster):
                stack.callback(ray_cluster.stop)
        setup = make_setup(experiment, log)
        executor = _executor(setup, crews)
        stack.callback(executor.close)
        write_config(folder, experiment)
        if notice := experiment.method.notice(experiment.federation.rounds):
            log(notice)
        return federate(setup, executor, folder, Progress(experiment.federation.rounds), log)


def resumed(folder: Path, log: Log = print) -> Result:
    """Continue an interrupted run from its last completed round; a finished one gives its result again."""
    experiment = read_experiment(folder)
    done = folder / RESULT
    if done.exists():
        content = read_result(folder, "checksum", "scores")
        log(f"{folder} is finished: nothing to train")
        _deliver(experiment, folder, log)
        if experiment.cluster.backup:
            refresh(place_of(experiment.cluster.backup, folder), folder, log)
        return Result(folder, content["checksum"], content["scores"])
    return run(experiment, folder, log)


def _deliver(experiment: Experiment, folder: Path, log: Log) -> None:
    """Close the record of a finished run and send MLflow what it lacks: a kill may have come before the end of that."""
    with held(folder):
        note_finished(folder)
        try:
            if uri := store_uri(experiment.tracking.uri, folder):
                send(folder, uri)
        except InputError as error:
            log(f"{error}; send it later with: anchorfl track {folder}")


def _executor(setup: Setup, crews: Crews | None) -> Executor:
    e = setup.experiment
    if e.cluster.executor == "serial" or e.federation.batched_clients:
        return in_process(setup)
    from anchorfl.pipeline.cluster.layout import layout
    from anchorfl.pipeline.execution.ray_executor import RayExecutor

    return RayExecutor(setup, None if crews is None else crews.crew(layout(e.cluster, e.task.clients)))


def open_loop(
    setup: Setup, executor: Executor, folder: Path, progress: Progress, log: Log, parent: Path | None = None
) -> Loop:
    """The round loop of a run folder, standing after its last completed round, with its record opened.

    parent: folder of the sweep that the run is a part of.
    """
    e = setup.experiment
    # The tracker needs to know where the loop goes on, so it comes after the checkpoint.
    none = Trackers([], e.tracking)
    loop = Loop(
        e, setup.data().manifest.class_names, executor, none, Checkpoints(folder, e.cluster.keep_checkpoints), progress
    )
    loop.resume()
    done, info = loop.standing.round, run_info(setup, folder)
    if done:
        check_same_data(info.tags, folder)
        check_records(folder, done)
    loop.tracker = open_tracker(e.tracking, folder, done + 1 if done else 0, log)
    loop.tracker.begin(replace(info, parent=parent))
    if e.cluster.backup:
        loop.mirror = Mirror(folder, place_of(e.cluster.backup, folder), log, loop.checkpoints)
    if done:
        progress.start = done
        progress.log(f"going on after round {done}")
    return loop


def federate(
    setup: Setup, executor: Executor, folder: Path, progress: Progress, log: Log = print, parent: Path | None = None
) -> Result:
    """Run what is left of a run folder that this process holds, to its result. parent: as in ``open_loop``."""
    loop = open_loop(setup, executor, folder, progress, log, parent)
    status: Status = "FAILED"
    try:
        result = conclude(setup, folder, loop.run(), loop)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        loop.tracker.end(status)
        if loop.mirror is not None:
            loop.mirror.close()
    return result


@dataclass(frozen=True)
class Result:
    """Where a run is and what it gave; ``checksum``: SHA-256 of the final weights."""

    folder: Path
    checksum: str
    scores: dict[str, dict[str, float]]


def conclude(setup: Setup, folder: Path, state: Tensors, loop: Loop) -> Result:
    """Save the selected model, the result and the pictures, and hand them to the tracker."""
    e, standing, tracker = setup.experiment, loop.standing, loop.tracker
    checksum = final_checksum(state)
    scores = standing.scores
    if standing.best_round:
        scores = _scores_of(folder, standing.best_round, scores)
        if e.tested == "last":
            late = loop.tested(state)
            scores |= {s: dict(v.values) for s, v in late.items()}
            write_late(folder, record_of(standing.best_round, late, loop.class_names))
            tracker.artifact(folder / LATE)
    chosen = standing.best_round or standing.round
    about = {"round": chosen, "scores": scores, "run": folder.name}
    if e.method.evaluate_on == "server":
        save_model(folder / "model", setup, weights_in(state), about)
    else:
        loop.progress.log(f"{e.method.name} {NO_MODEL}: none is saved")
    content = {
        "checksum": checksum, "scores": scores, "round": chosen, "rounds": standing.round, "seconds": standing.seconds,
        "failed": standing.failures, "retried": standing.retries, "faults": standing.faults, "digest": digest(e),
    }  # fmt: skip
    if summary := standing.summary(loop.recovered):
        loop.progress.log(summary)
    write_per_class(folder)
    _draw(setup, folder)
    write_atomically(folder / "plan.json", Path(setup.data().file("plan.json")).read_bytes())
    for name in (
        CONFIG,
        "plan.json",
        "per_class.csv",
        "report",
        *(["model"] if e.method.evaluate_on == "server" else []),
    ):
        tracker.artifact(folder / name)
    # Last, since its presence says that the run is finished and everything else is there.
    write_atomically(folder / RESULT, json.dumps(content, indent=1).encode())
    return Result(folder, checksum, scores)


def _draw(setup: Setup, folder: Path) -> None:
    """The curves and the partition of a run, below its folder."""
    from anchorfl.pipeline.results.compare import (
        compare,  # here, since matplotlib takes a second to import, and a run starts without
    )
    from anchorfl.pipeline.results.partition_plot import draw_partition, fits

    compare([folder], folder / "report")
    data = setup.data()
    if fits(data.manifest):
        draw_partition(data.manifest, data.held(), folder / "report" / "partition.png")


def _scores_of(folder: Path, round_: int, names: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The scores of a round in the records, split by split as ``names`` has them. InputError where they are gone."""
    found = {r.round: r.metrics for r in read_records(folder)[0]}
    try:
        return {split: {name: found[round_][f"{split}/{name}"] for name in values} for split, values in names.items()}
    except KeyError as error:
        lacking = f"{folder / 'metrics.jsonl'} lacks {error} of round {round_}"
        raise InputError(f"{lacking}; restore it from a copy") from error


def open_tracker(options: TrackingOptions, folder: Path, resume_at: int, log: Callable[[str], None]) -> Trackers:
    """The run folder and, unless ``uri`` is ``none``, MLflow. ``resume_at``: the round that is computed next; new: 0.

    Errors: InputError for a store that MLflow refuses.
    """
    store = store_uri(options.uri, folder)
    journal: list[Tracker] = [JsonLines(folder, resume_at)]
    if not store:
        return Trackers(journal, options)
    wait = LOCAL_WAIT_S if store.startswith("sqlite") else SERVER_WAIT_S
    return Trackers([*journal, MlflowWriter(folder, store, log, timeout_s=wait)], options)
