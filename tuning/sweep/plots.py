"""Figures of a sweep, each a matplotlib Figure; the same sweep gives the same bytes.

Scores are shown in percent. Whole trials are filled marks, stopped ones hollow: they are shown where they stopped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from anchorfl.pipeline.results import picture
from anchorfl.pipeline.results.picture import verbatim
from anchorfl.tasks.metrics.scores import MEASURES
from anchorfl.tuning.search.results import Sweep, Trial
from anchorfl.tuning.search.search_space import Choice, Dimension, Value

MAP = colormaps["viridis"]
INK, GREY = "#222222", "#9a9a9a"
CELL, TICKS, ROUND = 1100, 12, 8
"""Size of a grid's cell in square points; values at an axis at most, of a grid and of round ones."""
SETTINGS: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def heat_map(sweep: Sweep, x: str, y: str) -> Figure:
    """Draw the mean score over the plane of two dimensions: cells with figures for a grid, marks for other searches.

    A solid outline is around the chosen point, a dashed one around the preset's own.
    """
    shown, grid = _scored(sweep), sweep.searcher == "grid"
    columns, lines = (len(_ticks(sweep, name)) if grid else 0 for name in (x, y))
    figure = Figure(figsize=(max(5.6, 2.2 + 0.6 * columns), max(4.2, 1.4 + 0.6 * lines)), layout="constrained")
    ax = figure.add_subplot()
    norm = _norm(sweep, shown)
    cells: dict[tuple[float, float], list[Trial]] = {}
    for trial in shown:
        at = _position(sweep.space[x], trial.point[x]), _position(sweep.space[y], trial.point[y])
        cells.setdefault(at, []).append(trial)
    for (a, b), trials in cells.items():  # of a grid over more dimensions a cell holds several trials
        score = statistics.fmean(_mean(sweep, trial) for trial in trials)
        color, whole = MAP(norm(score)), all(map(_whole, trials))
        if grid:
            ax.scatter(a, b, s=CELL, marker="s", color=color, alpha=1.0 if whole else 0.45, zorder=1)
            dark = norm(score) < 0.55
            ax.annotate(f"{score:.1f}", (a, b), ha="center", va="center", color="white" if dark else INK, fontsize=8)
        else:
            ax.scatter(a, b, s=90, color=color if whole else "white", edgecolor=color, linewidth=1.8, zorder=2)
    outline, sizes = ("s", (1.12 * CELL, 1.5 * CELL)) if grid else ("o", (220, 400))
    for marked, line, size in ((sweep.best, "-", sizes[0]), (sweep.trials[0], "--", sizes[1])):
        if marked is not None and marked in shown:
            at = _position(sweep.space[x], marked.point[x]), _position(sweep.space[y], marked.point[y])
            ax.scatter(*at, s=size, marker=outline, facecolor="none", edgecolor=INK, linewidth=1.6, linestyle=line,
                       zorder=3)  # fmt: skip
    _axis(ax, sweep, x, "x")
    _axis(ax, sweep, y, "y")
    ax.margins(0.15)
    _bar(figure, ax, norm, sweep)
    return figure


def front(sweep: Sweep) -> Figure:
    """Draw the score against the second objective: every whole trial, the front as a line, the chosen one outlined."""
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    ax = figure.add_subplot()
    whole = [trial for trial in _scored(sweep) if trial.status == "finished"]
    ax.scatter([t.expense for t in whole], [_mean(sweep, t) for t in whole], s=26, color=GREY, zorder=2)
    best = [(trial.expense, _mean(sweep, trial)) for trial in sweep.front]
    ax.plot(*zip(*best, strict=True), color="#31688e", marker="o", markersize=5, linewidth=1.2, zorder=3)
    for trial, at in zip(sweep.front, best, strict=True):
        ax.annotate(f"{trial.number}", at, xytext=(4, -9), textcoords="offset points", fontsize=8, color=INK)
    if sweep.best is not None:
        ax.scatter(sweep.best.expense, _mean(sweep, sweep.best), s=150, facecolor="none", edgecolor=INK, zorder=4)
    ax.set_xlabel(sweep.against)
    ax.set_ylabel(f"validation {_metric(sweep)}")
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    return figure


def against(sweep: Sweep, name: str) -> Figure:
    """Draw the score against one dimension: mean over seeds, and a bar from the lowest to the highest seed.

    Of a grid also the mean over all whole trials with that value.
    """
    dimension = sweep.space[name]
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    ax = figure.add_subplot()
    shown = _scored(sweep)
    positions = [_position(dimension, trial.point[name]) for trial in shown]
    scores = [[100 * s for s in trial.scores(sweep.rule)] for trial in shown]
    edge = ["#31688e" if _whole(trial) else GREY for trial in shown]
    face = [color if _whole(trial) else "white" for color, trial in zip(edge, shown, strict=True)]
    ax.vlines(positions, [*map(min, scores)], [*map(max, scores)], color=edge, linewidth=1, alpha=0.7)
    ax.scatter(positions, [*map(statistics.fmean, scores)], s=26, color=face, edgecolor=edge, zorder=3)
    if sweep.searcher == "grid":
        groups: dict[float, list[float]] = {}
        for trial in filter(_whole, shown):
            groups.setdefault(_position(dimension, trial.point[name]), []).append(_mean(sweep, trial))
        positions = sorted(groups)
        ax.plot(positions, [statistics.fmean(groups[p]) for p in positions], color="#31688e", linewidth=1.2, zorder=2)
    if (best := sweep.best) is not None:
        position = _position(dimension, best.point[name])
        ax.scatter(position, _mean(sweep, best), s=150, facecolor="none", edgecolor=INK, zorder=4)
    _axis(ax, sweep, name, "x")
    ax.set_ylabel(f"validation {_metric(sweep)}")
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    return figure


def parallel(sweep: Sweep) -> Figure:
    """Draw every trial as a line over one axis per dimension and one for the score; stopped trials thin and grey."""
    names = [*sweep.space, "score"]
    # the best is drawn last, on top
    shown = sorted(_scored(sweep), key=lambda trial: (_whole(trial), _mean(sweep, trial)))
    norm, chosen = _norm(sweep, shown), sweep.best
    figure = Figure(figsize=(1.7 * len(names) + 1.6, 3.8), layout="constrained")
    ax = figure.add_subplot()
    spans = {n: _span(sweep, n, shown) for n in names}
    for trial in shown:
        positions = [_mean(sweep, trial) if n == "score" else _position(sweep.space[n], trial.point[n]) for n in names]
        heights = [_share(p, *spans[n]) for n, p in zip(names, positions, strict=True)]
        whole = _whole(trial)
        best = trial is chosen
        ax.plot(
            range(len(names)), heights, color=MAP(norm(_mean(sweep, trial))) if whole else "#c9c9c9",
            linewidth=2.6 if best else 1.4 if whole else 0.8, zorder=3 if best else 2 if whole else 1,
        )  # fmt: skip
    for i, name in enumerate(names):
        ax.axvline(i, color=INK, linewidth=0.8)
        for share, label in _labels(sweep, name, spans[name]):
            ax.annotate(
                label, (i, share), xytext=(4, 3), textcoords="offset points", fontsize=7,
                color=INK, zorder=5, bbox={"facecolor": "white", "alpha": 0.8, "pad": 0.5, "linewidth": 0},
            )  # fmt: skip
    ax.set_xticks(range(len(names)), [_metric(sweep) if n == "score" else n for n in names])
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_visible(False)
    _bar(figure, ax, norm, sweep)
    return figure


def curves(sweep: Sweep) -> Figure:
    """Draw the validation score by round, mean over seeds, colored by the trial's score; hollow marks end stopped
    trials.
    """
    shown = _scored(sweep)
    norm, chosen = _norm(sweep, shown), sweep.best
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    ax = figure.add_subplot()
    for trial in shown:
        rounds = sorted(set.intersection(*(set(curve) for curve in trial.curves.values())))
        means = [100 * statistics.fmean(curve[r] for curve in trial.curves.values()) for r in rounds]
        ax.plot(rounds, means, color=MAP(norm(_mean(sweep, trial))), linewidth=2.4 if trial is chosen else 1.1)
        ax.plot(rounds[-1], means[-1], "o", markersize=4, color=MAP(norm(_mean(sweep, trial))),
                markerfacecolor=MAP(norm(_mean(sweep, trial))) if _whole(trial) else "white")  # fmt: skip
    ax.set_xlabel("round")
    ax.set_ylabel(f"validation {_metric(sweep)}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    _bar(figure, ax, norm, sweep)
    return figure


def importance(shares: dict[str, float]) -> Figure:
    """Draw importances as bars, which add up to 1."""
    ordered = sorted(shares.items(), key=lambda item: item[1])
    figure = Figure(figsize=(4.6, 0.5 + 0.38 * len(ordered)), layout="constrained")
    ax = figure.add_subplot()
    ax.barh([n for n, _ in ordered], [v for _, v in ordered], color="#31688e", height=0.6)
    for i, (_, value) in enumerate(ordered):
        ax.annotate(f"{value:.2f}", (value, i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_xlim(0, 1.05)
    ax.set_xlabel("share of the scores' variance")
    return figure


def svg(draw: Callable[[], Figure]) -> str:
    """Return a figure as inline SVG."""
    with matplotlib.rc_context(SETTINGS):
        text = picture.svg(draw())
    return text[text.index("<svg") :]


def save(draw: Callable[[], Figure], path: Path) -> None:
    """Write a figure as a PNG file and, beside it, as an SVG file."""
    with matplotlib.rc_context(SETTINGS):
        picture.save(draw(), path)


def _scored(sweep: Sweep) -> list[Trial]:
    return [trial for trial in sweep.trials if trial.status != "failed" and trial.scores(sweep.rule)]


def _whole(trial: Trial) -> bool:
    return trial.status == "finished"


def _mean(sweep: Sweep, trial: Trial) -> float:
    return 100 * statistics.fmean(trial.scores(sweep.rule))


def _metric(sweep: Sweep) -> str:
    return f"{MEASURES[sweep.metric].shown} (%)"


def _norm(sweep: Sweep, shown: Sequence[Trial]) -> Normalize:
    """Return the color scale: it spans the whole trials, so that early scores do not use up the range."""
    scores = [_mean(sweep, trial) for trial in shown if _whole(trial)] or [_mean(sweep, trial) for trial in shown]
    low, high = min(scores), max(scores)
    return Normalize(low, high if high > low else low + 1, clip=True)


def _position(dimension: Dimension, value: object) -> float:
    """Return the position of a value on an axis, in logarithms where the scale has them.

    Choices stand by their number, ``tail`` by its distance to 100 (downwards).
    """
    if isinstance(dimension, Choice):
        return float(dimension.values.index(value)) if value in dimension.values else -1.0
    number = float(value)  # type: ignore[arg-type]
    if dimension.scale == "tail":
        return -float(np.log10(max(100 - number, 1e-9)))
    return float(np.log10(number)) if dimension.scale == "log" and number > 0 else number


def _ticks(sweep: Sweep, name: str) -> list[Value]:
    """Return the values at the axis of a dimension: those of a grid, else round ones."""
    dimension = sweep.space[name]
    if isinstance(dimension, Choice):  # the preset's own value may be none of them, and then stands before them
        points = (trial.point[name] for trial in sweep.trials[:1])
        return [*(value for value in points if value not in dimension.values), *dimension.values]
    if sweep.searcher == "grid" and dimension.steps <= TICKS:
        return dimension.grid()
    low, high = sorted((dimension.inner(dimension.low), dimension.inner(dimension.high)))
    if dimension.scale == "linear":
        inner = [float(v) for v in MaxNLocator(5, integer=dimension.integer).tick_values(low, high)]
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        inner = [m * 10.0**k for k in decades for m in (1, 2, 5)]
        if sum(low <= v <= high for v in inner) > ROUND:
            inner = [10.0**k for k in decades]
    inside = sorted(dimension.inner(v) for v in inner if low <= v <= high)
    return [*inside] if len(inside) > 1 else [dimension.low, dimension.high]


def _tick_labels(ticks: Sequence[Value]) -> list[str]:
    """Return values as text: numbers with as few digits, from three on, as tell them apart."""
    if not all(isinstance(value, float) for value in ticks):
        return [verbatim(f"{v:g}" if isinstance(v, float) else str(v)) for v in ticks]
    texts = ([f"{value:.{digits}g}" for value in ticks] for digits in range(3, 17))
    return next((labels for labels in texts if len(set(labels)) == len(ticks)), [str(v) for v in ticks])


def _axis(ax: Axes, sweep: Sweep, name: str, which: str) -> None:
    ticks = _ticks(sweep, name)
    positions = [_position(sweep.space[name], value) for value in ticks]
    if which == "x":
        ax.set_xticks(positions, _tick_labels(ticks))
        ax.set_xlabel(name)
    else:
        ax.set_yticks(positions, _tick_labels(ticks))
        ax.set_ylabel(name)


def _span(sweep: Sweep, name: str, shown: Sequence[Trial]) -> tuple[float, float]:
    if name == "score":
        positions = [_mean(sweep, trial) for trial in shown]
    else:
        dimension = sweep.space[name]
        ends = dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high)
        values = [*ends, *(trial.point[name] for trial in shown)]
        positions = [_position(dimension, value) for value in values]
    return min(positions), max(positions)


def _share(position: float, low: float, high: float) -> float:
    return (position - low) / (high - low) if high > low else 0.5


def _labels(sweep: Sweep, name: str, span: tuple[float, float]) -> list[tuple[float, str]]:
    """Return the labels at an axis of ``parallel``: height (0 to 1) and text."""
    if name == "score":
        ticks = [float(v) for v in MaxNLocator(4).tick_values(*span) if span[0] <= v <= span[1]] or [*span]
        return [(_share(v, *span), label) for v, label in zip(ticks, _tick_labels(ticks), strict=True)]
    values = _ticks(sweep, name)
    heights = [_share(_position(sweep.space[name], value), *span) for value in values]
    return list(zip(heights, _tick_labels(values), strict=True))


def _bar(figure: Figure, ax: Axes, norm: Normalize, sweep: Sweep) -> None:
    bar = figure.colorbar(matplotlib.cm.ScalarMappable(norm, MAP), ax=ax, pad=0.02, aspect=30)
    bar.set_label(f"validation {_metric(sweep)}, {sweep.rule}")
    bar.outline.set_visible(False)
