"""From a preset and overrides to an Experiment: TOML read strictly, then the command line through tyro.

A preset is ``tuning/presets/<paper>/<name>.toml`` or any path to a TOML file; tables are [task], [method] (with
``name``), [model], [federation], [optimizer], [evaluation], [cluster], [tracking]; ``seed`` and ``output`` stand
above them, and ``extends``, the name of a preset whose options hold where this one says nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import tyro

from pipeline.experiment import Experiment, recorded_tree, to_tree
from pipeline.folder import CONFIG, read_config
from pipeline.methods import METHODS
from tasks.contract import InputError
from tasks.registry import TASKS
from tasks.sources import nearest
from tasks.typed import LARGEST

T = TypeVar("T")
LONGEST_NAME = 1000
LARGEST_FILE, LONGEST_LINE = 1 << 18, 1 << 13
"""Bytes of a preset, and of one of its lines."""
DEEPEST = 20
"""So many presets may extend each other in a row."""
PRESETS = Path(__file__).resolve().parents[1] / "tuning" / "presets"
_hints = cache(typing.get_type_hints)
"""Evaluated once a class: there are hundreds of presets, and annotations are text."""


def preset_names() -> list[str]:
    """Names of all shipped presets, such as ``digits/fedavg``."""
    return sorted(str(p.relative_to(PRESETS).with_suffix("")) for p in PRESETS.rglob("*.toml"))


def some_presets(name: str = "") -> str:
    """The presets on small tasks and in the folder of ``name``, and how many more there are."""
    names = preset_names()
    near = [n for n in names if n.split("/")[0] in ("digits", name.split("/")[0])]
    return f"{', '.join(near)} and {len(names) - len(near)} more (anchorfl presets)"


def preset_path(name: str) -> Path:
    """File of a preset: a shipped name, or a path to a TOML file."""
    if not name.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(f"{name[:40]!r} cannot be the name of a preset; there are: {some_presets()}")
    shipped = PRESETS / f"{name}.toml"
    if shipped.is_file():
        return shipped
    own = Path(name)
    if own.suffix == ".toml" and own.is_file():
        return own
    near = nearest(name, preset_names())
    raise InputError(f"no preset {name!r}{near}; there are: {some_presets(name)}; or give the path of a .toml file")


def read_preset(name: str) -> Experiment:
    """The experiment that a preset describes, or InputError with the file, the table and the key."""
    path = preset_path(name)
    tree = _tables(path)
    try:
        return from_tree(tree)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _tables(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What a preset's file says, on top of what the preset says that it ``extends``."""
    try:
        tree = tomllib.loads(_text(path))
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{path}: not valid TOML: brackets within brackets within brackets") from error
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise InputError(f"{path}: not valid TOML: {error}") from error
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if path.resolve() in seen:
        raise InputError(f"{path}: it extends itself, by {' and '.join(p.name for p in seen)}")
    if len(seen) == DEEPEST:
        raise InputError(f"{seen[0]}: more than {DEEPEST} presets extend each other; put the options into fewer files")
    if not isinstance(base, str):
        raise InputError(f"{path}: extends = {base!r}: must be the name of a preset, such as 'r8-8/fedavg'")
    beside = path.parent / base
    try:
        found = beside if beside.suffix == ".toml" and beside.is_file() else preset_path(base)
    except InputError as error:
        raise InputError(f"{path}: extends: {error}") from error
    merged = _tables(found, (*seen, path.resolve()))
    for key, value in tree.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            # options of one method or data set mean nothing to another
            other = key in ("method", "task") and value.get("name", below.get("name")) != below.get("name")
            merged[key] = value if other else below | value
        else:
            merged[key] = value
    return merged


def _text(path: Path) -> str:
    """The text of a preset. InputError where it is none: tomllib takes the square of a line for a key of many dots."""
    with path.open("rb") as stream:
        data = stream.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE or max(map(len, data.split(b"\n"))) > LONGEST_LINE:
        raise InputError(f"{path}: a preset has at most {LARGEST_FILE} bytes and {LONGEST_LINE} of them in a line")
    return data.decode("utf-8").replace("\r\n", "\n")


def read_experiment(folder: Path) -> Experiment:
    """The experiment of a run folder. InputError where it holds no run, or its options are not of this version."""
    tree = read_config(folder)
    try:
        return from_tree(tree)
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from error


def from_tree(tree: Mapping[str, Any]) -> Experiment:
    """The experiment of a nested dict (a preset, or the resolved tree in a run folder); the inverse of ``to_tree``."""
    values = dict(tree)
    hints = _hints(Experiment)
    known = {f.name for f in fields(Experiment)}
    for key in values:
        if key not in known:
            raise InputError(f"no option or table {key!r}{nearest(key, known)}")
    for name in known:
        if name in values and is_dataclass(hints[name]):
            values[name] = _node(hints[name], values[name], name)
    values["method"] = _method(values.get("method"))
    for name in ("seed", "output"):
        if name in values:
            values[name] = _typed(hints[name], values[name], name)
    experiment: Experiment = _built(Experiment, values, "")
    if not experiment.task.parquet and experiment.task.name not in TASKS:
        raise InputError(f"no task {experiment.task.name!r} in [task] name{nearest(experiment.task.name, TASKS)}")
    return experiment


def _method(table: Any) -> Any:
    if not isinstance(table, dict) or "name" not in table:
        raise InputError("[method] needs a name, for example name = 'fedavg'")
    name, options = table["name"], {k: v for k, v in table.items() if k != "name"}
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(
            f"no method {name!r} in [method] name{nearest(str(name), METHODS)}; there are: {', '.join(METHODS)}"
        )
    return _node(METHODS[name], options, "method")


def _node(kind: Any, table: Any, section: str) -> Any:
    if not isinstance(table, dict):
        raise InputError(f"[{section}] must be a table, not {table!r}")
    hints = _hints(kind)
    known = {f.name for f in fields(kind) if f.init}
    values = {}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"no option {key!r} in [{section}]{nearest(key, known)}")
        values[key] = _typed(hints[key], value, f"{section}.{key}")
    return _built(kind, values, section)


def _built(kind: Any, values: dict[str, Any], section: str) -> Any:
    missing = [
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING and f.name not in values
    ]
    if missing:
        raise InputError(f"[{section}] needs {missing[0]}")
    try:
        return kind(**values)
    except ValueError as error:
        raise InputError(str(error)) from error


def _typed(hint: Any, value: Any, where: str) -> Any:
    """``value`` if it is of the annotated type (an int may stand for a float), else InputError."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise InputError(f"{where}: a number of {len(hex(value))} hexadecimal digits is too large")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise InputError(
            f"{where} = {value!r}{nearest(str(value), get_args(hint))}: one of {', '.join(map(str, get_args(hint)))}"
        )
    if get_origin(hint) in (typing.Union, types.UnionType):
        if value is None or value == "none":
            return None
        return _typed(next(h for h in get_args(hint) if h is not type(None)), value, where)
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    raise InputError(f"{where} = {value!r}: must be {getattr(hint, '__name__', hint)}, not {type(value).__name__}")


def override(experiment: Experiment, arguments: Sequence[str], command: str = "anchorfl run PRESET") -> Experiment:
    """The experiment with ``--section.option value`` overrides; tyro parses and prints the help of every option."""
    if not arguments:
        return experiment
    known = options_of(experiment)
    for argument in arguments:
        if argument.startswith("--") and argument not in ("--help", "--help-verbose"):
            name = argument[2:].partition("=")[0].replace("-", "_")
            if name not in known:
                raise InputError(f"no option --{name}{nearest(name, known)}; 'anchorfl run PRESET --help' lists all")
    return one_line(lambda: _parse(experiment, arguments, command))


def one_line(parse: Callable[[], T]) -> T:
    """What a tyro parser gives, its box of complaints turned into one line of InputError."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse()
    except ValueError as error:
        raise InputError(str(error)) from error
    except SystemExit as stop:
        if not stop.code:
            raise
        words = re.sub(r"[─│╭╮╰╯┌┐└┘]+|-{4,}", " ", re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue()))
        text = re.sub(r" ?For full helptext.*$", "", " ".join(words.split()))
        raise InputError(re.sub(r"^Value error Error parsing \S+: (?=\w+\.\w+[ :]|method:)", "", text)) from stop


def _parse(experiment: Experiment, arguments: Sequence[str], command: str) -> Experiment:
    """Tyro needs the concrete type of the method, which only the preset knows."""

    def build(**values: Any) -> Experiment:
        return Experiment(**values)

    hints = _hints(Experiment) | {"method": type(experiment.method)}
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


def options_of(experiment: Experiment) -> dict[str, Any]:
    """Value of every option that can be overridden, by its dotted name (``method.q1``, ``seed``)."""
    out: dict[str, Any] = {}
    for f in fields(experiment):
        value = getattr(experiment, f.name)
        if is_dataclass(value):
            out |= {f"{f.name}.{g.name}": getattr(value, g.name) for g in fields(value) if g.init}
        else:
            out[f.name] = value
    return out


def typed_option(experiment: Experiment, option: str, value: Any) -> Any:
    """A value as the type of an option, by its dotted name, has it. InputError where it is of another type."""
    section, _, key = option.rpartition(".")
    kind: Any = type(getattr(experiment, section)) if section else Experiment
    return _typed(_hints(kind)[key], value, option)


def with_options(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment with options replaced by dotted name. InputError where a value is refused."""
    tree = to_tree(experiment)
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        (tree[section] if section else tree)[key] = value
    return from_tree(tree)


def to_toml(experiment: Experiment) -> str:
    """The text of a preset that ``read_preset`` turns into ``experiment``, without ``output`` and any password."""
    tree = {k: v for k, v in recorded_tree(experiment).items() if k != "output"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for section, values in tree.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None)]
    return "\n".join(lines) + "\n"
