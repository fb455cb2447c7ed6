"""The commands of this package. Slow libraries are imported where a command needs them."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorfl.pipeline.cli.report import report as report_runs
from anchorfl.pipeline.cli.resumable import resumable
from anchorfl.pipeline.terminal import logged_apart, say, width
from anchorfl.tasks.errors import InputError

if TYPE_CHECKING:
    from anchorfl.pipeline.config.experiment import Experiment
    from anchorfl.tuning.search.results import Sweep
    from anchorfl.tuning.sweep.plan import SweepPlan

USAGE = """usage: anchorfl sweep PRESET [PRESET ...] [--space NAME=RANGE ...] [--output FOLDER] [--json]
                      [--option value ...] [--section.option value ...]
       anchorfl sweep --task.file FILE --task.label_columns COLUMNS ...  (a table of your own needs no preset)
       anchorfl sweep --resume FOLDER [--trials N] [--hours H] ...       (or its copy: s3://bucket/runs/NAME)
RANGE: low:high, log:low:high, tail:low:high (percentiles near 100), int:low:high, int:log:low:high, or values with
       commas; :n at the end gives n points of a grid. Without --space: the method's own space.
Several presets: each is tried, as it is or with every point of the space; they have data, rounds and scores in common.
--json: the result as an object on standard output; progress goes to standard error."""


TABLE_USAGE = """usage: anchorfl table PAPER [--data r8-8,es-5] [--rows fedavg,fedalign] [--seeds 4321,4322]
                      [--vary method.q1=95,97,99] [--runs FOLDER] [--out FOLDER] [--parallel N] [--show]
                      [--json] [--row "Mine = fedavg --method.name mine:Mine"] [--section.option value ...]
Run what is missing of a paper's table, go on with what was interrupted, and write it beside the published figures.
  --data, --rows  data sets and methods, as the folders and files of the presets are called; default: all
  --seeds         default: the authors'
  --row           a row of your own beside the paper's: its name, the row that lends data, network and rounds, and
                  the options in which yours differs; give it several times for several rows
  --vary          an option and its values: every row with each of them, and a figure of the scores against them
  --runs          where finished runs are looked for, and new ones go; default: runs
  --out           folder of the page; default: FOLDER/table-PAPER, with --vary FOLDER/table-PAPER-OPTION
  --parallel      runs at a time; default: as many as the machine, or the cluster, has CPUs
  --show          run nothing: the page of what is there, and no record in MLflow
  --json          the numbers as an object on standard output; progress goes to standard error
  --section.option value: for every run, as in anchorfl run"""


def sweep(arguments: list[str]) -> int:
    """Search hyper-parameters of a preset, or go on with a sweep."""
    args, options, overrides = _split(arguments)
    with logged_apart() if args.json else nullcontext():
        plan, folder = _planned(args, options, overrides)
    return _run(plan, folder, as_json=args.json)


def _planned(args: argparse.Namespace, options: dict[str, Any], overrides: list[str]) -> tuple[SweepPlan, Path]:
    """Return the plan of a sweep, new or begun, and its folder."""
    from anchorfl.pipeline.cli.commands import parse_places
    from anchorfl.pipeline.config.idle_options import check_idle
    from anchorfl.pipeline.config.overrides import typed_options
    from anchorfl.pipeline.config.presets import some_presets
    from anchorfl.pipeline.run.assemble import from_words, names_table
    from anchorfl.pipeline.storage.restore import restore_if_remote
    from anchorfl.tuning.search.backup import LEAVE, RESUME
    from anchorfl.tuning.search.search_space import PRESET, Choice, Space, space_of
    from anchorfl.tuning.sweep.plan import (
        PLAN_FILE,
        SweepPlan,
        check_searched,
        check_typed,
        new_sweep_folder,
        on_one_split,
        on_whole_grid,
        preset_text,
        resumed_plan,
    )

    if args.resume is not None:
        places, rest = parse_places(overrides)
        if args.presets or args.space or args.output or rest:
            raise InputError(
                "--resume takes the preset, the space and the options from the sweep's folder, and stays there"
            )
        folder = restore_if_remote(args.resume, say, RESUME, marker=PLAN_FILE, leave=LEAVE)
        copy = "" if folder == Path(args.resume) else args.resume
        return resumed_plan(folder, options, places, copy), folder
    if not args.presets and not names_table(overrides):
        raise InputError(
            f"sweep needs a preset: {some_presets()}; or the path of a .toml file; or a table, --task.file"
        )
    from anchorfl.tuning.search.options import SweepOptions

    several = len(args.presets) > 1
    if several and len(set(args.presets)) < len(args.presets):
        raise InputError(f"sweep: a preset is named twice: {' '.join(args.presets)}")
    experiments, changed = dict[str, "Experiment"](), bool(overrides)
    for preset in args.presets or [""]:
        log = (lambda _: None) if experiments else say  # what is said of a table is the same for all
        name, experiment = from_words(preset, overrides, "anchorfl run", log)
        experiments[preset if several else name] = on_one_split(experiment)
        changed = changed or experiments[preset if several else name] != experiment
    typed = typed_options(overrides)
    check_idle(typed, list(experiments.values()))
    check_typed(typed)
    if any(experiment.output for experiment in experiments.values()):
        raise InputError("--output stands for the folder of the sweep; leave it out of the preset")
    name, experiment = next(iter(experiments.items()))
    others = dict(list(experiments.items())[1:])
    space: Space = {PRESET: Choice(tuple(experiments))} if several else {}
    if args.space or not several:
        space = {**space, **space_of(experiment, args.space)}
    if several:  # every one of them as often as the others
        options = {"searcher": "grid"} | options
    text = preset_text((args.presets or [name])[0], experiment, changed)
    plan = SweepPlan(name, experiment, space, SweepOptions(**options), text, others)
    check_searched(plan)
    if plan.options.searcher == "grid" and "trials" not in options:
        plan = on_whole_grid(plan)
    return plan, new_sweep_folder(f"{experiment.task.name}-presets" if several else name, args.output)


def report(options: argparse.Namespace) -> int:
    """Write the page of runs, or serve it; of a sweep's folder, write its report again."""
    from anchorfl.pipeline.cli.commands import typed_places
    from anchorfl.tuning.sweep.plan import PLAN_FILE, load_plan

    sweeps = [folder for folder in options.runs if (folder / PLAN_FILE).exists()]
    if not sweeps:
        return report_runs(options)
    if len(options.runs) > 1 or options.out or options.serve is not None:
        raise InputError(f"{sweeps[0]} is a sweep: name it alone, without --out and --serve")
    from anchorfl.tuning.sweep.report import write_report
    from anchorfl.tuning.sweep.sweep import read_sweep

    folder = sweeps[0]
    plan = load_plan(folder, {}, typed_places(options))
    view = read_sweep(plan, folder.resolve())
    for path in write_report(view, folder / "report", plan.text_of):
        say(path)
    return 0


def runs(arguments: list[str]) -> int:
    """List runs; stop a job on a cluster, or show its log."""
    from anchorfl.pipeline.cli import runs as listed
    from anchorfl.tuning.clusters import submit

    if arguments[:1] in (["stop"], ["logs"]):
        return submit.job_command(arguments[0], arguments[1:])
    parser = argparse.ArgumentParser(
        prog="anchorfl runs", description="every run of a folder: finished, running, interrupted or failed",
        epilog="Of a job that anchorfl submit has begun: anchorfl runs logs JOB, anchorfl runs stop JOB.",
    )  # fmt: skip
    listed.run_arguments(parser)
    return listed.runs(parser.parse_args(arguments))


def table(arguments: list[str]) -> int:
    """Run a paper's table."""
    if "--help" in arguments or "-h" in arguments:
        say(TABLE_USAGE)
        return 0
    from anchorfl.tuning.tables import command

    return command.table(arguments)


def benchmark(arguments: list[str]) -> int:
    """Run the suite: the table of no paper."""
    return table(["suite", *arguments])


def recommend(arguments: list[str]) -> int:
    """Say which methods to try first on a table of the user's own."""
    from anchorfl.tuning.tables import recommend as recommended

    return recommended.recommend(arguments, sweep)


def presets(options: argparse.Namespace) -> int:
    """List the shipped presets, print one, or compare two."""
    from anchorfl.tuning.tables import listing

    if sum(bool(getattr(options, name)) for name in ("pattern", "toml", "diff")) > 1:
        raise InputError("presets takes one of PATTERN, --toml NAME and --diff A B")
    if options.json and (options.toml or options.diff):
        raise InputError("--json is for the list of presets: leave out --toml and --diff")
    if options.json:
        say(json.dumps(listing.figures(options.pattern), indent=1))
    elif options.toml:
        say(listing.preset_toml(options.toml).rstrip("\n"))
    elif options.diff:
        one, other = options.diff
        say(listing.difference(one, other, width()))
    else:
        say(listing.listing(options.pattern, width()) if options.pattern else listing.overview(width()))
    return 0


def _run(plan: SweepPlan, folder: Path, *, as_json: bool) -> int:
    """Run what is left of a sweep and print what came of it; return the exit code."""
    from anchorfl.tasks.files.raw_files import raw_folder
    from anchorfl.tasks.registry import task_of
    from anchorfl.tuning.sweep.plan import PLAN_FILE
    from anchorfl.tuning.sweep.sweep import run_sweep

    raw_folder(task_of(plan.experiment.task), plan.experiment.task)
    with logged_apart() if as_json else nullcontext():
        say(f"{', '.join(plan.experiments)}: sweep folder {folder}")
        with resumable("anchorfl", "sweep", "--resume", folder, begun=folder / PLAN_FILE):
            view = run_sweep(plan, folder)
    if as_json:
        say(json.dumps({"folder": str(folder), **view.to_dict()}, indent=1))
    else:
        say(f"\n{summary(view)}\n\nreport: {folder / 'report' / 'report.html'}")
    return 0 if view.complete else 3


def summary(view: Sweep) -> str:
    """Return the chosen point and its scores, in few lines."""
    from anchorfl.pipeline.results.mean_sd import mean_sd_percent
    from anchorfl.tuning.search.results import seeds_text, tie_text
    from anchorfl.tuning.sweep.progress import format_point

    if view.best is None:
        return "no trial has a score"
    tie = f"  ({tie_text(view)})" if len(view.tied) > 1 else ""
    lines = [f"chosen: trial {view.best.number}  {format_point(view.best.point)}{tie}"]
    score = mean_sd_percent(view.best.scores(view.rule))
    lines.append(f"validation {view.metric}, {view.rule}, round {view.best.rounds}: {score}")
    first = view.trials[0]
    if view.best.number and first.scores(view.rule):
        lines.append(f"the preset's own point, round {first.rounds}: {mean_sd_percent(first.scores(view.rule))}")
    points = [("chosen point", view.final_runs)]
    if view.needs_reference_runs or view.reference_runs:
        points.append(("preset's own point", view.reference_runs))
    for word, runs in points:
        if not runs and view.final_runs_begun and view.fresh_seeds:
            lines.append(f"test, {word}: no result of {seeds_text(view.fresh_seeds)}")
        elif runs:
            means = {m: mean_sd_percent([r.scores["test"][m] for r in runs]) for m in runs[0].scores["test"]}
            scores = "  ".join(f"{metric} {mean}" for metric, mean in means.items())
            missing = view.missing_seeds(runs)
            without = f" (no result of {seeds_text(missing)})" if missing else ""
            lines.append(
                f"test, {word}, {runs[0].rounds} rounds, {seeds_text([r.seed for r in runs])}{without}: {scores}"
            )
    return "\n".join(lines)


def _split(arguments: list[str]) -> tuple[argparse.Namespace, dict[str, Any], list[str]]:
    """Split the command line into the command's arguments, the sweep's options given, and the preset's overrides."""
    from dataclasses import MISSING, fields

    import tyro

    from anchorfl.pipeline.config.tyro_errors import call_tyro
    from anchorfl.tuning.search.options import SweepOptions

    parse = partial(tyro.cli, SweepOptions, prog="anchorfl sweep", config=(tyro.conf.FlagConversionOff,))
    if "--help" in arguments or "-h" in arguments:
        say(USAGE + "\n")
        parse(args=["--help"])
    parser = argparse.ArgumentParser(prog="anchorfl sweep", add_help=False, exit_on_error=False)
    parser.add_argument("--space", nargs="+", action="extend", default=[])
    parser.add_argument("--resume", default=None)
    parser.add_argument("--output", default="")
    parser.add_argument("--json", action="store_true")
    # Options and overrides both come as --name value; what names a section is an override.
    presets = list(takewhile(lambda word: not word.startswith("-"), arguments))
    try:
        args, unknown = parser.parse_known_args(arguments[len(presets) :])
    except argparse.ArgumentError as error:
        raise InputError(f"sweep: {error}") from error
    args.presets = presets
    names = {f.name for f in fields(SweepOptions) if f.default is not MISSING}
    options, overrides = list[str](), list[str]()
    target = overrides
    for word in unknown:
        if word.startswith("--"):
            target = options if word[2:].partition("=")[0].replace("-", "_") in names else overrides
        target.append(word)
    parsed = call_tyro(lambda: parse(args=options))
    given = {w[2:].partition("=")[0].replace("-", "_") for w in options if w.startswith("--")}
    return args, {name: getattr(parsed, name) for name in given}, overrides
