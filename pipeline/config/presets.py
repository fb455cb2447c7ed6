"""Presets by name: the shipped ones, and TOML files of one's own with those that they extend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.federations import Catalog
from anchorfl.pipeline.config.preset_files import lend, merge_sections, read_toml, table_file
from anchorfl.pipeline.config.schema import from_tree, toml_of
from anchorfl.tasks.errors import InputError, nearest

LONGEST_NAME = 1000
DEEPEST = 20
"""So many presets may extend each other in a row."""
PRESETS = Path(__file__).resolve().parents[2] / "tuning" / "presets"


@cache
def shipped() -> Catalog:
    """Return the federations, papers and presets that are shipped."""
    return Catalog(PRESETS)


def preset_names() -> list[str]:
    """Return the names of all shipped presets, such as ``digits/fedavg``."""
    return list(shipped().presets)


def some_presets(name: str = "") -> str:
    """Return the presets on small tasks and of the federation of ``name``, and how many more there are."""
    names = preset_names()
    near = [n for n in names if n.split("/")[0] in ("digits", name.split("/")[0])]
    return f"{', '.join(near)} and {len(names) - len(near)} more (anchorfl presets)"


def own_file(name: str) -> Path | None:
    """Return the TOML file of a preset of one's own; None for a shipped one. InputError where it is neither."""
    if not name.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(f"{name[:40]!r} cannot be the name of a preset; there are: {some_presets()}")
    if name in shipped().presets:
        return None
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path
    near = nearest(name, preset_names())
    table = f"; a table of your own is given as --task.file {name}" if path.exists() else ""
    raise InputError(
        f"no preset {name!r}{near}{table}; there are: {some_presets(name)}; or give the path of a .toml file"
    )


def read_preset(name: str) -> Experiment:
    """Return the experiment that a preset describes. InputError with the file, the table and the key."""
    return shipped().read(name) if own_file(name) is None else build(name, preset_tree(name))


def preset_tree(name: str) -> dict[str, Any]:
    """Return what a preset says, as nested tables. InputError where there is no such preset, or no such TOML."""
    path = own_file(name)
    return shipped().tree(name) if path is None else _tables(path)


def build(name: str, tree: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a preset's tables. InputError, which names the preset's own file where it has one."""
    try:
        return from_tree(tree)
    except InputError as error:
        raise InputError(f"{name}: {error}" if name.endswith(".toml") else str(error)) from error


def shipped_toml(name: str) -> str:
    """Return a shipped preset as a TOML file of its own: what its federation and its row say, and nothing more."""
    preset = shipped().presets[name]
    paper = f", {preset.published} of {preset.paper.title}" if preset.paper and preset.published else ""
    return f"# {name}{paper}.\n{toml_of(shipped().tree(name))}"


def _tables(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return what a preset's file says, on top of what the preset says that it ``extends``."""
    tree = read_toml(path)
    base = tree.pop("extends", None)
    if base is None:
        if path.resolve().parent == PRESETS:
            raise InputError(f"{path}: a part of the shipped presets, none itself: there are {some_presets(path.stem)}")
        return tree
    if path.resolve() in seen:
        raise InputError(f"{path}: it extends itself, by {' and '.join(p.name for p in seen)}")
    if len(seen) == DEEPEST:
        raise InputError(f"{seen[0]}: more than {DEEPEST} presets extend each other; put the options into fewer files")
    if not isinstance(base, str):
        raise InputError(f"{path}: extends = {base!r}: must be the name of a preset, such as 'r8-8/fedavg'")
    beside = path.parent / base
    try:
        file = beside if beside.suffix == ".toml" and beside.is_file() else own_file(base)
    except InputError as error:
        raise InputError(f"{path}: extends: {error}") from error
    below = shipped().tree(base) if file is None else _tables(file, (*seen, path.resolve()))
    if table_file(tree) and not table_file(below):
        below, _ = lend(below)
    return merge_sections(below, tree)
