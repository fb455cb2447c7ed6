"""A table of the user's own on the command line: ``anchorfl data check``, and runs on it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.config import read_preset
from pipeline.experiment import Experiment
from tasks.contract import InputError, TaskOptions
from tasks.ingest import prepare
from tasks.own.look import look, next_command
from tasks.own.table import settled as settled_options
from tasks.sources import task_of

BASE = "digits/fedalign"
"""Whose method, network and rounds a run on a table has where no preset is named."""


def check(arguments: list[str]) -> int:
    """What a table holds and what will be a problem; 2 where a run would stop."""
    parser = argparse.ArgumentParser(
        prog="anchorfl data check",
        description="Say what a Parquet or CSV file holds, by class and by client, before anything trains.",
    )
    parser.add_argument("file", metavar="FILE", help=".parquet, .csv or .csv.gz")
    abouts = {
        "labels": "columns of 0 and 1 (names or patterns, with commas), or one column of classes or of lists of them",
        "inputs": "columns of numbers, or one column of texts, lists or paths of images; default: guess",
        "client": "column that says whose row it is",
        "split": "column of train, validation and test; default: a fifth is drawn as test",
        "class_names": "file with a class name a line, or id<TAB>name",
        "root": "folder below which FILE lies",
    }
    for name, about in abouts.items():
        parser.add_argument(f"--{name}", default="", help=about)
    parser.add_argument("--on_bad_row", choices=("error", "skip"), default="error")
    given = vars(parser.parse_args(arguments))
    options = TaskOptions(parquet=given.pop("file"), **given)
    found = look(options)
    print(found.text())
    blocked = len(found.stops) > found.bad_rows
    step = "mend what stops a run" if blocked else next_command(options, found, base().federation.clients_per_round)
    print(f"\nnext: {step}")
    return 2 if found.stops else 0


def asked(overrides: Sequence[str]) -> bool:
    """Whether overrides name a table, so that a run needs no preset."""
    return any(word.partition("=")[0] == "--task.parquet" for word in overrides)


def base() -> Experiment:
    """The experiment to override where no preset is named."""
    return replace(read_preset(BASE), task=TaskOptions(min_count=2, max_tokens=256))


def label_of(experiment: Experiment) -> str:
    """What a run on a table without a preset is called."""
    stem = Path(experiment.task.parquet).name.split(".")[0]
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', stem).strip('-') or 'table'}-{experiment.method.name}"


def settled(experiment: Experiment, say: Callable[[str], None] = print, *, count: bool = True) -> Experiment:
    """The experiment with what its data say about clients. count: prepare the data where that takes it, for the clients
    of ``one_class``; else their number stays 0. InputError where the two do not fit.
    """
    task = settled_options(experiment.task, say)
    if count and not task.clients and task.partition == "one_class":
        found = prepare(task_of(task), task, experiment.seed, engine="local", log=say)
        task = replace(task, clients=len(found.manifest.examples))
    try:
        return replace(experiment, task=task)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error
