"""The ``anchorfl`` commands. Slow libraries are imported where a command needs them: ``--help`` answers at once."""

from __future__ import annotations

import argparse
import json
import shlex
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from anchorfl.pipeline import terminal
from anchorfl.pipeline.cli.resumable import resumable
from anchorfl.pipeline.storage.places import PLACES
from anchorfl.pipeline.storage.run_folder import CONFIG, RUNS, read_result
from anchorfl.pipeline.terminal import logged_apart, say, say_error
from anchorfl.tasks.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anchorfl.pipeline.config.experiment import Experiment
    from anchorfl.pipeline.run.lifecycle import Result


PRINT = "--print"
RUN_USAGE = """usage: anchorfl run PRESET [PRESET ...] [--section.option value ...] [--print]
       anchorfl run --task.file FILE --task.label_columns COLUMNS [--method.name METHOD] [--section.option value ...]
presets: {presets}
all options: anchorfl run PRESET --help
--print trains nothing: every option as it would run, as a preset, with its digest, and what is there already.
A table of your own needs no preset. One that is given lends method, network and rounds; what belongs to its data set is
left out, in a line that says so. --method.name takes another method, of a preset too: with its own options and
defaults, none of the other method's."""


def run(arguments: list[str]) -> int:
    """Train: presets first, overrides after. All are read and their data looked for before the first run starts."""
    from anchorfl.pipeline.config.presets import some_presets

    split = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    presets, overrides = arguments[:split], [word for word in arguments[split:] if word != PRINT]
    if not presets and overrides in (["--help"], ["-h"]):
        say(RUN_USAGE.format(presets=some_presets()))
        return 0
    from anchorfl.pipeline.config.idle_options import check_idle
    from anchorfl.pipeline.config.overrides import typed_options
    from anchorfl.pipeline.run.assemble import from_words, names_table

    if not presets and not names_table(overrides):
        raise InputError(f"run needs a preset: {some_presets()}; or the path of a .toml file; or a table, --task.file")
    with logged_apart() if PRINT in arguments else nullcontext():
        runs = [from_words(preset, overrides, "anchorfl run", say) for preset in presets or [""]]
    experiments = [run.experiment for run in runs]
    check_idle(typed_options(overrides), experiments)
    if len(presets) > 1 and experiments[0].output:
        raise InputError("--output names one folder: give it with one preset at a time")
    if len({experiment.cluster.address for experiment in experiments if experiment.cluster.uses_ray}) > 1:
        raise InputError("the presets differ in cluster.address: run them one at a time, or give --cluster.address")
    if PRINT in arguments:
        say("\n".join(_printed(run.name, run.experiment) for run in runs).rstrip("\n"))
        return 0
    return _train([run.name for run in runs], experiments)


def _printed(name: str, experiment: Experiment) -> str:
    """Return an experiment as a preset, under comments that say what is there of it."""
    from anchorfl.pipeline.config.experiment import digest
    from anchorfl.pipeline.config.schema import to_toml
    from anchorfl.tasks.ingest.ingest import prepared_at
    from anchorfl.tasks.registry import task_of

    try:
        place, found = prepared_at(task_of(experiment.task), experiment.task, experiment.seed)
        data = f"prepared, in {place}" if found else f"not prepared yet; goes to {place}"
    except InputError as error:  # its raw files are not there; the options are good without them
        data = str(error)
    key, same = digest(experiment), list[str]()
    for path in sorted(RUNS.glob("*/result.json")):
        try:
            same += [str(path.parent)] if read_result(path.parent).get("digest") == key else []
        except InputError as error:  # of another run, perhaps
            say_error(f"anchorfl: {error}")
    lines = [
        name,
        f"digest: {key}",
        f"data: {data}",
        f"finished runs of this digest: {', '.join(same) or f'none in {RUNS}/'}",
    ]
    return "".join(f"# {line}\n" for line in lines) + to_toml(experiment)


def _train(names: list[str], experiments: list[Experiment]) -> int:
    from anchorfl.pipeline.run.lifecycle import run as run_one
    from anchorfl.pipeline.run.prepare import prepare_data
    from anchorfl.pipeline.storage.run_folder import new_folder
    from anchorfl.tasks.files.raw_files import raw_folder
    from anchorfl.tasks.registry import task_of

    for experiment in experiments:
        raw_folder(task_of(experiment.task), experiment.task)
    folders = []
    with ExitStack() as stack:
        clusters = [experiment.cluster for experiment in experiments if experiment.cluster.uses_ray]
        actor_pools = None
        if clusters:
            from anchorfl.pipeline.cluster import ray_cluster
            from anchorfl.pipeline.execution.actor_pool import ActorPools

            stack.enter_context(ray_cluster.session(clusters[0]))  # one Ray for all runs of the command
            actor_pools = ActorPools()
            stack.callback(actor_pools.close)
        for experiment in experiments[1:]:  # Ray Data would wait for CPUs that the actors of the run before hold
            prepare_data(experiment, say)
        for name, experiment in zip(names, experiments, strict=True):
            folder = new_folder(experiment, Path(name).stem if name.endswith(".toml") else name)
            say(f"{name}: run folder {folder}")
            with resumable("anchorfl", "resume", folder, begun=folder / CONFIG):
                result = run_one(experiment, folder, say, actor_pools)
            say(_done(name, result))
            folders.append(folder)
    say()
    _compare(folders, drawn=len(folders) == 1)
    say(_records(experiments[0], folders[0]))
    return 0


def _done(name: str, result: Result) -> str:
    return f"{name}: done\nweights sha256 {result.checksum}"


def _compare(folders: Sequence[Path], out: Path | None = None, *, drawn: bool = False) -> None:
    """Write and print the comparison of run folders. out: its folder; None: that of the one run, or of all. drawn: it
    is written already, as a run does at its end.
    """
    from anchorfl.pipeline.results.compare import compare

    out = out or (RUNS / "comparison" if len(folders) > 1 else folders[0] / "report")
    say(f"{compare(folders, None if drawn else out, terminal.width())}\nTable and curves: {out}")


def _records(experiment: Experiment, folder: Path) -> str:
    from anchorfl.pipeline.config.redaction import redact
    from anchorfl.pipeline.tracking.mlflow_store import store_uri

    uri = store_uri(experiment.tracking.uri, folder)
    if not uri:
        return f"MLflow was off (tracking.uri = none)\nrecords: {folder}"
    if uri.startswith("http"):
        return f"MLflow records: {redact(uri)} (open it in a browser)"
    where = redact(uri)
    found = uri == store_uri("", RUNS / "any")  # where ``anchorfl ui`` looks by itself
    named = "" if found else f" --uri {shlex.quote(where)}"
    return f"MLflow records: {where}\nlook at them with: anchorfl ui{named}"


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add an option for every place that a run folder may name, for one that this user's commands did not write."""
    group = parser.add_argument_group("places", "in place of those that the folder names, as for anchorfl run")
    for option in PLACES:
        group.add_argument(f"--{option}", default=None, metavar="PLACE")


def typed_places(options: argparse.Namespace) -> dict[str, str]:
    """Return the places that were typed, option -> value."""
    return {option: value for option in PLACES if (value := getattr(options, option)) is not None}


def parse_places(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the places among the words of a command line, option -> value, and the words that are left."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_places(parser)
    options, rest = parser.parse_known_args(words)
    return typed_places(options), rest


def resume(options: argparse.Namespace) -> int:
    """Go on with an interrupted run."""
    from anchorfl.pipeline.run.lifecycle import resume
    from anchorfl.pipeline.storage.restore import restore_if_remote
    from anchorfl.pipeline.storage.run_folder import read_own_experiment

    source = str(options.run)
    folder = restore_if_remote(source, say)
    copy = "" if folder == Path(source) else source
    with resumable("anchorfl", "resume", folder, begun=folder / CONFIG):
        say(_done(str(folder), resume(folder, say, typed_places(options), copy)))
    say()
    _compare([folder], drawn=True)
    say(_records(read_own_experiment(folder, typed_places(options), copy), folder))
    return 0


def data(arguments: list[str]) -> int:
    """Show the status of the data sets, or run a command of ``anchorfl data``."""
    from anchorfl.pipeline.cli import data as data_sets
    from anchorfl.pipeline.cli.fetch import fetch

    inner = {"prepare": data_sets.prepare, "fetch": fetch, "demo": data_sets.demo, "check": data_sets.check}
    if arguments and arguments[0] in inner:
        return inner[arguments[0]](arguments[1:])
    return data_sets.show(arguments)


def probe(arguments: list[str]) -> int:
    """Measure the memory that a client of a preset needs."""
    from anchorfl.pipeline.cli.probe import probe as run_probe

    return run_probe(arguments)


def compare(options: argparse.Namespace) -> int:
    """Write table and curves of several runs."""
    if options.json:
        from anchorfl.pipeline.results.compare import compare as compare_runs

        say(json.dumps(compare_runs(options.runs, options.out).to_dicts(), indent=1))
        return 0
    _compare(options.runs, options.out)
    return 0


def predict(options: argparse.Namespace) -> int:
    """Write scores per class name for the samples of a file; with labels in the file, print the model's scores too."""
    from anchorfl.pipeline.results.predict import model_of, write_to
    from anchorfl.pipeline.results.predict import predict as predict_file
    from anchorfl.tasks.metrics.scores import MEASURES

    prediction = predict_file(model_of(options.run), options.file, options.network, options.task)
    write_to(prediction, options.out)
    if options.out:
        say(f"scores of {len(prediction.predicted)} samples: {options.out}")
    if prediction.truth is not None:
        figures = ", ".join(
            f"{MEASURES[name].shown} {100 * value:.2f}" for name, value in prediction.truth.values.items()
        )
        say_error(f"{prediction.labeled} samples with labels, percent: {figures}")
        for note in prediction.truth.notes:
            say_error(f"  {note}")
    return 0


def diagnose(options: argparse.Namespace) -> int:
    """Measure what the runs' numbers do not show, run by run."""
    from anchorfl.pipeline.diagnosis.diagnose import DiagnoseOptions
    from anchorfl.pipeline.diagnosis.diagnose import diagnose as diagnose_run

    clients = None
    if options.clients:
        numbers = options.clients.split(",")
        if len(numbers) != 2 or not all(n.strip().isdecimal() and len(n) < 10 for n in numbers):
            raise InputError(f"--clients {options.clients[:40]}: give two clients as numbers, such as 0,3")
        clients = int(numbers[0]), int(numbers[1])
    diagnose_options = DiagnoseOptions(
        parts=tuple(options.parts.split(",")), clients=clients, rows=options.rows, pairs=options.pairs,
        cap=options.cap, clusters=options.clusters, classes=tuple(c.strip() for c in options.classes.split(",") if c),
    )  # fmt: skip
    for run in options.runs:
        lines = diagnose_run(run, diagnose_options, places=typed_places(options))
        say("\n".join([f"\n{run}:", *(f"- {line}" for line in lines), f"Tables and figures: {run / 'diagnosis'}"]))
    return 0


def sync(options: argparse.Namespace) -> int:
    """Send to MLflow what it lacks of a run."""
    from anchorfl.pipeline.config.redaction import redact
    from anchorfl.pipeline.tracking.mlflow_store import store_uri
    from anchorfl.pipeline.tracking.mlflow_writer import send

    rounds = send(options.run, options.uri)
    say(f"{rounds} rounds sent to {redact(store_uri(options.uri, options.run))}")
    return 0


def ui(options: argparse.Namespace) -> NoReturn:
    """Show MLflow's pages."""
    from anchorfl.pipeline.tracking.mlflow_store import store_uri
    from anchorfl.pipeline.tracking.mlflow_ui import serve

    serve(
        options.uri or store_uri("", RUNS / "any"),
        options.port,
        options.host or "127.0.0.1",
        explicit_host=bool(options.host),
    )
