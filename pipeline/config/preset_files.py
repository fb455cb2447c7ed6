"""The files of the shipped presets, read strictly: federations, and papers with their rows.

An unknown key or option, and a value of another type than it must have, is an InputError with the file, the table and
the nearest name. What one file says of another is checked in ``federations.py``.
Why not by a library: docs/why-by-hand.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from anchorfl.pipeline.config.experiment import Experiment, option_types
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.regular_files import regular

Tree = dict[str, Any]
MAX_PRESET_BYTES, MAX_LINE_BYTES = 1 << 18, 1 << 13
"""Bytes of a preset's file, and of one of its lines."""
OPTIONS: dict[str, list[str]] = {
    name: [f.name for f in fields(hint)]
    for name, hint in option_types(Experiment).items()
    if name != "method" and is_dataclass(hint)
}
"""Sections of an experiment and their options; those of [method] depend on its name."""
SECTIONS = ("task", "method", *(name for name in OPTIONS if name != "task"))
OF_PAPER = ("title", "published", "seeds", "data", "beside", "statistics", "method", "rows")
"""Keys of a paper's file; it needs the first four, which no federation's file has."""
OF_FEDERATION = ("seed", *SECTIONS, "rows", "variants")
OF_ROW = ("published", "data", "from", "cost", *SECTIONS)


def read_toml(path: Path) -> Tree:
    """Return the tables of a TOML file. InputError where it is none."""
    try:
        return tomllib.loads(_text(path))
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{path}: not valid TOML: brackets within brackets within brackets") from error
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise InputError(f"{path}: not valid TOML: {error}") from error


def _text(path: Path) -> str:
    """Return the text of a file. InputError on too long a line: tomllib takes its square for a key of many dots."""
    with regular(path).open("rb") as stream:
        data = stream.read(MAX_PRESET_BYTES + 1)
    if len(data) > MAX_PRESET_BYTES or max(map(len, data.split(b"\n"))) > MAX_LINE_BYTES:
        raise InputError(
            f"{path}: a preset has at most {MAX_PRESET_BYTES} bytes and {MAX_LINE_BYTES} of them in a line"
        )
    return data.decode("utf-8").replace("\r\n", "\n")


def merge_sections(below: Tree, above: Tree) -> Tree:
    """Return ``below`` with the sections of ``above`` on top, option by option.

    Options of one method or data set mean nothing to another: where ``above`` names another, ``below`` loses the
    section.
    """
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            other = key in ("method", "task") and value.get("name", old.get("name")) != old.get("name")
            out[key] = value if other else old | value
        else:
            out[key] = value
    return out


def table_file(tree: Tree) -> str:
    """Return the user's table that a preset names; empty: its data set has a name."""
    return str(_section(tree, "task").get("file", ""))


def _section(tree: Tree, name: str) -> Tree:
    """Return a section; an empty one where there is none, or no table, which is refused when the preset is built."""
    section = tree.get(name)
    return section if isinstance(section, dict) else {}


OF_DATA = (
    "seed",
    "class_embeddings.table",
    "federation.clients_per_round",
    "federation.client_fraction",
    "evaluation.metrics",
    "evaluation.model_selection",
)
"""Options of a preset that belong to its data set or its paper's table, beside those of [task]: the authors' seed, the
names' table, how many of its clients take part, what is measured."""


def lend(tree: Tree) -> tuple[Tree, list[str]]:
    """Return what a preset lends to a table of the user's own, and the dotted names of the options that stay behind.

    It lends method, network and rounds. Of [task] only the place of the cache is no matter of the data set.
    """
    out = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items()}
    left = [f"task.{key}" for key in _section(out, "task") if key != "cache"] + list(OF_DATA)
    if _section(out, "class_embeddings").get("init") == "cooccurrence":  # from the table that stays behind
        left.append("class_embeddings.init")
    return out, drop(out, left)


def drop(tree: Tree, options: Iterable[str]) -> list[str]:
    """Take options, by their dotted names, out of a preset, in place; return those that it had."""
    dropped = list[str]()
    for option in options:
        section, _, key = option.rpartition(".")
        if key in (part := _section(tree, section) if section else tree):
            del part[key]
            dropped.append(option)
    return dropped


@dataclass(frozen=True, kw_only=True, slots=True)
class RowEntry:
    """An entry of a row: in a paper's file the row, in a federation's what the federation needs for it."""

    parent: str = ""
    """The row whose options hold where this one says nothing (``from``); empty: none."""
    published: str = ""
    """The method as the paper's tables call it; empty: in no table."""
    data: tuple[str, ...] = ()
    """Federations that have the row, with or without their variant; empty: all of the paper."""
    cost: str = ""
    """Cost of a run, in words, where no kept record says it."""
    tree: Tree = field(default_factory=dict)
    """Sections of the row."""

    @property
    def method(self) -> Tree:
        """Its [method]."""
        found: Tree = self.tree.get("method", {})
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperFile:
    """A paper's rows and the federations that its tables have."""

    name: str
    """Name of the file, as ``anchorfl table`` takes it."""
    title: str
    """Name and year."""
    published: str
    """The paper in ``published.csv``."""
    seeds: tuple[int, ...]
    """The authors', or as many; a preset has the first."""
    data: Mapping[str, str]
    """Data set as published -> federation, in the order of the tables."""
    statistics: Mapping[str, Mapping[str, float]]
    """Data set as published -> what the paper's table of data sets says of it."""
    beside: Mapping[str, str]
    """Data set that is not in the paper -> the published one whose figures stand beside it."""
    method: Tree
    """Options of all rows whose method has them."""
    rows: Mapping[str, RowEntry]
    """Rows by name, in the order of the tables."""

    def parents(self, row: str) -> list[str]:
        """Return the row that a row is from, the one that that is from, and so on."""
        out = list[str]()
        while parent := self.rows[out[-1] if out else row].parent:
            out.append(parent)
        return out


@dataclass(frozen=True, kw_only=True, slots=True)
class Federation:
    """Data set, partition, network and optimizer."""

    name: str
    """Name of the file, with the variant where it has some: ``pbc-0.05``."""
    file: str
    """Name of the file alone: ``pbc``."""
    tree: Tree
    """Sections of the federation, without [method]."""
    method: Tree
    """Options of this data set for the rows whose method has them."""
    layers: tuple[Mapping[str, RowEntry], Mapping[str, RowEntry]]
    """Entries of rows in the file, then in its variant."""


def is_paper(tree: Tree) -> bool:
    """Tell a paper's file from a federation's by its keys."""
    return not tree.keys().isdisjoint(OF_PAPER[:4])


def read_paper(path: Path, tree: Tree) -> PaperFile:
    """Return the paper of a file. InputError where it is wrong."""
    file = _File(path)
    file.known("", tree, OF_PAPER)
    for key in OF_PAPER[:4]:
        if key not in tree:
            raise file.wrong(f"a paper's file needs {key}")
    for label, federation in file.table("data", tree["data"]).items():
        file.typed(f"data.{label!r}", federation, str, "the name of a federation, such as 'pbc-0.05'")
    paper = PaperFile(
        name=path.stem,
        title=file.typed("title", tree["title"], str, "text, such as 'FedAlign (KDD 2023)'"),
        published=file.typed("published", tree["published"], str, "text, such as 'FedAlign'"),
        seeds=file.items("seeds", tree["seeds"], int, "whole numbers, such as [0, 1, 2]"),
        data=tree["data"],
        beside=file.table("beside", tree.get("beside", {})),
        statistics=file.statistics(tree),
        method=file.table("method", tree.get("method", {})),
        rows=file.rows("rows", tree.get("rows", {})),
    )
    for label, other in paper.beside.items():
        if label not in paper.data or other not in paper.data or other in paper.beside:
            raise file.wrong(f"beside.{label!r} = {other!r}: both must be in [data], and the second one published")
    for name in paper.rows:
        seen = [name]
        while parent := paper.rows[seen[-1]].parent:
            if parent not in paper.rows:
                near = nearest(parent, paper.rows)
                raise file.wrong(f"rows.{seen[-1]}.from = {parent!r}: no such row{near}")
            if parent in seen:
                raise file.wrong(f"rows.{name} is from itself, by {' and '.join(seen)}")
            seen.append(parent)
    return paper


def read_federations(path: Path, tree: Tree) -> Iterator[Federation]:
    """Yield the federation of a file, or one for every variant. InputError where it is wrong."""
    file = _File(path)
    file.known("", tree, OF_FEDERATION)
    base, rows = file.sections("", tree), file.rows("rows", tree.get("rows", {}))
    if "seed" in tree:
        base["seed"] = tree["seed"]
    variants: Tree = file.table("variants", tree.get("variants", {})) or {"": {}}
    for variant, content in variants.items():
        where = f"variants.{variant}"
        file.known(where, content, (*SECTIONS, "rows"))
        whole = merge_sections(base, file.sections(where, content))
        yield Federation(
            name=f"{path.stem}-{variant}" if variant else path.stem,
            file=path.stem,
            tree={key: value for key, value in whole.items() if key != "method"},
            method=whole.get("method", {}),
            layers=(rows, file.rows(f"{where}.rows", content.get("rows", {}))),
        )


@dataclass(frozen=True, slots=True)
class _File:
    """A file that is read, and named where it is wrong."""

    path: Path

    def wrong(self, what: str) -> InputError:
        """Return an error that names the file."""
        return InputError(f"{self.path}: {what}")

    def table(self, where: str, table: Any) -> Tree:
        """Return the table. InputError where it is none."""
        if not isinstance(table, dict):
            raise self.wrong(f"[{where}] must be a table, not {table!r}")
        return table

    def known(self, where: str, table: Any, keys: Collection[str]) -> Tree:
        """Return the table. InputError where it is none or has another key."""
        for key in self.table(where, table):
            if key not in keys:
                section = f" in [{where}]" if where else ""
                raise self.wrong(f"no key {key!r}{section}{nearest(key, keys)}; there are: {', '.join(keys)}")
        return self.table(where, table)

    def typed(self, where: str, value: Any, kind: Any, like: str) -> Any:
        """Return the value. InputError, which says what it must be ``like``, where it is of another type."""
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(f"{where} = {value!r}: must be {like}")
        return value

    def items(self, where: str, value: Any, kind: type, like: str) -> tuple[Any, ...]:
        """Return the values of a list that is not empty. InputError where one is of another type."""
        if not self.typed(where, value, list, like):
            raise self.wrong(f"{where} = []: must be {like}")
        return tuple(self.typed(where, item, kind, like) for item in value)

    def sections(self, where: str, table: Tree) -> Tree:
        """Return the sections of an experiment in a table. InputError on an unknown option, but for [method]."""
        out = Tree()
        for name in SECTIONS:
            if name in table:
                section = f"{where}.{name}" if where else name
                out[name] = self.table(section, table[name])
                check_options(self.path, section, out[name], OPTIONS[name] if name in OPTIONS else out[name])
        return out

    def statistics(self, tree: Tree) -> dict[str, dict[str, float]]:
        """Return the published numbers of data sets, which [data] names, with or without the setting after a comma."""
        out = dict[str, dict[str, float]]()
        known = {name for label in tree["data"] for name in (label, label.partition(",")[0])}
        for label, table in self.known("statistics", tree.get("statistics", {}), known).items():
            where = f"statistics.{label!r}"
            numbers = self.known(where, table, STATISTICS)
            out[label] = {
                name: self.typed(f"{where}.{name}", n, int | float, "a number") for name, n in numbers.items()
            }
        return out

    def rows(self, where: str, table: Any) -> dict[str, RowEntry]:
        """Return the rows of a table."""
        out = dict[str, RowEntry]()
        for name, content in self.table(where, table).items():
            row = f"{where}.{name}"
            entry = self.known(row, content, OF_ROW)
            texts = {
                key: self.typed(f"{row}.{key}", entry.get(key, ""), str, f"text, such as {like!r}")
                for key, like in (("from", "fedavg"), ("published", "FedAvg"), ("cost", "about 20 CPU minutes"))
            }
            data = self.items(f"{row}.data", entry["data"], str, "names, such as ['pbc']") if "data" in entry else ()
            out[name] = RowEntry(
                parent=texts["from"],
                published=texts["published"],
                data=data,
                cost=texts["cost"],
                tree=self.sections(row, entry),
            )
        return out


STATISTICS = (
    "clients", "classes", "features", "training_rows", "validation_rows", "test_rows", "rows_per_client",
    "classes_per_client", "imbalance",
)  # fmt: skip
"""Numbers that papers' tables of data sets have."""


def check_options(path: Path, where: str, section: Tree, options: Collection[str]) -> None:
    """Refuse a section that has another option than these with an InputError."""
    for key in section:
        if key not in options:
            raise InputError(f"{path}: no option {key!r} in [{where}]{nearest(key, options)}")
