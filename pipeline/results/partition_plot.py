"""Pictures of a partition: rows of each class at each client, and how unequal the classes are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from anchorfl.pipeline.results.picture import new_figure, save, short, verbatim
from anchorfl.tasks.ingest.class_histogram import ClassHistogram, class_counts
from anchorfl.tasks.ingest.manifest import Manifest

CELLS, LABELS = 600, 60
"""Numbers stand in the cells of so small a picture; names at axes with so few ticks."""
LARGEST = 4_000_000
"""Cells that are drawn at most; of more, the rows of each class stand alone (FedALC, Figure 5)."""
UNEVEN = 10
"""The rows of classes have a logarithmic axis where the largest class has so many times those of the smallest."""
IDENTIFIED, UNKNOWN = colormaps["Blues"], colormaps["Greys"]


def draw_partition(manifest: Manifest, histogram: ClassHistogram, path: Path, title: str = "") -> None:
    """Write a PNG and an SVG of a partition. The same federation gives the same bytes.

    Left, unless there are too many: clients x classes, blue where the client identifies the class, grey where it holds
    rows of it without knowing. Right: the rows of each class in descending order.
    """
    clients, classes = len(manifest.examples), len(manifest.class_names)
    count_C = class_counts(manifest, histogram)
    if clients * classes > LARGEST:
        figure = new_figure(6.4, 4.4)
        _imbalance(figure.subplots(), count_C)
        _finish(figure, path, title)
        return
    rows_MC = histogram.matrix(clients, classes)
    identified_MC = np.zeros((clients, classes), dtype=np.bool_)
    for client, known in enumerate(manifest.classes):
        identified_MC[client, list(known)] = True
    wide = 2.2 + min(16.0, max(3.0, 0.27 * classes))
    figure = new_figure(wide + 4.2, 1.9 + min(12.0, max(1.6, 0.25 * clients)))
    left, right = figure.subplots(1, 2, width_ratios=(wide, 4.2))
    _cells(left, rows_MC, identified_MC, manifest.class_names, manifest.client_names)
    _imbalance(right, count_C)
    _finish(figure, path, title)


def _finish(figure: Figure, path: Path, title: str) -> None:
    if title:
        figure.suptitle(verbatim(title))
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def _cells(
    ax: Axes,
    rows_MC: npt.NDArray[np.int64],
    identified_MC: npt.NDArray[np.bool_],
    names: tuple[str, ...],
    client_names: tuple[str, ...],
) -> None:
    """Draw the rows of each class at each client. client_names: empty for clients that have numbers only."""
    scale = LogNorm(0.5, max(2, rows_MC.max(initial=0)))
    share_MC = np.asarray(scale(np.maximum(rows_MC, 0.5)))
    color_MC4 = np.where(identified_MC[..., None], IDENTIFIED(share_MC), UNKNOWN(0.7 * share_MC))
    color_MC4[rows_MC == 0] = 1.0
    color_MC4[(rows_MC == 0) & identified_MC] = (0.87, 0.92, 0.98, 1.0)  # identified, but no row of it is here
    ax.imshow(color_MC4, aspect="auto", interpolation="nearest")
    clients, classes = rows_MC.shape
    if rows_MC.size <= CELLS:
        for client, class_ in np.argwhere(rows_MC):
            dark = share_MC[client, class_] > (0.6 if identified_MC[client, class_] else 0.8)
            text = str(rows_MC[client, class_])
            ax.text(class_, client, text, ha="center", va="center", size=6, color="white" if dark else "black")
    else:
        shades = ScalarMappable(scale, IDENTIFIED)
        ax.figure.colorbar(shades, ax=ax, label="rows", pad=0.01, fraction=0.03, aspect=30)
    if classes <= LABELS:
        ax.set_xticks(range(classes), [short(n) for n in names], rotation=90, size=7)
    if clients <= LABELS:
        ax.set_yticks(range(clients), [short(n) for n in client_names or map(str, range(clients))], size=7)
    ax.set(xlabel="class", ylabel="client")
    patches = [
        Patch(color=IDENTIFIED(0.7), label="identified"),
        Patch(color=UNKNOWN(0.5), label="held, not identified"),
    ]
    ax.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=7)


def _imbalance(ax: Axes, count_C: npt.NDArray[np.int64]) -> None:
    """Draw the rows of each class over all clients, the largest class first."""
    count_C = np.sort(count_C)[::-1]
    largest = int(count_C.max(initial=0))
    smallest = int(count_C[count_C > 0].min(initial=largest))
    ax.plot(np.arange(1, len(count_C) + 1), count_C, marker="o" if len(count_C) <= LABELS else "", markersize=3)
    ax.set(xlabel="rank of the class", ylabel="rows of all clients", xlim=(0.5, len(count_C) + 0.5))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if smallest * UNEVEN <= largest:
        ax.set(yscale="log", ylim=(0.8, 2 * largest))
    else:
        ax.set_ylim(0, 1.1 * max(1, largest))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.3)
    empty = int((count_C == 0).sum())
    without = f"; {empty} without a row" if empty else ""
    ax.set_title(f"rows of a class: {smallest} to {largest}{without}", size=8)
