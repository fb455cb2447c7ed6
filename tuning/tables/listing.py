"""The shipped presets in a terminal: what there is, published beside ours, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from anchorfl.pipeline import terminal
from anchorfl.pipeline.config.experiment import digest, to_tree
from anchorfl.pipeline.config.federations import PresetRow
from anchorfl.pipeline.config.presets import own_file, preset_names, read_preset, shipped, shipped_toml
from anchorfl.pipeline.config.schema import to_toml
from anchorfl.pipeline.results.mean_sd import mean_sd
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tuning.tables.ours import OurFigure, read_ours
from anchorfl.tuning.tables.papers import PAPERS
from anchorfl.tuning.tables.published import Figure, Row, rows_of, value_text

NONE = "-"
"""Stands for what there is not."""
WIDTH = 120
"""Columns of the overview."""


def overview(width: int | None = None) -> str:
    """Return every federation with its rows, those of equal rows in one line. width: columns; None: ``WIDTH``."""
    lines = list[str]()
    for paper in (*shipped().papers.values(), None):
        rows: dict[str, list[str]] = {}
        for preset in shipped().presets.values():
            if preset.paper is paper:
                rows.setdefault(preset.federation.name, []).append(preset.row)
        order = list(paper.data.values()) if paper else list(rows)
        groups: dict[tuple[str, ...], list[str]] = {}
        for federation in order:
            row_order = paper.rows if paper else rows[federation]
            names = tuple(name for name in row_order if name in rows[federation])
            groups.setdefault(names, []).append(federation)
        lines.append(f"{paper.title}: anchorfl table {paper.name}" if paper else "In no paper's table")
        for names, federations in groups.items():
            text = f"  {', '.join(federations)}: {', '.join(names)}"
            lines.append(terminal.paragraph(text, width or WIDTH, "    "))
    total = f"{len(preset_names())} presets, each a federation and a row: anchorfl run r8-8/fedalign"
    more = "Published beside ours: anchorfl presets r8-8; options: --toml r8-8/moon; --diff r8-8/fedavg r8-8/moon"
    return "\n".join([*lines, "", total, more])


def listing(pattern: str, width: int | None = None) -> str:
    """Return a line per metric of the presets that a pattern fits: published figure, ours, seeds, cost.

    pattern: a part of the name, or a glob for the whole of it; width: columns. InputError where it fits none.
    """
    notes: dict[str, str] = {}
    table: list[tuple[str, ...]] = [("preset", "metric", "published", "ours", "seeds", "cost of a run")]
    for name, row, ours in _fitting(pattern):
        table += _lines(shipped().presets[name], row, ours, notes)
    marked = [terminal.paragraph(f"{mark} {text}", width, "    ") for text, mark in notes.items()]
    return "\n".join([terminal.table(table, width), *(["", *marked] if marked else [])])


def figures(pattern: str) -> list[dict[str, Any]]:
    """Return an object per metric of the presets that a pattern fits, as ``listing`` has them; "": of all."""
    out = []
    for name, row, ours in _fitting(pattern):
        published = row.figures if row else {}
        for metric, shown in _shown().items():
            figure, our = published.get(metric), ours.get(metric)
            if figure is None and our is None:
                continue
            entry: dict[str, Any] = {
                "preset": name,
                "metric": shown,
                "published": figure and asdict(figure),
                "ours": None,
            }
            if our is not None:
                seeds = [int(seed) for seed in our.seeds.split()]
                numbers = {"mean": float(our.mean), "sd": float(our.sd) if our.sd else None}
                entry["ours"] = numbers | {"seeds": seeds, "cpu_hours": float(our.cpu_hours), "options": our.options}
            out.append(entry)
    return out


def _fitting(pattern: str) -> Iterator[tuple[str, Row | None, Mapping[str, OurFigure]]]:
    """Yield the presets that a pattern fits, the published row of each, and our figures by metric."""
    is_glob = any(c in pattern for c in "*?[")
    names = [n for n in preset_names() if (fnmatchcase(n, pattern) if is_glob else pattern in n)]
    if not names:
        federations = {name.split("/")[0] for name in preset_names()}
        near = nearest(pattern, [*federations, *preset_names()])
        raise InputError(f"no preset fits {pattern!r}{near}: give a part of a name, or a glob such as 'r8-8/*'")
    rows = {row.preset: row for paper in PAPERS.values() for row in rows_of(paper)}
    ours: dict[str, dict[str, OurFigure]] = {}
    for figure in read_ours():
        ours.setdefault(figure.preset, {})[figure.metric] = figure
    for name in _in_order(names, list(rows)):
        yield name, rows.get(name), ours.get(name, {})


def _shown() -> dict[str, str]:
    """Return the metrics of the papers: name in ``published.csv`` -> name in a terminal."""
    return {metric.published: metric.shown for paper in PAPERS.values() for metric in paper.metrics}


def _in_order(names: Sequence[str], order: Sequence[str]) -> list[str]:
    """Return the names in the order of the papers' tables, then the others."""
    known = set(names)
    first = [name for name in order if name in known]
    return first + [name for name in names if name not in set(first)]


def _lines(
    preset: PresetRow, row: Row | None, ours: Mapping[str, OurFigure], notes: dict[str, str]
) -> list[tuple[str, ...]]:
    """Return a line for each metric that is published or ours; notes gets options of ours with their mark."""
    published: Mapping[str, Figure] = row.figures if row else {}
    shown = _shown()
    metrics = [metric for metric in shown if metric in published or metric in ours]
    out = list[tuple[str, ...]]()
    for metric in metrics or [""]:
        figure, our = published.get(metric), ours.get(metric)
        mean, seeds, cost = NONE, NONE, preset.cost or NONE
        if our is not None:
            mean = f"{our.mean} ± {our.sd}" if our.sd else our.mean
            mean += f" {notes.setdefault(f'with {our.options}', f'[{len(notes) + 1}]')}" if our.options else ""
            seeds, cost = _ranges([int(seed) for seed in our.seeds.split()]), f"{our.cpu_hours} CPU hours"
        text = NONE if figure is None else mean_sd(figure.mean, figure.sd)
        out.append((preset.name, shown.get(metric, NONE), text, mean, seeds, cost))
    return out


def _ranges(seeds: Sequence[int]) -> str:
    """Return seeds as text: 0, 1, 2, 5 as 0-2, 5."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def preset_toml(name: str) -> str:
    """Return a preset as one TOML file: a shipped one as its files have it, one's own with every option."""
    return shipped_toml(name) if own_file(name) is None else to_toml(read_preset(name))


def difference(one: str, other: str, width: int | None = None) -> str:
    """Return the options in which two presets differ, a line for each. width: columns."""
    experiments = read_preset(one), read_preset(other)
    trees = [dict(_flat(to_tree(experiment))) for experiment in experiments]
    names = dict.fromkeys([*trees[0], *trees[1]])
    options = [option for option in names if trees[0].get(option) != trees[1].get(option)]
    if not options:
        return f"{one} and {other} have the same options"
    values = [(option, *(value_text(tree.get(option, NONE)) for tree in trees)) for option in options]
    lines = [terminal.table([("option", one, other), *values], width)]
    if digest(experiments[0]) == digest(experiments[1]):
        lines += ["", "no result depends on these"]
    return "\n".join(lines)


def _flat(tree: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", option) for name, option in value.items())
        else:
            yield key, value
