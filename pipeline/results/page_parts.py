"""Pieces of a page that stands alone: its style, tables, bars, heat maps and curves, without script or outside
reference. Colors follow the reader's light or dark setting; what a color says, a line style, number or mark says, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.errors import escaped

HEAT = 0.45
"""Opacity of the largest value of a heat map or bar, through which text keeps its contrast."""
COLORS, DASHES = 6, 3
"""Colors of curves; line styles, which change when the colors are through."""
NUMBERED, NAMED = 600, 60
"""A heat map of so few cells has numbers in them; an axis with so few ticks has names."""
LONGEST_NAME = 24
"""Longer names are cut at an axis."""
STYLE = """
:root { color-scheme: light dark; --bg: #ffffff; --fg: #1b1f24; --muted: #57606a; --line: #d0d7de; --panel: #f6f8fa;
  --heat: 9 105 218; --held: 110 110 110;
  --c0: #0550ae; --c1: #a04100; --c2: #116329; --c3: #8250df; --c4: #a40e26; --c5: #57606a; }
@media (prefers-color-scheme: dark) { :root { --bg: #0d1117; --fg: #e6edf3; --muted: #9da7b1; --line: #3d444d;
  --panel: #161b22; --heat: 56 139 253; --held: 150 150 150;
  --c0: #79c0ff; --c1: #ffa657; --c2: #7ee787; --c3: #d2a8ff; --c4: #ff9c95; --c5: #c9d1d9; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 72rem;
  margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; padding-top: 0.75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 0.5rem; overflow-wrap: anywhere; }
p { margin: 0.4rem 0; max-width: 46rem; overflow-wrap: anywhere; }
.note, figcaption, caption { color: var(--muted); font-size: 0.875rem; text-align: left; }
caption { padding: 0 0 0.3rem; }
pre { background: var(--panel); border: 1px solid var(--line); padding: 0.6rem; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 0.875rem; margin: 0.4rem 0; }
.cards { display: flex; flex-wrap: wrap; gap: 0.5rem; margin: 0.75rem 0; }
.cards div { background: var(--panel); border: 1px solid var(--line); padding: 0.4rem 0.7rem; flex: 1 1 8.5rem; }
.cards dt { color: var(--muted); font-size: 0.8rem; } .cards dd { margin: 0; font-size: 1.15rem; }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.6rem 0.2rem 0.3rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; font-weight: normal; }
thead th { font-weight: 600; vertical-align: bottom; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.w { overflow-wrap: anywhere; min-width: 6rem; }
td.b { min-width: 7.5rem; background: linear-gradient(rgb(var(--heat) / 0.45), rgb(var(--heat) / 0.45)) 0 0 / var(--w)
  100% no-repeat; }
td.q { text-align: right; background: rgb(var(--heat) / var(--s)); }
figure { margin: 0.6rem 0; }
.panels { display: flex; flex-wrap: wrap; gap: 1rem; } .panels svg { flex: 1 1 20rem; max-width: 34rem; }
svg { display: block; width: 100%; height: auto; } svg.own { width: auto; max-width: none; }
svg text { fill: var(--fg); font: 12px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); } svg .s { fill: none; stroke-width: 2.2; } svg .band { stroke: none; opacity: 0.22; }
svg .cell { fill: rgb(var(--held)); } svg .cell.i { fill: rgb(var(--heat)); }
svg .mark { fill: none; stroke: rgb(var(--heat)); stroke-width: 1.2; } svg .frame { fill: none; stroke: var(--line); }
.legend { list-style: none; padding: 0; margin: 0.4rem 0; font-size: 0.875rem; }
.legend li { overflow-wrap: anywhere; }
.key { display: inline-block; width: 2.2rem; vertical-align: middle; border-top: 3px solid; margin-right: 0.4rem; }
.key.d1 { border-top-style: dashed; } .key.d2 { border-top-style: dotted; }
details { margin: 0.6rem 0; } summary { cursor: pointer; }
:focus-visible { outline: 3px solid var(--c0); outline-offset: 2px; }
""" + "".join(
    f".c{n} {{ border-color: var(--c{n}); }} svg .s.c{n} {{ stroke: var(--c{n}); }}"
    f" svg .band.c{n}, svg .dot.c{n} {{ fill: var(--c{n}); }}\n"
    for n in range(COLORS)
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may load or run, as browsers enforce it: nothing but its own style."""

Matrix = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a chart."""

    label: str
    color: int
    dash: int
    points: Mapping[int, float]
    """Round -> score, 0 to 1."""
    band: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Round -> lowest and highest score; empty: one run."""
    mark: str = ""
    """Letter at its end: a second cue beside its color."""


def text(value: object) -> str:
    """Return a text for HTML. A name out of a file opens no tag, and turns the direction of nothing that follows."""
    return escape(escaped(str(value)))


def page(title: str, body: Iterable[str], refresh_s: int = 0) -> str:
    """Return a page. body: HTML. refresh_s: seconds after which a browser asks for it again; 0: never."""
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        *([f'<meta http-equiv="refresh" content="{refresh_s}">'] if refresh_s else []),
        f"<title>{text(title)}</title>",
        f"<style>{STYLE}</style>",
    ]
    return "\n".join(["<!doctype html>", '<html lang="en"><head>', *head, "</head><body><main>", *body,
                      "</main></body></html>\n"])  # fmt: skip


def cards(facts: Mapping[str, str]) -> str:
    """Return facts as a row of small boxes."""
    boxes = "".join(f"<div><dt>{text(name)}</dt><dd>{text(fact)}</dd></div>" for name, fact in facts.items())
    return f'<dl class="cards">{boxes}</dl>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a table whose first column heads its rows. words: columns from the left that are texts, not numbers."""
    lines = []
    for name, *cells in rows:
        kinds = ("w" if at < words else "n" for at in range(1, len(head)))
        inner = "".join(f'<td class="{kind}">{text(cell)}</td>' for kind, cell in zip(kinds, cells, strict=True))
        lines.append(f'<tr><th scope="row">{text(name)}</th>{inner}</tr>')
    return _scrolled(caption, _head(head, words), lines)


def bars(caption: str, head: Sequence[str], rows: Iterable[tuple[Sequence[str], Sequence[tuple[float, str]]]]) -> str:
    """Return a table whose last columns are bars. rows: cells, and (share of the width, text) of every bar."""
    lines = []
    for (name, *cells), measured in rows:
        numbers = "".join(f'<td class="n">{text(cell)}</td>' for cell in cells)
        drawn = "".join(f'<td class="b" style="--w: {100 * share:.1f}%">{text(word)}</td>' for share, word in measured)
        lines.append(f'<tr><th scope="row">{text(name)}</th>{numbers}{drawn}</tr>')
    return _scrolled(caption, _head(head, len(head)), lines)


def shaded(caption: str, corner: str, names: Sequence[str], count_CC: Matrix) -> str:
    """Return a square matrix of counts as a table, each cell shaded by its share of its row."""
    lines = []
    for name, count_C in zip(names, count_CC.tolist(), strict=True):
        whole = max(1, sum(count_C))
        cells = "".join(f'<td class="q" style="--s: {HEAT * n / whole:.2f}">{n or ""}</td>' for n in count_C)
        lines.append(f'<tr><th scope="row">{text(name)}</th>{cells}</tr>')
    return _scrolled(caption, _head([corner, *names], 1), lines)


def _head(head: Sequence[str], words: int) -> str:
    kinds = ("w" if at < words else "n" for at in range(len(head)))
    return "".join(f'<th scope="col" class="{kind}">{text(name)}</th>' for kind, name in zip(kinds, head, strict=True))


def _scrolled(caption: str, head: str, lines: Iterable[str]) -> str:
    """Return a table in a box that scrolls sideways where it is too wide, with the keyboard, too."""
    inner = f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table>{inner}</table></div>'


def legend(lines: Iterable[Line]) -> str:
    """Return the key of curves."""
    keys = "".join(
        f'<li><span class="key c{line.color % COLORS} d{line.dash % DASHES}"></span>{text(line.label)}</li>'
        for line in lines
    )
    return f'<ul class="legend">{keys}</ul>'


def chart(title: str, description: str, lines: Sequence[Line]) -> str:
    """Return curves of scores, in percent against rounds, as an SVG. description: what a reader who sees none needs."""
    width, height, left, right, top, bottom = 380, 250, 40, 22, 26, 34
    rounds = [r for line in lines for r in line.points] or [0]
    scores = [s for line in lines for s in (*line.points.values(), *(s for pair in line.band.values() for s in pair))]
    first, last = min(rounds), max(max(rounds), min(rounds) + 1)
    ticks = _ticks(100 * min(scores, default=0.0), 100 * max(scores, default=1.0))
    low, high = ticks[0], ticks[-1]

    def x(round_: float) -> float:
        return left + (width - left - right) * (round_ - first) / (last - first)

    def y(score: float) -> float:
        return top + (height - top - bottom) * (1 - (100 * score - low) / (high - low))

    def path(points: Iterable[tuple[int, float]]) -> str:
        return "L".join(f"{x(r):.1f} {y(s):.1f}" for r, s in points)

    parts = [f'<text x="4" y="15">{text(title)}, %</text>']
    for tick in ticks:
        at = y(tick / 100)
        parts.append(f'<path class="grid" d="M{left} {at:.1f}H{width - right}"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    step = max(1, math.ceil((last - first) / 5))
    parts += [
        f'<text x="{x(round_):.1f}" y="{height - 16}" text-anchor="middle">{round_}</text>'
        for round_ in range(first, last + 1, step)
    ]
    parts.append(f'<text x="{(left + width - right) / 2:.0f}" y="{height - 2}" text-anchor="middle">round</text>')
    for line in lines:
        color, dash = (
            line.color % COLORS,
            ("", ' stroke-dasharray="7 4"', ' stroke-dasharray="2 3"')[line.dash % DASHES],
        )
        if len(line.band) > 1:
            upper = path((r, high) for r, (_, high) in line.band.items())
            lower = path((r, low) for r, (low, _) in reversed(list(line.band.items())))
            parts.append(f'<path class="band c{color}" d="M{upper}L{lower}Z"/>')
        points = list(line.points.items())
        if len(points) > 1:
            parts.append(f'<path class="s c{color}"{dash} d="M{path(points)}"/>')
        for r, s in points[-1:]:
            parts.append(f'<circle class="dot c{color}" cx="{x(r):.1f}" cy="{y(s):.1f}" r="3.5"/>')
            parts.append(f'<text x="{x(r) + 6:.1f}" y="{y(s) + 4:.1f}">{text(line.mark)}</text>' if line.mark else "")
    return _svg(title, description, width, height, parts)


def _ticks(low: float, high: float) -> list[float]:
    """Return 3 to 6 round numbers whose first and last enclose low and high."""
    rough = max((high - low) / 4, 0.1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 2)
    return [round(n * step, 6) for n in range(first, last + 1)]


def heat_map(
    title: str, description: str, rows_MC: Matrix, marked_MC: npt.NDArray[np.bool_],
    clients: Sequence[str], classes: Sequence[str],
) -> str:  # fmt: skip
    """Return an SVG of the rows of each class at each client, darker for more, by the square root.

    marked_MC: classes that a client identifies, in another color and with a frame. Each cell says itself in a title.
    """
    cell, few = (20, rows_MC.size <= NUMBERED) if rows_MC.size <= 5 * NUMBERED else (9, False)
    wide, high = (28, 18) if few else (cell, cell)
    named = [max(map(len, map(_short, names))) if len(names) <= NAMED else 0 for names in (clients, classes)]
    left, top = 8 + 7 * named[0], 8 + 7 * named[1]
    most = int(rows_MC.max(initial=1))
    parts = []
    for column, name in enumerate(classes if named[1] else ()):
        at = left + column * wide + wide / 2 + 4
        parts.append(f'<text transform="translate({at:.0f} {top - 4}) rotate(-90)">{text(_short(name))}</text>')
    for row, name in enumerate(clients):
        y = top + row * high
        if named[0]:
            parts.append(f'<text x="{left - 5}" y="{y + high - 5}" text-anchor="end">{text(_short(name))}</text>')
        for column in np.flatnonzero(rows_MC[row] | marked_MC[row]).tolist():
            held, known = int(rows_MC[row, column]), bool(marked_MC[row, column])
            shade = 0.08 + (HEAT - 0.08 if few else 0.92) * math.sqrt(held / most) if held else 0
            x, says = left + column * wide, f"{name}, {classes[column]}: {held} rows, "
            kind, size = ("cell i", wide - 1) if known else ("cell", wide - 1)
            inner = f"<title>{text(says + ('identified' if known else 'not identified'))}</title>"
            box = f'x="{x}" y="{y}" width="{size}" height="{high - 1}"'
            parts.append(f'<rect class="{kind}" {box} fill-opacity="{shade:.2f}">{inner}</rect>')
            if known:
                parts.append(f'<rect class="mark" {box}/>')
            if few and held:
                parts.append(f'<text x="{x + size / 2}" y="{y + high - 5}" text-anchor="middle">{held}</text>')
    width, height = left + wide * len(classes) + 4, top + high * len(clients) + 4
    parts.append(f'<rect class="frame" x="{left - 1}" y="{top - 1}" width="{width - left}" height="{height - top}"/>')
    return f'<div class="wide" tabindex="0">{_svg(title, description, width, height, parts, own=True)}</div>'


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\u2026"


def _svg(title: str, description: str, width: int, height: int, parts: Sequence[str], *, own: bool = False) -> str:
    """Return an SVG. own: in its own size, else as wide as there is room."""
    says = f"<title>{text(title)}</title><desc>{text(description)}</desc>"
    size = f' class="own" width="{width}" height="{height}"' if own else ""
    label = text(f"{title}. {description}")
    view = f'viewBox="0 0 {width} {height}"'
    return f'<svg role="img" aria-label="{label}" {view}{size}>{says}{"".join(parts)}</svg>'
