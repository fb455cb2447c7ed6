"""Options from the command line, ``--section.option value``, parsed and explained by tyro."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

import tyro

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.schema import _hints, options_of
from anchorfl.pipeline.config.tyro_errors import call_tyro
from anchorfl.tasks.errors import InputError, nearest

HELP = {
    "seed": "Seed of the run: partition, selection, initial weights, local training.",
    "output": "Folder of the run; empty: a new one below runs/.",
}
"""What ``--help`` says of the options that are in no section: tyro finds the docstrings of sections alone."""


def override(experiment: Experiment, arguments: Sequence[str], command: str = "anchorfl run PRESET") -> Experiment:
    """Return the experiment with ``--section.option value`` overrides; tyro parses and prints the help."""
    if not arguments:
        return experiment
    known = options_of(experiment)
    for argument in arguments:
        if argument.startswith("--") and argument not in ("--help", "--help-verbose"):
            name = argument[2:].partition("=")[0].replace("-", "_")
            if name not in known:
                whose = f"method {experiment.method.name!r} has " if name.startswith("method.") else ""
                raise InputError(f"{whose}no option --{name}{nearest(name, known)}; '{command} --help' lists all")
    changed = call_tyro(lambda: _parse(experiment, arguments, command))
    typed = {argument.partition("=")[0].replace("-", "_") for argument in arguments}
    if changed.task.client_column and changed.task.partition != "subjects" and "__task.partition" in typed:
        raise InputError(
            f"--task.partition {changed.task.partition} beside --task.client_column {changed.task.client_column}: the"
            " column says whose row it is, so that nothing is left to partition; leave one of them out"
        )
    return changed


def _parse(experiment: Experiment, arguments: Sequence[str], command: str) -> Experiment:
    """Parse with the concrete type of the method, which tyro needs and only the preset knows."""

    def build(**values: Any) -> Experiment:
        return Experiment(**values)

    hints = _hints(Experiment) | {"method": type(experiment.method)}
    hints |= {name: Annotated[hints[name], tyro.conf.arg(help=text)] for name, text in HELP.items()}
    build.__annotations__ = {f.name: hints[f.name] for f in fields(Experiment)} | {"return": Experiment}
    build.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=getattr(experiment, f.name), annotation=hints[f.name]
            )
            for f in fields(Experiment)
        ],
        return_annotation=Experiment,
    )
    return tyro.cli(
        build, args=list(arguments), prog=command, use_underscores=True, config=(tyro.conf.FlagConversionOff,)
    )
