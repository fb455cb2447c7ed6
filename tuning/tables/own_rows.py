"""Rows of the user's own in a paper's table (``--row``): a row of the paper with another method or other options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.idle_options import check_idle
from anchorfl.pipeline.config.overrides import keep_options, override, typed_options
from anchorfl.pipeline.config.preset_files import merge_sections
from anchorfl.pipeline.config.presets import build, preset_tree, read_preset
from anchorfl.pipeline.run.assemble import METHOD
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tuning.tables.published import Row

FORM = '--row "Mine = fedavg --method.name mine:Mine"'
SECTIONS = ("method", "model", "class_embeddings", "federation", "optimizer")
"""Tables of options that an own row may have for itself; data, partition, seeds and scores are the table's."""


class OwnRow(NamedTuple):
    """A row as the command line gives it."""

    label: str
    """Its name on the page."""
    base: str
    """The paper's row that it starts from, as ``--rows`` calls it."""
    words: tuple[str, ...]
    """Options that make it another."""


def parse_own_rows(texts: Sequence[str]) -> list[OwnRow]:
    """Return the rows of ``--row``. InputError where one is not of the form, or takes what is the table's."""
    out = []
    for text in texts:
        label, _, rest = text.partition("=")
        try:
            base, *words = shlex.split(rest)
        except ValueError as error:
            raise InputError(
                f"--row {text!r}: must be a name, a row of the paper and options, such as {FORM}"
            ) from error
        typed = typed_options(words)
        if not label.strip() or base.startswith("--") or not words or not words[0].startswith("--"):
            raise InputError(f"--row {text!r}: must be a name, a row of the paper and options, such as {FORM}")
        if foreign := [name for name in typed if name.partition(".")[0] not in SECTIONS]:
            raise InputError(
                f"--row {text!r}: {foreign[0]} is the same for all rows of a table: leave it out, or give it outside"
                f" of --row; a row has options of {', '.join(SECTIONS)}"
            )
        out.append(OwnRow(label.strip(), base, tuple(words)))
    if len({row.label for row in out}) < len(out):
        raise InputError("--row: two rows have one name; give each its own")
    if len({(row.base, row.words) for row in out}) < len(out):
        raise InputError("--row: two rows have the same options; leave one out")
    return out


def own_rows(given: Sequence[OwnRow], rows: Sequence[Row], data: Sequence[str]) -> tuple[Row, ...]:
    """Return the own rows, each on every data set that has the row that it starts from.

    rows: all of the paper; data: as ``--data`` calls the data sets; empty: all. InputError where there is no such row,
    or a name is the paper's.
    """
    out, names = list[Row](), list(dict.fromkeys(row.name for row in rows))
    for own in given:
        if own.label in {row.label for row in rows}:
            raise InputError(f"--row {own.label}: the paper has a row of that name; give yours another")
        bases = [row for row in rows if row.name == own.base and (not data or row.folder in data)]
        if not bases:
            raise InputError(
                f"--row {own.label}: no row {own.base} of these data sets{nearest(own.base, names)}; the paper has"
                f" {', '.join(names)}"
            )
        out += [replace(row, label=own.label, tables=(), figures={}, own=own.words) for row in bases]
    return tuple(out)


def base_experiment(row: Row) -> Experiment:
    """Return the experiment of a row before the options for all rows: its preset, or what its own options make of it.

    Another method has its own defaults, and takes none of the options of the preset's.
    """
    if not row.own:
        return read_preset(row.preset)
    tree, method = preset_tree(row.preset), typed_options(row.own).get(METHOD)
    if method is not None:
        tree = merge_sections(tree, {"method": {"name": method}})
    words = keep_options(row.own, lambda name: name != METHOD)
    try:
        experiment = override(build(row.preset, tree), words, f"anchorfl run {row.preset}")
        check_idle(typed_options(words), [experiment])
    except InputError as error:
        raise InputError(f"--row {row.label}: {error}") from error
    return experiment
