"""``anchorfl data``: list the data sets, prepare one ahead of a run, write a made-up one, check a table."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfl.pipeline.config.presets import preset_names, read_preset, shipped
from anchorfl.pipeline.terminal import paragraph, say, say_error, width
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.sources import SOURCES
from anchorfl.tasks.options import TaskOptions

if TYPE_CHECKING:  # slow libraries are imported where a command needs them
    from anchorfl.pipeline.config.experiment import Experiment
    from anchorfl.tasks.contract import Task

ROWS, LISTED = 400, 4
INDENT = " " * 20
USAGE = (
    "usage: anchorfl data prepare PRESET|NAME [--task.option value ...] [--seed N] [--cluster.executor ray]; a table of"
    " your own in place of PRESET: --task.file FILE --task.label_columns COLUMNS"
)


def show(arguments: list[str]) -> int:
    """Print the status of every data set, or of those that are named."""
    parser = argparse.ArgumentParser(
        prog="anchorfl data",
        description="every data set: found or missing, where to get it, licence and terms, size, digest, presets",
        epilog="also: anchorfl data fetch, prepare, demo, check (each with --help)",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--json", action="store_true", help="a list of objects on standard output")
    options = parser.parse_args(arguments)
    from anchorfl.tasks.registry import find_task, task_names

    names = options.names or task_names()
    presets, found = _presets(), list[dict[str, Any]]()
    for name in names:
        try:
            task = find_task(name)
        except InputError as error:
            if options.names:
                raise
            # of a plug-in; the others are there
            if options.json:
                say_error(f"anchorfl: {name}: {error}")
            else:
                say(paragraph(f"{name:<19} {error}", width(), INDENT + "  ") + "\n")
            continue
        if options.json:
            found.append(_facts(task, presets.get(name, [])))
            continue
        for line in _describe(task, presets.get(name, [])):
            say(paragraph(line, width(), INDENT + "  "))
        say()
    if options.json:
        say(json.dumps(found, indent=1))
    return 0


def _facts(task: Task, presets: list[str]) -> dict[str, Any]:
    """Return what ``_describe`` says of a data set, less the digest of its files, which are not read here."""
    from anchorfl.tasks.files.raw_files import status

    state = status(task, TaskOptions(name=task.name))
    return {
        "name": task.name,
        "title": task.title,
        "kind": task.kind,
        "classes": len(task.class_names) or None,
        "bundled": not task.source.files,
        "found": state.found,
        "folder": str(state.folder) if state.folder else None,
        "missing": list(state.missing),
        "source": task.source.url,
        "licence": task.source.licence,
        "gated": task.source.gated,
        "presets": presets,
    }


def _describe(task: Task, presets: list[str]) -> list[str]:
    """Return lines about a data set: its files, where they lie or come from, and its presets."""
    from anchorfl.tasks.files.raw_files import other_forms, status
    from anchorfl.tasks.ingest.raw_digest import raw_digest, raw_files

    options = TaskOptions(name=task.name)
    state = status(task, options)
    word = "bundled" if not task.source.files else "found" if state.found else "missing"
    classes = f"{len(task.class_names)} classes" if task.class_names else "classes as in its files"
    lines = [f"{task.name:<19} {word}{f' in {state.folder}' if state.folder else ''}"]
    lines.append(f"{INDENT}{task.title}; {classes}, {task.kind}-label")
    if state.missing:
        looked = ", ".join(map(str, state.searched)) or "nowhere: $ANCHORFL_DATA is not set"
        more = f" and {len(state.missing) - LISTED} more" if len(state.missing) > LISTED else ""
        lines.append(f"{INDENT}lacks {', '.join(state.missing[:LISTED])}{more}; looked in {looked}")
        lines += [f"{INDENT}found in another form: --task.variant {v}" for v in other_forms(task, options)]
        lines += [f"{INDENT}to download it: anchorfl data fetch {task.name}"] if task.name in SOURCES else []
    elif state.folder:
        files = [path.stat().st_size for _, path in raw_files(task, options, state.folder)]
        digest = raw_digest(task, options, state.folder)[:16]
        lines.append(f"{INDENT}{len(files)} files, {sum(files) / 1e6:,.1f} MB, digest {digest}")
    gate = "; access must be applied for" if task.source.gated else ""
    origin = f"from {task.source.url}" if "://" in task.source.url else task.source.url
    lines.append(f"{INDENT}{origin}; {task.source.licence}{gate}")
    return [*lines, f"{INDENT}presets: {', '.join(presets)}"] if presets else lines


def _presets() -> dict[str, list[str]]:
    """Return the shipped presets by the data set that they need."""
    found: dict[str, list[str]] = {}
    for name, preset in shipped().presets.items():
        found.setdefault(preset.federation.tree["task"]["name"], []).append(name)
    return found


def prepare(arguments: list[str]) -> int:
    """Prepare the data of a preset, or a data set by its name, ahead of a run; draw the partition."""
    if arguments[:1] in (["--help"], ["-h"]):
        say(f"{USAGE}\n\n{prepare.__doc__}")
        return 0
    from anchorfl.pipeline.results.federation_statistics import published_statistics, statistics_table
    from anchorfl.pipeline.results.partition_plot import draw_partition
    from anchorfl.tasks.ingest.ingest import prepare as prepare_task
    from anchorfl.tasks.registry import task_of

    experiment = _experiment(arguments)
    began, task = time.perf_counter(), task_of(experiment.task)
    if experiment.cluster.uses_ray:
        from anchorfl.pipeline.cluster import ray_cluster

        with ray_cluster.session(experiment.cluster):
            prepared = prepare_task(task, experiment.task, experiment.seed, engine="ray", log=say)
    else:
        prepared = prepare_task(task, experiment.task, experiment.seed, engine="local", log=say)
    say(f"prepared in {time.perf_counter() - began:.1f} s\n")
    m = prepared.manifest
    say(statistics_table(prepared, published_statistics(arguments[0] if arguments else "")) + "\n")
    picture = Path(prepared.folder) / "partition.png"
    draw_partition(m, prepared.class_histogram(), picture, f"{m.task}, {m.options.partition}, seed {m.seed}")
    say(f"partition {m.partition_digest[:16]}, drawn in {picture}")
    return 0


def _experiment(arguments: list[str]) -> Experiment:
    """Return the experiment of the preset or data set that is named first, with the overrides.

    It runs in one process unless they say otherwise, or name a cluster.
    """
    from anchorfl.pipeline.config.experiment import Experiment
    from anchorfl.pipeline.config.federation import FederationOptions
    from anchorfl.pipeline.config.overrides import override, typed_options
    from anchorfl.pipeline.methods import METHODS
    from anchorfl.pipeline.run.assemble import from_words, names_table
    from anchorfl.pipeline.run.prepare import resolve_options
    from anchorfl.tasks.plugins import names_code
    from anchorfl.tasks.registry import task_names

    name = "" if not arguments or arguments[0].startswith("-") else arguments[0]
    overrides = arguments[1:] if name else arguments
    if not name and not names_table(overrides):
        raise InputError(USAGE)
    command = "anchorfl data prepare"
    typed = typed_options(overrides)
    if "cluster.executor" not in typed:
        overrides = ["--cluster.executor", "ray" if typed.get("cluster.address") else "serial", *overrides]
    if name in task_names() or (names_code(name) and not name.endswith(".toml")):
        federation = FederationOptions(clients_per_round=1)  # nobody trains; any number of clients will do
        experiment = Experiment(task=TaskOptions(name=name), method=METHODS["fedavg"](), federation=federation)
        return resolve_options(override(experiment, overrides, f"{command} {name}"))
    if name and name not in preset_names() and not name.endswith(".toml"):
        raise InputError(f"{name!r} is no data set and no preset{nearest(name, [*task_names(), *preset_names()])}")
    return from_words(name, overrides, command).experiment


def demo(arguments: list[str]) -> int:
    """Write made-up files in the raw format of a data set."""
    from anchorfl.tasks.synthetic import SYNTHETIC

    parser = argparse.ArgumentParser(
        prog="anchorfl data demo",
        description="Write made-up files in the exact raw format of a data set, to try commands where the real files "
        "cannot be had. Their results mean nothing.",
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(SYNTHETIC))
    parser.add_argument("--rows", type=int, default=ROWS, help=f"about so many samples (default {ROWS})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="folder (default demo/NAME); must be new or empty")
    options = parser.parse_args(arguments)
    if options.name not in SYNTHETIC:
        raise InputError(
            f"no made-up files for {options.name!r}{nearest(options.name, SYNTHETIC)}: {', '.join(SYNTHETIC)}"
        )
    if options.rows < 1 or options.seed < 0:
        raise InputError(f"--rows {options.rows} --seed {options.seed}: must be at least 1 and 0")
    folder = options.out or Path("demo") / options.name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--out {folder} is not empty: give a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        SYNTHETIC[options.name](folder, options.rows, options.seed)
    except ValueError as error:  # too few rows for the shape that the data set has
        if not any(folder.iterdir()):
            folder.rmdir()
        raise InputError(f"--rows {options.rows}: too few for made-up files of {options.name} ({error})") from error
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say(f"made-up files of {options.name} ({size / 1e6:.1f} MB) in {folder}: not the data set, for trying only")
    say(f"next: {shlex.join(_next_of_demo(options.name, folder))}")
    return 0


def _next_of_demo(name: str, folder: Path) -> list[str]:
    """Return the command that prepares made-up files: they are few, so with few clients, or all classes known to each.

    The preset is that of the data set with the fewest clients, FedAvg's where there are several.
    """
    command = ["anchorfl", "data", "prepare"]
    presets = _presets().get(name, [])
    if not presets:
        return [*command, name, "--task.root", str(folder), "--task.partition", "iid"]
    preset = min(presets, key=lambda p: (not p.endswith("/fedavg"), read_preset(p).task.clients))
    return [*command, preset, "--task.root", str(folder)]


def check(arguments: list[str]) -> int:
    """Print what a table holds and what will be a problem; return 2 where a run would stop."""
    parser = argparse.ArgumentParser(
        prog="anchorfl data check",
        description="Say what a Parquet or CSV file, or a folder of images, holds by class and client, before a run.",
    )
    parser.add_argument("file", metavar="FILE", help=".parquet, .csv or .csv.gz; or a folder with one per class")
    helps = {
        "label_columns": "columns of 0 and 1 (names, patterns, with commas), or a column of classes or of lists",
        "label_separator": "what stands between the classes in a cell of one text column of labels; none: nothing",
        "input_columns": "columns of numbers, or one column of texts, lists or paths of images; default: guess",
        "client_column": "column that says whose row it is",
        "split_column": "column of train, validation and test; default: a fifth is drawn as test",
        "ignore_columns": "columns to leave out",
        "class_names": "file with a class name a line, or id<TAB>name",
        "root": "folder below which FILE lies",
    }
    for name, text in helps.items():
        parser.add_argument(f"--{name}", f"--task.{name}", dest=name, metavar=name.upper(), default="", help=text)
    parser.add_argument(
        "--on_bad_row", "--task.on_bad_row", dest="on_bad_row", choices=("error", "skip"), default="error"
    )
    parser.add_argument(
        "--min_positives", "--task.min_positives", dest="min_positives", type=int, default=0,
        help="leave out classes with fewer positive rows",
    )  # fmt: skip
    values = vars(parser.parse_args(arguments))
    options = TaskOptions(file=values.pop("file"), **values)
    from anchorfl.tasks.tabular.inspect import inspect_table, next_command

    report = inspect_table(options)
    say(report.text())
    step = "mend what stops a run"
    if report.mended or not report.ready:
        step = next_command(options, report)
    say(f"\nnext: {step}")
    return 2 if report.stops else 0
