"""The sensitivity figure of a table (Figure 5 of FedAlign): scores against the values of an option, and the numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tuning.figures import INK
from tuning.table_numbers import Entry, Table
from tuning.tables import Change, plain

COLOURS = ("#31688e", "#d1495b", "#4f9a52", "#e09f3e", "#7b4f9d", "#8c6d46", "#3fa7b8", "#6f6f6f")
MARKERS = ("o", "s", "^", "v", "P")
APART, SPREAD = 0.1, 0.6
"""Distance of neighbouring rows at one value, so that their bars do not hide each other, and the most of all rows
together; the distance of values is 1.
"""
Style = tuple[str, str, str]
"""Colour, mark and line."""


def sensitivity(table: Table) -> Figure:
    """One panel per data set and metric, one line per row: at every value the mean with its sd, every seed as a tick.
    Values stand at even distances: percentiles near 100 would lie on each other. A ring marks the preset's own value,
    an open diamond the published figure there. A line breaks at a value without a run.
    """
    metrics, values = table.paper.metrics, _values(table)
    styles = _styles(table)
    width = 1.2 + max(3.0, (0.5 + 0.08 * len(styles)) * len(values))
    figure = Figure(figsize=(width * len(metrics), 2.9 * len(table.data) + 0.9), layout="constrained")
    axes = figure.subplots(len(table.data), len(metrics), squeeze=False)
    for (data, rows), line in zip(table.data, axes, strict=True):
        for metric, ax in zip(metrics, line, strict=True):
            labels = [label for label in styles if any(row.label == label for row in rows)]
            step = min(APART, SPREAD / len(labels))
            for i, label in enumerate(labels):
                entries = [e for e in table.entries if e.row in rows and e.row.label == label and e.metric is metric]
                _row(ax, entries, values, step * (i - (len(labels) - 1) / 2), styles[label])
            _axes(ax, values, f"{data}: {metric.shown} (%)", table.varied)
    handles, names = _sensitivity_legend(axes[0][0], table, styles)
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _values(table: Table) -> list[str]:
    """All values in their order, as text."""
    return list(dict.fromkeys(plain(row.change.value) for row in table.rows if row.change))


def _styles(table: Table) -> dict[str, Style]:
    """How every row looks, the same in all panels; dashed where colours come again."""
    labels, colours, marks = dict.fromkeys(row.label for row in table.rows), len(COLOURS), len(MARKERS)
    return {
        label: (COLOURS[i % colours], MARKERS[i % marks], "-" if i < colours else "--")
        for i, label in enumerate(labels)
    }


def _row(ax: Axes, entries: Sequence[Entry], values: Sequence[str], shift: float, style: Style) -> None:
    """A line of one row through its values."""
    colour, mark, line = style
    places = [_place(entry, values) + shift for entry in entries]
    means = [float("nan") if entry.mean is None else entry.mean for entry in entries]
    ax.plot(places, means, line, color=colour, linewidth=1.2, alpha=0.8, zorder=2)
    for x, entry in zip(places, entries, strict=True):
        if entry.published:
            theirs = entry.published
            ax.errorbar(x, theirs.mean, yerr=theirs.sd, fmt="D", markersize=7, markerfacecolor="none", color=colour)
        if entry.mean is None:
            continue
        seeds = [100 * score for score in entry.scores.values()]
        ax.plot([x] * len(seeds), seeds, "_", color=colour, markersize=9, alpha=0.55, zorder=1)
        ax.errorbar(x, entry.mean, yerr=entry.sd, fmt=mark, markersize=5, capsize=3, color=colour, zorder=3)
        if entry.row.change and entry.row.change.own:
            ax.plot(x, entry.mean, "o", markersize=13, markerfacecolor="none", color=INK, zorder=4)


def _place(entry: Entry, values: Sequence[str]) -> int:
    return values.index(plain(entry.row.change.value)) if entry.row.change else 0


def _axes(ax: Axes, values: Sequence[str], title: str, option: str) -> None:
    ax.set_xticks(range(len(values)), values)
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_xlabel(option)
    ax.set_title(title, fontsize=10, loc="left")
    ax.grid(alpha=0.3)


def _sensitivity_legend(ax: Axes, table: Table, styles: dict[str, Style]) -> tuple[list[Any], list[str]]:
    """Handles that no panel has to have: a table may lack every figure of one kind."""
    out: dict[str, Any] = {}
    for label, (colour, mark, line) in styles.items():
        out[f"{label}: mean and sd"] = ax.errorbar([], [], yerr=[], fmt=f"{mark}{line}", capsize=3, color=colour)
    (out["single seeds"],) = ax.plot([], [], "_", color=INK, alpha=0.55, markersize=9)
    if any(row.change and row.change.own for row in table.rows):
        (out["the preset's own value"],) = ax.plot([], [], "o", markersize=11, markerfacecolor="none", color=INK)
    if any(entry.published for entry in table.entries):
        (out["published"],) = ax.plot([], [], "D", markersize=7, markerfacecolor="none", color=INK)
    return list(out.values()), list(out)


def sensitivity_csv(table: Table) -> str:
    """The numbers behind ``sensitivity`` in percent: a line per row, metric and value, in the order of the figure. own:
    1 at the preset's own value.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = ["data", "row", "preset", "option", "value", "own", "metric", "published", "n", "mean", "sd"]
    writer.writerow([*names, *(f"seed_{seed}" for seed in table.seeds)])
    for metric in table.paper.metrics:
        for entry in table.entries:
            if entry.metric is metric and entry.row.change:
                writer.writerow(_csv_line(entry, entry.row.change, table.seeds))
    return stream.getvalue()


def _csv_line(entry: Entry, change: Change, seeds: Sequence[int]) -> list[str]:
    row, published = entry.row, entry.published.mean if entry.published else None
    scores = [100 * entry.scores[seed] if seed in entry.scores else None for seed in seeds]
    numbers = ["" if n is None else f"{n:.4f}" for n in (published, entry.mean, entry.sd, *scores)]
    varied = [change.option, plain(change.value), str(int(change.own))]
    about = [row.data, row.label, row.preset, *varied, entry.metric.published]
    return [*about, numbers[0], str(len(entry.scores)), *numbers[1:]]
