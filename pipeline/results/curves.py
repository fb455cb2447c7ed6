"""Scores against rounds as a picture: per group the mean over its runs as a line, lowest to highest run as a band."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from anchorfl.pipeline.storage.atomic_files import write_figure

Curve = Mapping[int, float]
"""Round -> score, 0 to 1."""
STYLES = ("-", "--", ":", "-.")
NAME = 28
"""Longer names are cut at an axis."""


def verbatim(text: str) -> str:
    """Escape a user's text for a picture: matplotlib would read what stands between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def short(name: str, most: int = NAME) -> str:
    """Return a name for an axis, cut to ``most`` characters."""
    return verbatim(name if len(name) <= most else f"{name[: most - 1]}\u2026")


def draw(groups: Mapping[str, Sequence[Mapping[str, Curve]]], panels: Mapping[str, str], path: Path) -> None:
    """Write a PNG with one panel per metric that some run has.

    groups: label -> runs -> metric -> curve; panels: metric -> label of the axis. A group is drawn over the rounds that
    all its runs have, so that a run that stopped early does not bend the mean.
    """
    runs = [run for group in groups.values() for run in group]
    shown = {metric: label for metric, label in panels.items() if any(run.get(metric) for run in runs)} or panels
    legend_height = 0.24 * len(groups) + 0.3
    figure = Figure(figsize=(5.6 * len(shown), 3.8 + legend_height), layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: no global figures, no display needed
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for ax, (metric, label) in zip(axes, shown.items(), strict=True):
        for number, group in enumerate(groups.values()):
            _band(ax, [run.get(metric, {}) for run in group], number)
        ax.set(xlabel="round", ylabel=label)
        ax.grid(alpha=0.3)
        ax.xaxis.get_major_locator().set_params(integer=True)
    handles = axes[0].get_legend_handles_labels()[0]
    labels = ["\n".join(textwrap.wrap(verbatim(_label(name, len(group))), 100)) for name, group in groups.items()]
    figure.legend(handles, labels, loc="outside lower center", ncols=1, frameon=False)
    write_figure(path, figure, dpi=130)


def _label(name: str, runs: int) -> str:
    return name if runs == 1 else f"{name}: mean of {runs} runs, band from lowest to highest"


def _band(ax: Axes, curves: Sequence[Curve], number: int) -> None:
    """Draw one line and its band, empty where the runs share no round, so that every panel has every group's handle."""
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    scores_RK = 100 * np.array([[curve[r] for r in rounds] for curve in curves], dtype=float).reshape(len(curves), -1)
    color, style = colormaps["tab10"](number % 10), STYLES[number // 10 % len(STYLES)]
    marker = "o" if len(rounds) <= 30 else ""
    ax.plot(rounds, scores_RK.mean(0), style, color=color, marker=marker, markersize=3, label=str(number))
    if len(curves) > 1:
        ax.fill_between(rounds, scores_RK.min(0), scores_RK.max(0), color=color, alpha=0.18, linewidth=0)
