"""The figures of a table: published beside ours, and learning curves with the numbers behind them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from anchorfl.pipeline.results.compare import RunSummary
from anchorfl.pipeline.results.picture import verbatim
from anchorfl.tuning.sweep.html import to_csv
from anchorfl.tuning.sweep.plots import INK
from anchorfl.tuning.tables.published import Change, Metric, Row, value_text
from anchorfl.tuning.tables.ranks import Ranking
from anchorfl.tuning.tables.statistics import Table, TableEntry

Curves = Mapping[str, Mapping[int, float]]
"""Metric -> round -> score."""
COLUMNS = 4
"""Panels side by side."""
OURS, PUBLISHED = "#31688e", "#d1495b"


def plot_dots(table: Table) -> Figure:
    """Draw one panel per data set and metric, one line per row.

    The published figure is an open diamond, ours a point with its sd, every seed a tick. In bold is what the others are
    tested against.
    """
    metrics = table.paper.metrics
    heights = [0.6 + 0.27 * len(rows) for _, rows in table.data]
    figure = Figure(figsize=(2.2 + 4.1 * len(metrics), sum(heights) + 0.9), layout="constrained")
    axes = figure.subplots(len(heights), len(metrics), squeeze=False, gridspec_kw={"height_ratios": heights})
    for (data, rows), line in zip(table.data, axes, strict=True):
        for metric, ax in zip(metrics, line, strict=True):
            entries = [e for e in table.entries if e.row in rows and e.metric is metric]
            if not entries:  # the paper has no such figure of these data
                ax.set_visible(False)
                continue
            named = not any(left.get_visible() for left in line[: metrics.index(metric)])
            _panel(ax, entries, [table.reference(e.row) == e.row for e in entries], named)
            ax.set_title(f"{data}: test {metric.shown} (%)", fontsize=10, loc="left")
    handles, labels = _legend(axes[0][0])
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _panel(ax: Axes, entries: Sequence[TableEntry], bold: Sequence[bool], named: bool) -> None:
    for y, entry in enumerate(entries):
        if entry.published:
            mean, sd = entry.published.mean, entry.published.sd
            ax.errorbar(mean, y, xerr=sd, fmt="D", markersize=6, markerfacecolor="none", color=PUBLISHED, zorder=2)
        if entry.mean is not None:
            seeds = [100 * score for score in entry.scores.values()]
            ax.plot(seeds, [y] * len(seeds), "|", color=OURS, markersize=9, alpha=0.55, zorder=1)
            ax.errorbar(entry.mean, y, xerr=entry.sd, fmt="o", markersize=5, capsize=3, color=OURS, zorder=3)
    ax.set_yticks(range(len(entries)), [verbatim(entry.row.shown) for entry in entries])
    for label, is_bold in zip(ax.get_yticklabels(), bold, strict=True):
        if is_bold:
            label.set(fontweight="bold", color=INK)
    ax.tick_params(labelleft=named)
    ax.set_ylim(len(entries) - 0.4, -0.6)
    ax.grid(alpha=0.3)


def rank_diagram(ranking: Ranking) -> Figure:
    """Draw a critical-difference diagram: methods by mean rank, the best on the left, and a bar over those neighbors
    that do not differ.
    """
    ranks, groups = ranking.mean_ranks, ranking.alike
    half = (len(ranks) + 1) // 2
    figure = Figure(figsize=(8.5, 1.3 + 0.2 * len(groups) + 0.28 * half), layout="constrained")
    ax = figure.subplots()
    low, high = 1.0, float(len(ranks))
    step, bars = 0.28, 0.2 * len(groups)
    ax.plot([low, high], [0, 0], color=INK, linewidth=1)
    for tick in range(1, len(ranks) + 1):
        ax.plot([tick, tick], [0, 0.08], color=INK, linewidth=1)
        ax.text(tick, 0.12, str(tick), ha="center", va="bottom", fontsize=8)
    for place, (name, mean) in enumerate(ranks.items()):
        left = place < half
        line = place if left else len(ranks) - 1 - place
        y, x = -(bars + step * (line + 1)), low - 0.1 if left else high + 0.1
        ax.plot([mean, mean, x], [0, y, y], color=OURS, linewidth=1)
        words = verbatim(f"{name}  {mean:.2f}" if left else f"{mean:.2f}  {name}")
        ax.text(x, y, f" {words} ", ha="right" if left else "left", va="center", fontsize=9)
    for line, group in enumerate(groups):
        y = -0.2 * (line + 0.7)
        ax.plot([ranks[group[0]] - 0.04, ranks[group[-1]] + 0.04], [y, y], color=PUBLISHED, linewidth=4)
    ax.plot([low, low + ranking.critical_difference], [0.55, 0.55], color=PUBLISHED, linewidth=4)
    ax.text(low, 0.62, f"critical difference {ranking.critical_difference:.2f}", va="bottom", fontsize=8)
    ax.set_xlim(low - (high - low) * 0.45, high + (high - low) * 0.45)
    ax.set_axis_off()
    return figure


def _legend(ax: Axes) -> tuple[list[Any], list[str]]:
    """Return handles that no panel has to have, since a table may lack every figure of one kind; and their names."""
    published = ax.plot([], [], "D", markerfacecolor="none", color=PUBLISHED)
    ours = ax.errorbar([], [], xerr=[], fmt="o", capsize=3, color=OURS)
    seeds = ax.plot([], [], "|", color=OURS, alpha=0.55, markersize=9)
    return [*published, ours, *seeds], ["published", "ours: mean and sd over seeds", "single seeds"]


def curves(table: Table, rows: Sequence[Row]) -> Figure:
    """Draw scores against rounds, of a data set: a small panel per metric and row that has a run. Those of the test
    split where all runs scored it in more rounds than one, else of the validation split.

    It shows the mean over seeds and a band from the lowest to the highest; dashed, the mean of the row's reference.
    """
    shown = [row for row in rows if table.of(row)]
    lines, metrics = -(-len(shown) // COLUMNS), table.paper.metrics
    columns = min(COLUMNS, len(shown))
    figure = Figure(figsize=(1.0 + 2.7 * columns, 2.1 * lines * len(metrics) + 0.5), layout="constrained")
    blocks = figure.subfigures(len(metrics), 1, squeeze=False)[:, 0]
    split = split_of_curves(table, rows)
    runs = {row.key: [curve(run, metrics, split) for run in table.of(row).values()] for row in shown}
    references = {row.key: other.key for row in shown if (other := table.reference(row)) in shown and other}
    for metric, block in zip(metrics, blocks, strict=True):
        axes = block.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for ax in axes[len(shown) :]:
            ax.set_visible(False)
        for row, ax in zip(shown, axes, strict=False):
            if references.get(row.key, row.key) != row.key:
                _line(ax, runs[references[row.key]], metric.record, INK, "--")
            _line(ax, runs[row.key], metric.record, OURS, "-", band=True)
            ax.set_title(verbatim(f"{row.shown} ({len(runs[row.key])})"), fontsize=9, loc="left")
            ax.grid(alpha=0.3)
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        block.supylabel(f"{split} {metric.shown} (%)", fontsize=9)
    name = "the preset's own value" if table.varied else table.paper.proposed_method
    reference = f"; dashed: mean of {name}" if references else ""
    figure.supxlabel(f"round; mean, lowest and highest of (n) seeds{reference}", fontsize=9)
    return figure


def _line(ax: Axes, runs: Sequence[Curves], metric: str, color: str, style: str, band: bool = False) -> None:
    """Draw the mean over runs of the rounds that all have, and a band over them."""
    rounds = sorted(set.intersection(*(set(run[metric]) for run in runs)))
    scores = [[100 * run[metric][r] for run in runs] for r in rounds]
    ax.plot(rounds, [statistics.fmean(s) for s in scores], style, color=color, linewidth=1.3 if band else 0.9)
    if band:
        ax.fill_between(rounds, [min(s) for s in scores], [max(s) for s in scores], color=color, alpha=0.2, lw=0)


def split_of_curves(table: Table, rows: Sequence[Row]) -> str:
    """Return ``test`` where all runs of these rows scored that split in more rounds than one, else ``validation`` where
    they did so there, else nothing: there are no curves.
    """
    for split in ("test", "validation"):
        runs = [curve(run, table.paper.metrics, split) for row in rows for run in table.of(row).values()]
        if runs and all(max(map(len, run.values())) > 1 for run in runs):
            return split
    return ""


def curve(run: RunSummary, metrics: Sequence[Metric], split: str) -> Curves:
    """Return the scores of a run on a split: metric -> round -> score."""
    of_split = {m.record: m.record.replace("test/", f"{split}/", 1) for m in metrics}
    return {name: {r.round: r.metrics[key] for r in run.records if key in r.metrics} for name, key in of_split.items()}


def curves_csv(table: Table, rows: Sequence[Row]) -> str:
    """Return the numbers behind ``curves`` in percent: a line per row, metric and round that all its runs have."""
    lines: list[list[object]] = [
        ["data", "row", "preset", "split", "metric", "round", "runs", "mean", "sd", "lowest", "highest"]
    ]
    split = split_of_curves(table, rows)
    for row in rows:
        runs = [curve(run, table.paper.metrics, split) for run in table.of(row).values()]
        for metric in table.paper.metrics if runs else ():
            for round_ in sorted(set.intersection(*(set(run[metric.record]) for run in runs))):
                scores = [100 * run[metric.record][round_] for run in runs]
                sd = f"{statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
                numbers = [f"{statistics.fmean(scores):.4f}", sd, f"{min(scores):.4f}", f"{max(scores):.4f}"]
                lines.append([row.data, row.shown, row.key, split, metric.published, round_, len(scores), *numbers])
    return to_csv(lines)


COLORS = ("#31688e", "#d1495b", "#4f9a52", "#e09f3e", "#7b4f9d", "#8c6d46", "#3fa7b8", "#6f6f6f")
MARKERS = ("o", "s", "^", "v", "P")
APART, SPREAD = 0.1, 0.6
"""Distance of neighbouring rows at one value, so that their bars do not hide each other, and the most of all rows
together; the distance of values is 1.
"""
Style = tuple[str, str, str]
"""Color, mark and line."""


def sensitivity(table: Table) -> Figure:
    """Draw one panel per data set and metric, one line per row: at every value the mean with its sd, every seed a tick.

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
            _axes(ax, values, f"{data}: test {metric.shown} (%)", table.varied)
    handles, names = _sensitivity_legend(axes[0][0], table, styles)
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _values(table: Table) -> list[str]:
    """Return all values in their order, as text."""
    return list(dict.fromkeys(value_text(row.change.value) for row in table.rows if row.change))


def _styles(table: Table) -> dict[str, Style]:
    """Return the style of every row, the same in all panels; dashed where colors come again."""
    labels, colors, marks = dict.fromkeys(row.label for row in table.rows), len(COLORS), len(MARKERS)
    return {
        label: (COLORS[i % colors], MARKERS[i % marks], "-" if i < colors else "--") for i, label in enumerate(labels)
    }


def _row(ax: Axes, entries: Sequence[TableEntry], values: Sequence[str], shift: float, style: Style) -> None:
    """Draw a line of one row through its values."""
    color, mark, line = style
    position = {value: i + shift for i, value in enumerate(values)}
    positions = [position[value_text(entry.row.change.value)] for entry in entries if entry.row.change]
    means = [float("nan") if entry.mean is None else entry.mean for entry in entries]
    ax.plot(positions, means, line, color=color, linewidth=1.2, alpha=0.8, zorder=2)
    for x, entry in zip(positions, entries, strict=True):
        if entry.published:
            mean, sd = entry.published.mean, entry.published.sd
            ax.errorbar(x, mean, yerr=sd, fmt="D", markersize=7, markerfacecolor="none", color=color)
        if entry.mean is None:
            continue
        seeds = [100 * score for score in entry.scores.values()]
        ax.plot([x] * len(seeds), seeds, "_", color=color, markersize=9, alpha=0.55, zorder=1)
        ax.errorbar(x, entry.mean, yerr=entry.sd, fmt=mark, markersize=5, capsize=3, color=color, zorder=3)
        if entry.row.change and entry.row.change.is_preset_value:
            ax.plot(x, entry.mean, "o", markersize=13, markerfacecolor="none", color=INK, zorder=4)


def _axes(ax: Axes, values: Sequence[str], title: str, option: str) -> None:
    ax.set_xticks(range(len(values)), values)
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_xlabel(option)
    ax.set_title(title, fontsize=10, loc="left")
    ax.grid(alpha=0.3)


def _sensitivity_legend(ax: Axes, table: Table, styles: dict[str, Style]) -> tuple[list[Any], list[str]]:
    """Return handles that no panel has to have, as ``_legend``."""
    out: dict[str, Any] = {}
    for label, (color, mark, line) in styles.items():
        out[f"{label}: mean and sd"] = ax.errorbar([], [], yerr=[], fmt=f"{mark}{line}", capsize=3, color=color)
    (out["single seeds"],) = ax.plot([], [], "_", color=INK, alpha=0.55, markersize=9)
    if any(row.change and row.change.is_preset_value for row in table.rows):
        (out["the preset's own value"],) = ax.plot([], [], "o", markersize=11, markerfacecolor="none", color=INK)
    if any(entry.published for entry in table.entries):
        (out["published"],) = ax.plot([], [], "D", markersize=7, markerfacecolor="none", color=INK)
    return list(out.values()), list(out)


def sensitivity_csv(table: Table) -> str:
    """Return the numbers behind ``sensitivity`` in percent: a line per row, metric and value, in the figure's order.

    Column ``own`` is 1 at the preset's own value.
    """
    names = ["data", "row", "preset", "option", "value", "own", "metric", "published", "n", "mean", "sd"]
    lines = [[*names, *(f"seed_{seed}" for seed in table.seeds)]]
    for metric in table.paper.metrics:
        entries = [entry for entry in table.entries if entry.metric is metric]
        lines += [_csv_line(entry, entry.row.change, table.seeds) for entry in entries if entry.row.change]
    return to_csv(lines)


def _csv_line(entry: TableEntry, change: Change, seeds: Sequence[int]) -> list[str]:
    row, published = entry.row, entry.published.mean if entry.published else None
    scores = [100 * entry.scores[seed] if seed in entry.scores else None for seed in seeds]
    numbers = ["" if n is None else f"{n:.4f}" for n in (published, entry.mean, entry.sd, *scores)]
    varied = [change.option, value_text(change.value), str(int(change.is_preset_value))]
    names = [row.data, row.label, row.preset, *varied, entry.metric.published]
    return [*names, numbers[0], str(len(entry.scores)), *numbers[1:]]
