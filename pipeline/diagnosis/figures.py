"""The figures of a diagnosis. Every number in them stands in a table beside them.

Shape suffixes: R rounds, C classes, K models, N test rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps, patheffects
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from anchorfl.pipeline.diagnosis.result import Floats
from anchorfl.pipeline.results.picture import MARKERS, STYLES, new_figure, save, short
from anchorfl.tasks.arrays.arrow import Bools, Ints

Pixels = npt.NDArray[np.uint8]
COLORED, LABELS, NAME = 20, 60, 24
"""Classes with a color of their own, the others are grey; names at axes with so few ticks; longer names are cut."""
RINGS, CLUSTER_NAME = (14, 26), 14
"""Distances in points at which the name of a cluster is tried where it would cover another; longer ones are cut."""
CELLS = 400
"""Numbers stand in the cells of so small a matrix."""


def draw_divergence(values: Mapping[str, Mapping[int, Floats]], path: Path) -> None:
    """Draw distances against rounds: mean as a line, least to largest as a band.

    values: what is compared -> round -> distances.
    """
    figure = new_figure(6.4, 4.0)
    ax = figure.subplots()
    _bands(ax, values)
    _distance_axis(ax)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, title=BAND)
    save(figure, path)


def draw_theory(
    terms: Sequence[Mapping[str, Mapping[int, Floats]]], counts: Mapping[str, Mapping[int, int]], path: Path
) -> None:
    """Draw the terms of FedAlign's bound against rounds. NaN is left out.

    terms: distances, risks, and what follows from the numbers of rows; label -> round -> value of each client.
    counts: label -> round -> rows of all clients.
    """
    figure = new_figure(15.0, 8.4)
    distances, risks, derived, rows = figure.subplots(2, 2).ravel()
    for ax, values in zip((distances, risks, derived), terms, strict=True):
        _bands(ax, values)
    for number, (label, by_round) in enumerate(counts.items()):
        style = f"{MARKERS[number]}{STYLES[number]}"
        rows.plot(list(by_round), list(by_round.values()), style, markersize=4, label=label)
    rows.grid(alpha=0.3)
    rows.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ax in (distances, risks, derived, rows):
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    _distance_axis(distances)
    risks.set(xlabel="round", ylabel=f"share of wrong decisions ({BAND})")
    derived.set(xlabel="round", ylabel="from numbers of rows")
    rows.set(xlabel="round", ylabel="rows of all clients")
    derived.set_ylim(bottom=0)
    rows.set_ylim(bottom=0)
    save(figure, path)


BAND = "mean; band: least to largest"


def _bands(ax: Axes, values: Mapping[str, Mapping[int, Floats]]) -> None:
    """Draw means over clients against rounds, with a band from the least to the largest; NaN is left out."""
    for number, (label, by_round) in enumerate(values.items()):
        stacks = {r: v[np.isfinite(v)] for r, v in by_round.items()}
        rounds = [r for r, v in stacks.items() if len(v)]
        color, stack = colormaps["tab10"](number), [stacks[r] for r in rounds]
        style = f"{MARKERS[number]}{STYLES[number]}"
        ax.plot(rounds, [v.mean() for v in stack], style, markersize=4, color=color, label=label)
        ax.fill_between(
            rounds, [v.min() for v in stack], [v.max() for v in stack], color=color, alpha=0.15, linewidth=0
        )
    ax.grid(alpha=0.3)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _distance_axis(ax: Axes) -> None:
    ax.axhline(0, color="grey", linewidth=0.8, linestyle=":")
    ax.set(xlabel="round", ylabel="proxy A-distance (0 alike, 2 apart)")
    ax.set_ylim(top=2.05)


def draw_precision(
    rounds: Sequence[int], whole: Mapping[str, Floats], precision_RC: Floats, names: Sequence[str], path: Path
) -> None:
    """Draw precision, coverage and chance over all classes against rounds, and beside them precision of every class."""
    figure = new_figure(11.0, 2.4 + min(10.0, max(2.0, 0.2 * len(names))))
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    for (label, values_R), style in zip(whole.items(), ("o-", "s--", "^:"), strict=True):
        left.plot(rounds, 100 * values_R, style, markersize=3, label=label)
    left.set(xlabel="round", ylabel="percent, all classes", ylim=(-2, 102))
    left.grid(alpha=0.3)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    shades = colormaps["viridis"].with_extremes(bad="white")
    percent_CR = 100 * precision_RC.T
    image = right.imshow(
        np.ma.masked_invalid(percent_CR), aspect="auto", cmap=shades, vmin=0, vmax=100, interpolation="nearest"
    )
    if precision_RC.size <= CELLS:
        _numbers(right, percent_CR, 0, percent_CR < 55)
    right.set_xticks(range(len(rounds)), [str(r) for r in rounds], size=7, rotation=90 if len(rounds) > 20 else 0)
    if len(names) <= LABELS:
        right.set_yticks(range(len(names)), [short(n, NAME) for n in names], size=7)
    right.set(xlabel="round", title="precision of every class (white: no pseudo-positive)")
    figure.colorbar(image, ax=right, label="percent")
    save(figure, path)


def _numbers(ax: Axes, values_AB: Floats, digits: int, dark_AB: Bools) -> None:
    """Write the values that are no NaN into their cells, with so many decimals, white where the cell is dark."""
    for a, b in np.argwhere(np.isfinite(values_AB)):
        color = "white" if dark_AB[a, b] else "black"
        value = round(float(values_AB[a, b]), digits) + 0.0  # never -0.00
        ax.text(b, a, f"{value:.{digits}f}", ha="center", va="center", size=6, color=color)


def _label_cells(ax: Axes, values_CC: Floats, names: Sequence[str], dark_CC: Bools) -> None:
    """Write the values of a small matrix into its cells, and the classes' names at its axes where they have room."""
    if values_CC.size <= CELLS:
        _numbers(ax, values_CC, 2, dark_CC)
    if len(names) <= LABELS:
        labels = [short(name, NAME) for name in names]
        ax.set_xticks(range(len(names)), labels, rotation=90, size=7)
        ax.set_yticks(range(len(names)), labels, size=7)


def draw_frames(
    plane_KN2: Floats, class_N: Ints, names: Sequence[str], aware_KC: Bools, titles: Sequence[str], path: Path
) -> None:
    """Draw one panel per model, all in one frame: colors are classes, which have their names where these have room; the
    points of the other models are grey behind.

    aware_KC: classes that a model's client identifies are dots, the others crosses.
    """
    classes, count_C = np.unique(class_N, return_counts=True)
    colored = np.sort(classes[np.argsort(-count_C, kind="stable")][:COLORED])
    palette = colormaps["tab10" if len(colored) <= 10 else "tab20"]
    color_of = {int(c): palette(k) for k, c in enumerate(colored)}
    figure = new_figure(4.3 * len(titles), 5.2 + 0.17 * np.ceil(len(colored) / 5))
    axes = figure.subplots(1, len(titles), sharex=True, sharey=True, squeeze=False)[0]
    size = 9 if len(class_N) < 800 else 5
    for model, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        for behind in range(len(plane_KN2)):
            if behind != model:
                ax.scatter(*plane_KN2[behind].T, s=3, color="0.8", linewidths=0, rasterized=True)
        for c in classes.tolist():
            known = bool(aware_KC[model, c])
            style = {"marker": "o", "linewidths": 0} if known else {"marker": "x", "linewidths": 0.7}
            color = color_of.get(c, (0.55, 0.55, 0.55, 1.0))
            ax.scatter(*plane_KN2[model][class_N == c].T, s=size if known else 1.6 * size, color=color, **style)
        ax.set(title=title, xticks=[], yticks=[])
    handles = [
        Line2D([], [], color=color_of[int(c)], marker="o", linestyle="", markersize=5, label=short(names[int(c)], NAME))
        for c in colored
    ]
    more = f"; {len(classes) - len(colored)} more classes are grey" if len(classes) > len(colored) else ""
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 10 if len(handles) <= 10 else 5),
        frameon=False, columnspacing=1.0, handletextpad=0.1, fontsize=9,
        title=f"dot: the client identifies the class, cross: it does not; grey: the other models{more}",
    )  # fmt: skip
    figure.draw_without_rendering()  # where the panels lie, which decides where a name has room
    for model, ax in enumerate(axes):
        _name_clusters(ax, [(names[int(c)], plane_KN2[model][class_N == c]) for c in colored])
    save(figure, path)


def _name_clusters(ax: Axes, clusters: Sequence[tuple[str, Floats]]) -> None:
    """Write each name at the median of its points [K, 2], or near it with a line there; none over another.

    A name that has no room near its points is left out.
    """
    taken: list[Bbox] = []
    offsets = [(0.0, 0.0)] + [(r * np.cos(a), r * np.sin(a)) for r in RINGS for a in np.arange(8) * np.pi / 4]
    halo = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    for name, xy_K2 in clusters:
        anchor = xy_K2[np.square(xy_K2 - np.median(xy_K2, axis=0)).sum(1).argmin()]
        text = ax.annotate(
            short(name, CLUSTER_NAME), anchor, xytext=(0, 0), textcoords="offset points", size=8, ha="center",
            va="center", zorder=5, path_effects=halo,
            arrowprops={"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        box = text.get_window_extent().padded(1)
        for offset in offsets:
            moved = box.translated(*(distance * ax.figure.dpi / 72 for distance in offset))
            inside = all(ax.bbox.contains(*corner) for corner in (moved.min, moved.max))
            if inside and not any(moved.overlaps(other) for other in taken):
                text.xyann = offset
                taken.append(moved)
                break
        else:
            text.remove()


@dataclass(frozen=True, slots=True)
class Beside:
    """A measure of every two classes that is laid beside the cosines of their embeddings."""

    name: str
    """Name in those of its file and of the record."""
    short: str
    """Name in the printed lines."""
    title: str
    """Title of its panel."""
    signed: bool
    """0 is its middle."""
    values_CC: Floats
    """NaN where it is unknown, -inf where it is less than any."""
    rho: float
    """Its rank correlation with the cosines; NaN where there is none."""
    pairs: int
    """Pairs of classes in that."""


def draw_matrices(
    cosine_CC: Floats,
    besides: Sequence[Beside],
    order_C: Ints,
    cluster_C: Ints,
    names: Sequence[str],
    out: Path,
) -> None:
    """Draw ``class_embeddings.png``: cosines of class embeddings and what is laid beside them, if anything.

    All are in the same order, with lines between spectral clusters.
    """
    classes = len(order_C)
    off_CC = ~np.eye(classes, dtype=np.bool_)
    side = min(11.0, max(4.2, 0.34 * classes + 1.6))
    figure = new_figure(side * (1 + len(besides)) + 0.6, side + 0.3)
    axes = figure.subplots(1, 1 + len(besides), squeeze=False)[0]
    apart = float(np.abs(cosine_CC[off_CC]).max(initial=0.0)) or 1.0
    _matrix(axes[0], cosine_CC, "cosine of class embeddings", "RdBu_r", -apart, apart, order_C, cluster_C, names)
    for ax, beside in zip(axes[1:], besides, strict=True):
        finite = beside.values_CC[off_CC & np.isfinite(beside.values_CC)]
        top = float(np.max(np.abs(finite) if beside.signed else finite, initial=0.0)) or 1.0
        colors, low = ("RdBu_r", -top) if beside.signed else ("Reds", 0.0)
        title = beside.title if np.isnan(beside.rho) else f"{beside.title} (rank correlation {beside.rho:.2f})"
        _matrix(ax, beside.values_CC, title, colors, low, top, order_C, cluster_C, names)
    save(figure, out / "class_embeddings.png")


def _matrix(
    ax: Axes,
    values_CC: Floats,
    title: str,
    colors: str,
    low: float,
    high: float,
    order_C: Ints,
    cluster_C: Ints,
    names: Sequence[str],
) -> None:
    """Draw one matrix in the order of the clusters, without its diagonal; -inf in the color of ``low``, unnumbered."""
    inner_CC = values_CC[np.ix_(order_C, order_C)].copy()
    np.fill_diagonal(inner_CC, np.nan)
    cmap = colormaps[colors].with_extremes(bad="none")
    ax.imshow(np.where(np.eye(len(order_C)), 0.85, 1.0), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    shown_CC = np.ma.masked_invalid(np.where(np.isneginf(inner_CC), low, inner_CC))
    image = ax.imshow(shown_CC, cmap=cmap, vmin=low, vmax=high, interpolation="nearest")
    _label_cells(ax, inner_CC, [names[c] for c in order_C], np.abs(inner_CC) > 0.65 * high)
    unknown_CC = np.isnan(inner_CC) & ~np.eye(len(order_C), dtype=np.bool_)
    if unknown_CC.any():
        hatched = inner_CC.size <= CELLS
        for row, column in np.argwhere(unknown_CC) if hatched else ():
            ax.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, hatch="////", facecolor="none", edgecolor="0.6", lw=0)
            )
        ax.set_xlabel(
            f"{'hatched' if hatched else 'white'}: unknown, too few rows are labeled for both classes", size=8
        )
    for edge in np.flatnonzero(np.diff(cluster_C[order_C])):
        ax.axhline(edge + 0.5, color="black", linewidth=0.8)
        ax.axvline(edge + 0.5, color="black", linewidth=0.8)
    ax.set_title(title, size=10)
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.02).ax.tick_params(labelsize=7)


def draw_images(images_TC: Pixels, names: Sequence[str], heads: Sequence[str], path: Path) -> None:
    """Draw a row for each class, a column for each head. images_TC: [T, C, channels, H, W], 0..255, grey or color."""
    columns, classes, channels, high, wide = images_TC.shape
    figure = new_figure(0.9 * columns + 1.8, 0.9 * classes + 0.4)
    ax = figure.subplots()
    # one picture of all: an axes for each of 80 images takes matplotlib 6 s
    step_y, step_x = high + max(1, high // 8), wide + max(1, wide // 8)
    page = np.full((classes * step_y, columns * step_x, channels), 255, dtype=np.uint8)
    for t, c in np.ndindex(columns, classes):
        page[c * step_y :, t * step_x :][:high, :wide] = images_TC[t, c].transpose(1, 2, 0)
    if channels == 1:
        ax.imshow(page[..., 0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    else:
        ax.imshow(page, interpolation="nearest")
    middle_y, middle_x = (high - 1) / 2, (wide - 1) / 2
    ax.set_yticks(middle_y + step_y * np.arange(classes), [short(name, NAME) for name in names], size=8)
    ax.set_xticks(middle_x + step_x * np.arange(columns), heads, size=8)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    save(figure, path)


def draw_confusion(count_CC: Ints, names: Sequence[str], path: Path) -> None:
    """Draw shares of each true class (a row); numbers in the cells, but in those of 0, where there are few classes."""
    classes, rows_C = len(names), count_CC.sum(1)
    share_CC = count_CC / np.maximum(1, rows_C[:, None])
    side = min(11.0, max(4.2, 0.4 * classes + 1.8))
    figure = new_figure(side + 0.6, side)
    ax = figure.subplots()
    image = ax.imshow(share_CC, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    _label_cells(ax, np.where(count_CC, share_CC, np.nan), names, share_CC > 0.6)
    if classes <= LABELS:
        ax.set_yticks(range(classes), [f"{short(n, NAME)} ({rows})" for n, rows in zip(names, rows_C, strict=True)])
    ax.set(xlabel="predicted class", ylabel="true class (test rows)")
    bar = figure.colorbar(image, ax=ax, fraction=0.046, pad=0.02, label="share of the true class")
    bar.ax.tick_params(labelsize=7)
    save(figure, path)
