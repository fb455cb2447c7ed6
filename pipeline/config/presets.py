"""Presets: finding and reading a TOML file, with those that it extends."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.schema import from_tree
from anchorfl.tasks.errors import InputError, nearest

LONGEST_NAME = 1000
LARGEST_FILE, LONGEST_LINE = 1 << 18, 1 << 13
"""Bytes of a preset, and of one of its lines."""
DEEPEST = 20
"""So many presets may extend each other in a row."""
PRESETS = Path(__file__).resolve().parents[2] / "tuning" / "presets"


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
