"""Figures, as files and as text: a PNG to look at, an SVG for papers. The same figure gives the same bytes."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from anchorfl.pipeline.storage.atomic_files import write_atomically

DPI = 130
"""Dots per inch of a PNG."""
STYLES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X")
"""Lines and marks: a second cue beside colors, which some readers and printers do not tell apart."""
NAME = 28
"""Longer names are cut at an axis."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, without pyplot: no global figures, no display needed."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write a figure as a PNG to ``path`` and as an SVG beside it, each whole or not at all; return both paths."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": None})
    figure.set_layout_engine("none")  # the SVG keeps the layout of the PNG: to find it is a quarter of the time
    vector = path.with_suffix(".svg")
    write_atomically(path, stream.getvalue())
    write_atomically(vector, svg(figure).encode())
    return path, vector


def svg(figure: Figure) -> str:
    """Return a figure as the text of an SVG file."""
    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "anchorfl"}):  # else the ids in the file are random
        figure.savefig(stream, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def verbatim(text: str) -> str:
    """Escape a user's text for a picture: matplotlib would read what stands between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def short(name: str, most: int = NAME) -> str:
    """Return a name for an axis, cut to ``most`` characters."""
    return verbatim(name if len(name) <= most else f"{name[: most - 1]}\u2026")
