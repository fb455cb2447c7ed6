"""Options from the command line, ``--section.option value``, parsed and explained by tyro."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, get_args

import tyro

from anchorfl.pipeline.config.experiment import Experiment, option_types
from anchorfl.pipeline.config.schema import options_of
from anchorfl.pipeline.config.tyro_errors import call_tyro
from anchorfl.tasks.errors import InputError, nearest

HELP = {
    "seed": "Seed of the run: partition, selection, initial weights, local training.",
    "output": "Folder of the run; empty: a new one below runs/.",
}
"""What ``--help`` says of the options that are in no section: tyro finds the docstrings of sections alone."""
OTHER_METHOD = """Options of the method are those of {name}. --method.name NAME takes another method, with its own
options and defaults: those of this one do not carry over."""
"""Text above the options in the help."""


def option_name(word: str) -> str:
    """Return the option that a word names: ``--method.q1=95`` -> ``method.q1``; empty where it is a value."""
    return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def keep_options(words: Sequence[str], wanted: Callable[[str], bool]) -> list[str]:
    """Return the overrides, with their values, whose option is wanted."""
    out, keep = list[str](), True
    for word in words:
        keep = wanted(name) if (name := option_name(word)) else keep
        if keep:
            out.append(word)
    return out


def typed_options(words: Sequence[str]) -> dict[str, str]:
    """Return the value of every option that overrides name, as typed: the last one, and empty where there is none."""
    out = dict[str, str]()
    for word, value in zip(words, [*words, ""][1:], strict=True):
        if name := option_name(word):
            out[name] = word.partition("=")[2] if "=" in word else "" if value.startswith("--") else value
    return out


def override(experiment: Experiment, arguments: Sequence[str], command: str = "anchorfl run PRESET") -> Experiment:
    """Return the experiment with ``--section.option value`` overrides; tyro parses and prints the help."""
    if not arguments:
        return experiment
    known = options_of(experiment)
    for argument in arguments:
        name = option_name(argument)
        if name and name not in known and argument not in ("--help", "--help-verbose"):
            whose = f"method {experiment.method.name!r} has " if name.startswith("method.") else ""
            near = nearest(name, ["method.name"] if name.startswith("method.na") else known)
            raise InputError(f"{whose}no option --{name}{near}; '{command} --help' lists all")
    return call_tyro(lambda: _parse(experiment, _with_none(experiment, arguments), command))


def _with_none(experiment: Experiment, words: Sequence[str]) -> list[str]:
    """Return the overrides with ``None``, as tyro reads it, for the ``none`` of files and documents."""

    def may_be_none(option: str) -> bool:
        section, _, key = option.rpartition(".")
        kind: Any = type(getattr(experiment, section)) if section else Experiment
        return type(None) in get_args(option_types(kind).get(key))  # --help is none

    out, option = list[str](), ""
    for word in words:
        name, _, value = word.partition("=")
        typed = option_name(word)
        option = typed or option
        none = option and may_be_none(option) and (value if typed else word) == "none"
        out.append(word if not none else f"{name}=None" if typed else "None")
    return out


def _parse(experiment: Experiment, arguments: Sequence[str], command: str) -> Experiment:
    """Parse with the concrete type of the method, which tyro needs and only the preset knows."""

    def build(**values: Any) -> Experiment:
        return Experiment(**values)

    hints = option_types(Experiment) | {"method": type(experiment.method)}
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
        build, args=list(arguments), prog=command, use_underscores=True, config=(tyro.conf.FlagConversionOff,),
        description=OTHER_METHOD.format(name=experiment.method.name),
    )  # fmt: skip
