"""The shipped presets: every federation, every paper with its rows, and the product of the two.

The preset ``pbc-0.05/fedbm`` is the federation ``pbc-0.05`` (the variant ``0.05`` of ``pbc.toml``) with the row
``fedbm``. A row that is ``from`` another one takes its options, with what the data set needs for that one. ``[method]``
of either file goes to the rows whose method has the option. docs/presets.md shows both kinds of file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.preset_files import (
    SECTIONS,
    Federation,
    PaperFile,
    RowEntry,
    Tree,
    check_options,
    is_paper,
    merge_sections,
    read_federations,
    read_paper,
    read_toml,
)
from anchorfl.pipeline.config.schema import from_tree
from anchorfl.pipeline.methods import METHODS
from anchorfl.tasks.errors import InputError, nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class PresetRow:
    """A shipped preset: a federation and a row."""

    name: str
    """Name of the preset, as ``anchorfl run`` takes it."""
    federation: Federation
    row: str
    """Name of the row."""
    paper: PaperFile | None
    """None: a row of the federation's own."""
    published: str
    """The method as published; empty: in no table."""
    cost: str
    """Cost of a run, in words; empty: the records say it, or nobody knows."""


@dataclass(frozen=True)
class Catalog:
    """The presets of a folder. InputError with file, table and the nearest name where a file is wrong."""

    folder: Path

    @cached_property
    def _files(self) -> dict[Path, Tree]:
        return {path: read_toml(path) for path in sorted(self.folder.glob("*.toml"))}

    @cached_property
    def papers(self) -> dict[str, PaperFile]:
        """The papers by name of the file."""
        papers = [read_paper(path, tree) for path, tree in self._files.items() if is_paper(tree)]
        for paper in papers:
            self._check_data(paper)
        return {paper.name: paper for paper in papers}

    @cached_property
    def federations(self) -> dict[str, Federation]:
        """The federations by name, with the variant."""
        federations = dict[str, Federation]()
        for path, tree in self._files.items():
            for federation in () if is_paper(tree) else read_federations(path, tree):
                if federation.name in federations:
                    other = federations[federation.name].file
                    raise InputError(f"{path}: {federation.name} is a federation of {other}.toml, too: rename one")
                federations[federation.name] = federation
        return federations

    @cached_property
    def presets(self) -> dict[str, PresetRow]:
        """Every preset by its name, sorted."""
        presets = dict[str, PresetRow]()
        for federation in self.federations.values():
            self._check_entries(federation)
            for preset in self._presets_of(federation):
                if preset.name in presets:
                    raise self._wrong(federation.file, f"several papers have a row {preset.row!r} for it: rename one")
                presets[preset.name] = preset
        return dict(sorted(presets.items()))

    @cached_property
    def _checked(self) -> dict[str, PresetRow]:
        """The presets, their options held against their methods: it imports these, which names alone do without."""
        self._check_methods(self.presets)
        return self.presets

    def read(self, name: str) -> Experiment:
        """Return the experiment of a preset. InputError with its files, the table and the key."""
        try:
            return from_tree(self.tree(name))
        except InputError as error:
            preset = self.presets[name]
            rows = f" with {preset.paper.name}.toml" if preset.paper else ""
            raise self._wrong(preset.federation.file, f"{name}{rows}: {error}") from error

    def tree(self, name: str) -> Tree:
        """Return the sections of a preset, as one TOML file would have them."""
        preset = self._checked[name]
        federation, paper = preset.federation, preset.paper
        row = Tree()
        for _, _, entry in self._chain(preset):
            row = merge_sections(row, entry.tree)
        method = row.pop("method")
        known = _options_of(method["name"])
        shared = (paper.method if paper else {}) | federation.method
        tree = merge_sections(federation.tree, row)
        tree["method"] = {"name": method["name"], **{k: v for k, v in shared.items() if k in known}} | method
        if paper is not None:
            tree["seed"] = paper.seeds[0]
        heads = {key: value for key, value in tree.items() if key not in SECTIONS}
        return heads | {key: tree[key] for key in SECTIONS if key in tree}

    def _wrong(self, file: str, what: str) -> InputError:
        return InputError(f"{self.folder / file}.toml: {what}")

    def _entries(self, federation: Federation, paper: PaperFile | None, row: str) -> list[tuple[str, RowEntry]]:
        """Return what the paper, then the federation, then its variant says of a row, each with its file."""
        layers = [(federation.file, layer) for layer in federation.layers]
        if paper is not None:
            layers.insert(0, (paper.name, paper.rows))
        return [(file, layer[row]) for file, layer in layers if row in layer]

    def _chain(self, preset: PresetRow) -> list[tuple[str, str, RowEntry]]:
        """Return (file, row, what it says) of a preset's row, after those of the row that it is from."""
        paper = preset.paper
        rows = [preset.row, *(paper.parents(preset.row) if paper else ())]
        return [(file, row, e) for row in rows[::-1] for file, e in self._entries(preset.federation, paper, row)]

    def _rows_of(self, federation: Federation) -> Iterator[tuple[PaperFile, str]]:
        """Yield the rows that papers have for a federation."""
        for paper in self.papers.values():
            if federation.name in paper.data.values():
                for name, row in paper.rows.items():
                    if not row.data or not {federation.name, federation.file}.isdisjoint(row.data):
                        yield paper, name

    def _presets_of(self, federation: Federation) -> Iterator[PresetRow]:
        """Yield the rows that papers have for a federation, and its own. InputError where it has none."""
        used = set[str]()
        for paper, row in self._rows_of(federation):
            used |= {row, *paper.parents(row)}
            costs = [entry.cost for _, entry in self._entries(federation, paper, row) if entry.cost]
            yield PresetRow(
                name=f"{federation.name}/{row}", federation=federation, row=row, paper=paper,
                published=paper.rows[row].published, cost=costs[-1] if costs else "",
            )  # fmt: skip
        for row, entry in (*federation.layers[0].items(), *federation.layers[1].items()):
            if row not in used and "name" in entry.method:
                used.add(row)
                name = f"{federation.name}/{row}"
                yield PresetRow(name=name, federation=federation, row=row, paper=None, published="", cost=entry.cost)
        if not used:
            raise self._wrong(federation.file, f"no paper has {federation.name} in its [data], and it has no rows")

    def _check_data(self, paper: PaperFile) -> None:
        """Refuse a paper that names an unknown federation, or a row that names one which the paper has not."""
        for label, federation in paper.data.items():
            if federation not in self.federations:
                near = nearest(federation, self.federations)
                raise self._wrong(paper.name, f"data.{label!r} = {federation!r}: no such federation{near}")
        names = {name for place in paper.data.values() for name in (place, self.federations[place].file)}
        for row, entry in paper.rows.items():
            for federation in entry.data:
                if federation not in names:
                    near = nearest(federation, names)
                    raise self._wrong(paper.name, f"rows.{row}.data: [data] has no {federation!r}{near}")

    def _check_entries(self, federation: Federation) -> None:
        """Refuse a federation's file that speaks of a row which it has not, or says what is a paper's to say."""
        files = [other for other in self.federations.values() if other.file == federation.file]
        for layer, federations in zip(federation.layers, (files, [federation]), strict=True):
            papers = [pair for place in federations for pair in self._rows_of(place)]
            known = {name for paper, row in papers for name in (row, *paper.parents(row))}
            for row, entry in layer.items():
                if entry.published or entry.data or entry.parent:
                    raise self._wrong(federation.file, f"rows.{row}: published, data and from are for papers' files")
                if row not in known and "name" not in entry.method:
                    raise self._wrong(
                        federation.file,
                        f"rows.{row}: no paper has such a row for {' or '.join(place.name for place in federations)}"
                        f"{nearest(row, known)}; a row of its own needs method.name",
                    )

    def _check_methods(self, presets: Mapping[str, PresetRow]) -> None:
        """Refuse a [method] with an option that the row's method lacks, or in a file, that all methods lack."""
        shared: dict[tuple[str, str], set[str]] = {}
        for preset in presets.values():
            method: Any = ""
            for file, row, entry in self._chain(preset):
                method = entry.method.get("name", method)
                if not isinstance(method, str) or method not in METHODS:
                    what = f"no method {method!r}{nearest(str(method), METHODS)}" if method else "needs method.name"
                    raise self._wrong(file, f"rows.{row}: {what}; there are: {', '.join(METHODS)}")
                known = ("name", *_options_of(method))
                check_options(self.folder / f"{file}.toml", f"rows.{row}.method", entry.method, known)
            files = [(preset.federation.file, preset.federation.method)]
            files += [(preset.paper.name, preset.paper.method)] if preset.paper else []
            for file, options in files:
                for key in options:
                    shared.setdefault((file, key), set()).update(_options_of(method))
        for (file, key), some in shared.items():
            if key not in some:
                raise self._wrong(file, f"no option {key!r} in [method]{nearest(key, some)}: no row's method has it")


def _options_of(method: str) -> list[str]:
    return [f.name for f in fields(METHODS[method]) if f.init]  # type: ignore[arg-type]
