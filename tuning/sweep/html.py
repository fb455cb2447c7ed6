"""Blocks of a report as one HTML page without any outside reference, and as Markdown; rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from anchorfl.pipeline.results.markdown import markdown_table, plain_markdown
from anchorfl.tasks.errors import escaped_lines
from anchorfl.tuning.sweep.plots import save, svg

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto;
       padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.22rem 0.7rem 0.22rem 0; border-bottom: 1px solid #e6e6e6; text-align: left; }
td.n, th.n { text-align: right; } .wide { overflow-x: auto; }
figure { margin: 0.6rem 0; } figcaption, .note { color: #555; font-size: 0.86rem; max-width: 46rem; }
svg { max-width: 100%; height: auto; }
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a report."""

    title: str = ""
    """Heading; empty: none."""
    rows: Sequence[Sequence[str]] = ()
    """A table; the first row is its head, of empty cells where it has none."""
    picture: Callable[[], Figure] | None = None
    """Draws a figure."""
    file: str = ""
    """Name of the figure's file."""
    paragraphs: Sequence[str] = field(default=())
    """Text below table or figure."""


def _text(text: str) -> str:
    """Return a text for HTML. A name out of a file is not to turn the direction of what follows."""
    return escape(escaped_lines(text))


def html(title: str, blocks: Sequence[Block]) -> str:
    """Return one HTML page with its style and figures inside."""
    parts = [f"<h1>{_text(title)}</h1>"]
    for block in blocks:
        if block.title:
            parts.append(f"<h2>{_text(block.title)}</h2>")
        if block.rows:
            parts.append(_table(block.rows))
        if block.picture:
            caption = "".join(f"<figcaption>{_text(text)}</figcaption>" for text in block.paragraphs)
            parts.append(f"<figure>{svg(block.picture)}{caption}</figure>")
            continue
        kind = ' class="note"' if block.rows else ""
        parts += [f"<p{kind}>{_text(text)}</p>" for text in block.paragraphs]
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def markdown(title: str, blocks: Sequence[Block], folder: Path) -> str:
    """Return the same as Markdown; write its figures as PNG and SVG files into ``folder``."""
    parts = [f"# {plain_markdown(title)}"]
    for block in blocks:
        if block.title:
            parts.append(f"## {plain_markdown(block.title)}")
        if block.rows:
            parts.append(markdown_table(block.rows))
        if block.picture:
            save(block.picture, folder / block.file)
            parts.append(f"![{block.title}]({folder.name}/{block.file})")
        parts += map(plain_markdown, block.paragraphs)
    return "\n\n".join(parts) + "\n"


def to_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    numeric = [all(_is_number(row[i]) for row in body) for i in range(len(head))]

    def line(row: Sequence[str], tag: str) -> str:
        cells = (f"<{tag}{' class=n' if numeric[i] else ''}>{_text(cell)}</{tag}>" for i, cell in enumerate(row))
        return f"<tr>{''.join(cells)}</tr>"

    top = f"<thead>{line(head, 'th')}</thead>" if any(head) else ""
    return f'<div class="wide"><table>{top}<tbody>{"".join(line(r, "td") for r in body)}</tbody></table></div>'


def _is_number(text: str) -> bool:
    try:
        float(text.partition(" ± ")[0])
    except ValueError:
        return text in ("", "-")
    return True
