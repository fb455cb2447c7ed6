"""The experiment of a preset: its tables read strictly, and every option by its dotted name.

Its tables are those of ``Experiment``; ``seed`` and ``output`` stand above them. Why not by a library:
docs/why-by-hand.md.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

from anchorfl.pipeline.config.experiment import Experiment, option_types, redacted_tree, to_tree
from anchorfl.pipeline.config.networks import find_network
from anchorfl.pipeline.methods import METHODS, find_method
from anchorfl.tasks.errors import InputError, has_controls, nearest
from anchorfl.tasks.files.json_schema import LARGEST
from anchorfl.tasks.options import JsonText, json_text

T = TypeVar("T")


def from_tree(tree: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a nested dict (of a preset, or a run folder's); the inverse of ``to_tree``."""
    from anchorfl.tasks.registry import TASKS, find_task  # torch, which names of presets do without

    values = dict(tree)
    hints = option_types(Experiment)
    known = {f.name for f in fields(Experiment)}
    for key in values:
        if key not in known:
            raise InputError(f"no option or table {key!r}{nearest(key, known)}")
    for name in known & values.keys() - {"method"}:
        convert = section_from if is_dataclass(hints[name]) else _typed
        values[name] = convert(hints[name], values[name], name)
    values["method"] = _method(values.get("method"))
    experiment: Experiment = _built(Experiment, values, "")
    find_network(experiment.model.network)
    if not experiment.task.file and experiment.task.name not in TASKS:
        find_task(experiment.task.name)
    return experiment


def _method(table: Any) -> Any:
    if not isinstance(table, dict) or "name" not in table:
        raise InputError("[method] needs a name, for example name = 'fedavg'")
    name, options = table["name"], {k: v for k, v in table.items() if k != "name"}
    if not isinstance(name, str):
        raise InputError(f"[method] name = {name!r}: must be a text, one of {', '.join(METHODS)}")
    return section_from(find_method(name), options, "method")


def section_from(kind: Any, table: Any, section: str) -> Any:
    """Return the options of a dataclass from a mapping, read strictly. section: what messages call it."""
    if not isinstance(table, dict):
        raise InputError(f"[{section}] must be a table, not {table!r}")
    hints = option_types(kind)
    known = {f.name for f in fields(kind) if f.init}
    values = {}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"no option {key!r} in [{section}]{nearest(key, known)}")
        values[key] = _typed(hints[key], value, f"{section}.{key}")
    return _built(kind, values, section)


def _built(kind: Any, values: dict[str, Any], section: str) -> Any:
    without = [f.name for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in without if name not in values]
    if missing:
        raise InputError(f"[{section}] needs {missing[0]}")
    try:
        return kind(**values)
    except ValueError as error:
        raise InputError(str(error)) from error


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return ``value`` where it is of the annotated type (an int may stand for a float). InputError where it is not."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise InputError(f"{where}: a number of {len(hex(value))} hexadecimal digits is too large")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_origin(hint) is Literal:
        known = get_args(hint)
        if (type(value), value) in [(type(word), word) for word in known]:  # 1 is neither 1.0 nor True
            return value
        words = list(map(str, known))
        raise InputError(f"{where} = {value!r}{nearest(str(value), words)}: one of {', '.join(words)}")
    if get_origin(hint) in (typing.Union, types.UnionType):
        if value is None or value == "none":
            return None
        return _typed(next(h for h in get_args(hint) if h is not type(None)), value, where)
    if hint is JsonText:
        value, hint = value if isinstance(value, str) else json_text(value), str
    if isinstance(value, str) and has_controls(value):
        raise InputError(f"{where} = {value!r}: holds control characters or a line end; leave them out")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where} = {value}: must be a finite number")
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    raise InputError(f"{where} = {value!r}: must be {getattr(hint, '__name__', hint)}, not {type(value).__name__}")


def options_of(experiment: Experiment) -> dict[str, Any]:
    """Return the value of every option that can be overridden, by its dotted name (``method.q1``, ``seed``)."""
    out: dict[str, Any] = {}
    for f in fields(experiment):
        value = getattr(experiment, f.name)
        if is_dataclass(value):
            out |= {f"{f.name}.{g.name}": getattr(value, g.name) for g in fields(value) if g.init}
        else:
            out[f.name] = value
    return out


def typed_option(experiment: Experiment, option: str, value: Any) -> Any:
    """Return a value in the type of an option, by its dotted name. InputError where it is of another type."""
    section, _, key = option.rpartition(".")
    kind: Any = type(getattr(experiment, section)) if section else Experiment
    return _typed(option_types(kind)[key], value, option)


def with_options(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return the experiment with options replaced by dotted name. InputError where a value is refused."""
    tree = to_tree(experiment)
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        if section and not isinstance(tree.get(section), dict):
            raise InputError(f"no option {name!r}{nearest(name, options_of(experiment))}")
        if not section and isinstance(tree.get(name), dict):
            raise InputError(f"{name!r} is a table: give its options, such as '{name}.{next(iter(tree[name]))}'")
        (tree[section] if section else tree)[key] = value
    return from_tree(tree)


def to_toml(experiment: Experiment) -> str:
    """Return the text of a preset that ``read_preset`` turns into ``experiment``, without ``output`` and passwords."""
    return toml_of({k: v for k, v in redacted_tree(experiment).items() if k != "output"})


def toml_of(tree: Mapping[str, Any]) -> str:
    """Return the sections of an experiment as TOML; None is the text that options read as none."""
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in tree.items() if not isinstance(value, dict)
    ]
    for section, values in tree.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]", *(f"{k} = {_toml(v)}" for k, v in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Return the value of an option in TOML; a table, which stands for JSON, as a text of it."""
    # TOML takes no halves of a character beyond U+FFFF, as which JSON would escape it
    text = "none" if value is None else json_text(value) if isinstance(value, dict) else value
    return json.dumps(text, ensure_ascii=False)
