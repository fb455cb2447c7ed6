"""One run from options to results: prepare, federate, record, save. What ``anchorfl run`` and ``anchorfl resume``
call.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.checkpoint import Checkpoints
from pipeline.closing import Result, conclude
from pipeline.concepts import concept_vectors, look_for_encoder
from pipeline.config import read_experiment
from pipeline.delivery import store_uri
from pipeline.executor import Executor
from pipeline.experiment import Experiment, digest, flat
from pipeline.first_values import encoder_start, name_vectors
from pipeline.folder import RESULT, held, read_result, write_config
from pipeline.journal import RunInfo, note_finished, read_about, read_records
from pipeline.mirror import Mirror
from pipeline.mirrored import claim, place_of, refresh
from pipeline.pooled import in_process
from pipeline.progress import Progress
from pipeline.rounds import Loop
from pipeline.setup import Setup
from pipeline.tracking import Status, Trackers, open_tracker, send
from tasks.contract import InputError
from tasks.ingest import prepare
from tasks.sources import task_of
from tasks.store import Prepared

if TYPE_CHECKING:
    from pipeline.crew import Crews

Say = Callable[[str], None]


def run(experiment: Experiment, folder: Path, say: Say = print, crews: Crews | None = None) -> Result:
    """Run ``experiment`` in ``folder``, from its checkpoint where it holds one. InputError on bad options or data.

    crews: of several runs, one after the other.
    """
    store_uri(experiment.tracking.uri, folder)  # a store that MLflow refuses is refused before anything is written
    with ExitStack() as stack:
        stack.enter_context(held(folder))
        if experiment.cluster.mirror:
            claim(place_of(experiment.cluster.mirror, folder), folder, say)
        if experiment.cluster.executor == "ray":
            from pipeline import cluster  # serial runs need no Ray

            if cluster.start(experiment.cluster):
                stack.callback(cluster.stop)
        setup = make_setup(experiment, say)
        executor = _executor(setup, crews)
        stack.callback(executor.close)
        write_config(folder, experiment)
        if statement := experiment.method.statement(experiment.federation.rounds):
            say(statement)
        return federate(setup, executor, folder, Progress(experiment.federation.rounds), say)


def resumed(folder: Path, say: Say = print) -> Result:
    """Continue an interrupted run from its last completed round; a finished one gives its result again."""
    experiment = read_experiment(folder)
    done = folder / RESULT
    if done.exists():
        content = read_result(folder, "checksum", "scores")
        say(f"{folder} is finished: nothing to train")
        _deliver(experiment, folder, say)
        if experiment.cluster.mirror:
            refresh(place_of(experiment.cluster.mirror, folder), folder, say)
        return Result(folder, content["checksum"], content["scores"])
    return run(experiment, folder, say)


def _deliver(experiment: Experiment, folder: Path, say: Say) -> None:
    """Close the record of a finished run and send MLflow what it lacks: a kill may have come before the end of that."""
    with held(folder):
        note_finished(folder)
        try:
            if uri := store_uri(experiment.tracking.uri, folder):
                send(folder, uri)
        except InputError as error:
            say(f"{error}; send it later with: anchorfl track {folder}")


def make_setup(experiment: Experiment, say: Say, prepared: Prepared | None = None) -> Setup:
    """Prepared data (made if they are not in the cache) and what the network starts from. prepared: the data, where
    the caller has them. InputError where network, data and weights do not fit each other.
    """
    if not experiment.task.clients:
        raise ValueError("task.clients = 0: count the clients first (pipeline.own_data.settled)")
    start = encoder_start(experiment, say)
    if prepared is None:
        look_for_encoder(experiment)
    data = prepared or prepare_data(experiment, say)
    if data.manifest.kind not in experiment.method.kinds:
        raise InputError(
            f"method {experiment.method.name!r} is for {'- and '.join(experiment.method.kinds)}-label tasks, and"
            f" {data.manifest.task!r} is {data.manifest.kind}-label: choose another method or task"
        )
    _check_merge(experiment)
    if experiment.evaluation.chosen_by is not None and not data.size("validation"):
        raise InputError(
            f"evaluation.select = {experiment.evaluation.select!r} needs validation rows, and task.validation ="
            f" {experiment.task.validation:g} of these data is none: raise it, or set evaluation.select to 'last'"
        )
    if experiment.evaluation.metrics == "classification" and data.manifest.kind == "multi":
        raise InputError(
            f"evaluation.metrics = 'classification' is for single-label tasks, and {data.manifest.task!r} is"
            " multi-label: set it to 'decisions' or 'ranking'"
        )
    if experiment.optimizer.augments and data.manifest.spec.kind != "image":
        raise InputError(
            f"optimizer.crop and flip are for images, and {data.manifest.task!r} has inputs of kind"
            f" {data.manifest.spec.kind!r}: set them to 0 and 'none'"
        )
    names, concepts = name_vectors(experiment, data, say), concept_vectors(experiment, data, say)
    setup = Setup(experiment, data.place, names, start, concepts)
    if experiment.model.network != "auto" or start is not None or experiment.optimizer.onednn:
        try:
            setup.model()  # here, where an error is one line, and not in every worker
        except ValueError as error:
            raise InputError(str(error)) from error
    return setup


def _check_merge(experiment: Experiment) -> None:
    """InputError where the method's merge is none that the robust options can change."""
    method = experiment.method
    for name, option in experiment.federation.rule.uses:
        if name not in method.robust:
            allowed = f" (it allows {', '.join(method.robust)})" if method.robust else ""
            mend = "clip_norm to 0" if name == "clip_norm" else "merge to 'mean'"
            raise InputError(
                f"{option}: method {method.name!r} does not allow it{allowed}; set federation.{mend}, or choose another"
                " method (docs/robust-merges.md says why)"
            )


def prepare_data(experiment: Experiment, say: Say) -> Prepared:
    """The data of an experiment, from the cache or made now."""
    engine = "ray" if experiment.cluster.executor == "ray" else "local"
    task = task_of(experiment.task)
    return prepare(task, experiment.task, experiment.seed, engine=engine, log=say)  # type: ignore[arg-type]


def _executor(setup: Setup, crews: Crews | None) -> Executor:
    e = setup.experiment
    if e.cluster.executor == "serial" or e.federation.pooled:
        return in_process(setup)
    from pipeline.actors import RayExecutor
    from pipeline.cluster import layout

    return RayExecutor(setup, None if crews is None else crews.crew(layout(e.cluster, e.task.clients)))


def open_loop(
    setup: Setup, executor: Executor, folder: Path, progress: Progress, say: Say, parent: Path | None = None
) -> Loop:
    """The round loop of a run folder, standing after its last completed round, with its record opened.

    parent: folder of the sweep that the run is a part of.
    """
    e = setup.experiment
    # The tracker needs to know where the loop goes on, so it comes after the checkpoint.
    none = Trackers([], e.tracking)
    loop = Loop(
        e, setup.data().manifest.class_names, executor, none, Checkpoints(folder, e.cluster.checkpoints), progress
    )
    loop.resume()
    done, info = loop.standing.round, run_info(setup, folder)
    if done:
        check_same_data(info.tags, folder)
        check_records(folder, done)
    loop.tracker = open_tracker(e.tracking, folder, done + 1 if done else 0, say)
    loop.tracker.begin(replace(info, parent=parent))
    if e.cluster.mirror:
        loop.mirror = Mirror(folder, place_of(e.cluster.mirror, folder), say, loop.checkpoints)
    if done:
        progress.start = done
        progress.say(f"going on after round {done}")
    return loop


def check_records(folder: Path, done: int) -> None:
    """InputError where the records lack one of the rounds 0 to ``done``, which are not computed again."""
    if lacking := sorted({*range(done + 1)} - {record.round for record in read_records(folder)[0]}):
        raise InputError(
            f"{folder / 'metrics.jsonl'} lacks round {lacking[0]} ({len(lacking)} that are done by the checkpoint);"
            " restore it from a copy, or start the run anew in another --output"
        )


def check_same_data(now: Mapping[str, str], folder: Path) -> None:
    """InputError where a run would go on with other data than it began with: a version of this package may prepare the
    same options otherwise (CHANGELOG.md, *Numbers*), and raw files may have changed. now: tags of ``run_info``.
    """
    tags = read_about(folder).get("tags", {})
    for name in ("data_digest", "partition_digest"):
        if tags.get(name, now[name]) != now[name]:
            raise InputError(
                f"{folder}: its data are prepared otherwise now ({name} differs): go on with the version and the raw"
                " files that it began with, or start anew in another --output"
            )


def federate(
    setup: Setup, executor: Executor, folder: Path, progress: Progress, say: Say = print, parent: Path | None = None
) -> Result:
    """Run what is left of a run folder that this process holds, to its result. parent: as in ``open_loop``."""
    loop = open_loop(setup, executor, folder, progress, say, parent)
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


def run_info(setup: Setup, folder: Path) -> RunInfo:
    """What a run is, for its record."""
    e, manifest = setup.experiment, setup.data().manifest
    tags = {
        "method": e.method.name,
        "data_digest": manifest.data_digest,
        "partition_digest": manifest.partition_digest,
        "config_digest": digest(e),
        **setup.vectors(),
        "git_commit": _commit(),
        **({"statement": statement} if (statement := e.method.statement(e.federation.rounds)) else {}),
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("anchorfl", "torch", "ray", "mlflow")},
    }
    sets = [
        (f"{manifest.task}/{s}", manifest.data_digest[:32], s, manifest.raw_digest)
        for s in ("train", "validation", "test")
    ]
    return RunInfo(name=folder.name, experiment=manifest.task, params=flat(e), tags=tags, datasets=sets, folder=folder)


def version_of(name: str) -> str:
    """Version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:  # a serial run without MLflow needs neither of the two
        return "not installed"


def _commit() -> str:
    """The commit of the running code, marked where files differ from it; 'unknown' outside a git checkout."""
    here = Path(__file__).resolve().parent
    try:
        asked = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(asked, cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
