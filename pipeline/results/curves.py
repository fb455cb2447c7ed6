"""Scores against rounds as a picture: per group the mean over its runs as a line, lowest to highest run as a band."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from anchorfl.pipeline.results.picture import MARKERS, STYLES, new_figure, save, verbatim

Curve = Mapping[int, float]
"""Round -> score, 0 to 1."""
MARKS, PANEL = 12, 5.6
"""Marks on a line, about; width of a panel in inches, under which 48 letters of the legend have room."""


def draw(groups: Mapping[str, Sequence[Mapping[str, Curve]]], panels: Mapping[str, str], path: Path) -> None:
    """Write a PNG and an SVG with one panel per metric that some run has.

    groups: label -> runs -> metric -> curve; panels: metric -> label of the axis. A group is drawn over the rounds that
    all its runs have, so that a run that stopped early does not bend the mean.
    """
    runs = [run for group in groups.values() for run in group]
    shown = {metric: label for metric, label in panels.items() if any(run.get(metric) for run in runs)} or panels
    width = PANEL * len(shown)
    labels = [textwrap.wrap(verbatim(_label(name, len(group))), int(8.5 * width)) for name, group in groups.items()]
    figure = new_figure(width, 4.1 + 0.24 * sum(map(len, labels)))
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for ax, (metric, label) in zip(axes, shown.items(), strict=True):
        for number, group in enumerate(groups.values()):
            _band(ax, [run.get(metric, {}) for run in group], number)
        ax.set(xlabel="round", ylabel=label)
        ax.grid(alpha=0.3)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = axes[0].get_legend_handles_labels()[0]
    texts = ["\n".join(lines) for lines in labels]
    figure.legend(handles, texts, loc="outside lower center", ncols=1, frameon=False, handlelength=3.5)
    save(figure, path)


def _label(name: str, runs: int) -> str:
    return name if runs == 1 else f"{name}: mean of {runs} runs, band from lowest to highest"


def _band(ax: Axes, curves: Sequence[Curve], number: int) -> None:
    """Draw one line and its band, empty where the runs share no round, so that every panel has every group's handle."""
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    scores_RK = 100 * np.array([[curve[r] for r in rounds] for curve in curves], dtype=float).reshape(len(curves), -1)
    color, every = colormaps["tab10"](number % 10), max(1, len(rounds) // MARKS)
    style, marker = STYLES[number % len(STYLES)], MARKERS[number % len(MARKERS)]
    ax.plot(
        rounds, scores_RK.mean(0), style, color=color, marker=marker, markersize=4,
        markevery=(number % every, every), label=str(number),
    )  # fmt: skip
    if len(curves) > 1:
        ax.fill_between(rounds, scores_RK.min(0), scores_RK.max(0), color=color, alpha=0.18, linewidth=0)
