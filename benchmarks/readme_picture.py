"""Draw the partition heat map of the README: which client identifies which class, and what is hidden from it.

    python -m benchmarks.readme_picture            # writes docs/images/partition.png and partition-dark.png

The federation is real: scikit-learn's digits over 40 clients, seed 0, as ``anchorfl run digits/fedalign --task.clients
40`` trains on. Blue and orange differ for the color-blind, and the two ramps differ in lightness in print.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

import anchorfl
from anchorfl.pipeline.run.prepare import prepare_data

CLIENTS = 40
COLORS = 128
"""Colors of the PNG's palette; with more of them the file is three times as large and looks the same."""
IDENTIFIED = LinearSegmentedColormap.from_list("identified", ["#6aaed6", "#08488e"])
HIDDEN = LinearSegmentedColormap.from_list("hidden", ["#fdd9b0", "#f3a045"])
THEMES = {
    "partition.png": {"page": "#ffffff", "ink": "#1f2328", "muted": "#59636e", "empty": "#d1d9e0"},
    "partition-dark.png": {"page": "#0d1117", "ink": "#f0f6fc", "muted": "#9198a1", "empty": "#3d444d"},
}


def federation(cache: str):
    """Return rows per client and class [M, C], the classes that each client identifies [M, C], and the class names."""
    options = {"task.clients": CLIENTS, "task.cache": cache, "cluster.executor": "serial"}
    data = prepare_data(anchorfl.read_preset("digits/fedalign", options), print)
    shape = CLIENTS, len(data.manifest.class_names)
    rows_MC, identified_MC = data.class_histogram().matrix(*shape), np.zeros(shape, dtype=bool)
    for client, classes in enumerate(data.manifest.classes):
        identified_MC[client, list(classes)] = True
    return rows_MC, identified_MC, data.manifest.class_names


def draw(path: Path, rows_MC, identified_MC, names, theme: dict[str, str]) -> None:
    clients, classes = rows_MC.shape
    figure = Figure(figsize=(11.0, 3.9), facecolor=theme["page"])
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0.055, 0.115, 0.94, 0.735), facecolor=theme["page"])
    most = rows_MC.max()
    for client, class_ in np.ndindex(clients, classes):
        rows, box = rows_MC[client, class_], (client - 0.45, class_ - 0.45)
        if not rows:
            ax.add_patch(_cell(box, facecolor="none", edgecolor=theme["empty"], linewidth=0.8))
            continue
        ramp = IDENTIFIED if identified_MC[client, class_] else HIDDEN
        ax.add_patch(_cell(box, facecolor=ramp((rows - 1) / (most - 1)), edgecolor="none"))
        ink = "white" if identified_MC[client, class_] and rows > 1 else "#1f2328"
        ax.text(client, class_, str(rows), ha="center", va="center_baseline", size=7.5, color=ink)
    ax.set(xlim=(-0.6, clients - 0.4), ylim=(classes - 0.4, -0.6))
    ax.set_xticks(range(0, clients, 3), [str(c) for c in range(0, clients, 3)])
    ax.set_yticks(range(classes), names)
    ax.tick_params(length=0, labelsize=9, labelcolor=theme["muted"], pad=2)
    ax.set_xlabel("client", color=theme["muted"], size=9, labelpad=1)
    for spine in ax.spines.values():
        spine.set_visible(False)
    _legend(figure, rows_MC, identified_MC, theme)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, facecolor=theme["page"])
    Image.open(picture).convert("RGB").quantize(COLORS).save(path, optimize=True)


def _cell(corner, **style) -> FancyBboxPatch:
    return FancyBboxPatch(corner, 0.9, 0.9, boxstyle="round,pad=0,rounding_size=0.16", **style)


def _legend(figure: Figure, rows_MC, identified_MC, theme: dict[str, str]) -> None:
    """Draw a sample of each kind of cell above the map, with the share of rows that are of it."""
    ax = figure.add_axes((0.055, 0.88, 0.94, 0.1))
    ax.set(xlim=(0, 40), ylim=(-0.9, 0.9))
    ax.axis("off")
    share = (rows_MC * identified_MC).sum() / rows_MC.sum()
    entries = (
        (0.0, IDENTIFIED(0.6), "none", "identified", f"labels known to the client ({share:.0%} of rows)"),
        (16.0, HIDDEN(0.6), "none", "hidden", f"rows without labels ({1 - share:.0%})"),
        (29.0, "none", theme["empty"], "absent", "no row of the class"),
    )
    for left, face, edge, word, meaning in entries:
        ax.add_patch(_cell((left, -0.45), facecolor=face, edgecolor=edge, linewidth=0.8))
        name = ax.text(left + 1.2, 0, word, size=10, weight="bold", color=theme["ink"], va="center_baseline")
        right = ax.transData.inverted().transform(name.get_window_extent(figure.canvas.get_renderer()).get_points())
        ax.text(right[1][0] + 0.3, 0, meaning, size=9.5, color=theme["muted"], va="center_baseline")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as cache:
        federation_ = federation(cache)
    for name, theme in THEMES.items():
        draw(out / name, *federation_, theme)
        print(f"{out / name}: {(out / name).stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
