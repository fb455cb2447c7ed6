"""The one door to the terminal: lines that stay, a live line that is rewritten, and tables that fit.

Nothing that is printed can move the cursor, whatever file it came from: ``say`` shows such characters as escapes.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import zip_longest
from textwrap import wrap
from typing import TextIO

from anchorfl.tasks.errors import escaped, escaped_lines

ERASE = "\r\x1b[2K"
"""What empties the line of the cursor."""
GAP = "  "
"""What stands between two parts of a line."""

Log = Callable[[str], None]
"""Takes a line that is to be read now: ``say``, or what a caller gives in its place."""

_live: TextIO | None = None
"""Where a live line stands, so that the next line takes its place."""


def say(text: object = "", *, file: TextIO | None = None) -> None:
    """Print one or more lines, in place of a live line. file: default: standard output."""
    global _live
    if _live is not None:
        print(ERASE, end="", file=_live, flush=True)
        _live = None
    print(escaped_lines(str(text)), file=file or sys.stdout, flush=True)


@contextmanager
def logged_apart() -> Iterator[None]:
    """Send what is printed in the block to standard error, so that standard output holds one JSON value alone."""
    with redirect_stdout(sys.stderr):
        yield


def say_error(text: object) -> None:
    """Print a line to standard error."""
    say(text, file=sys.stderr)


def say_live(text: str, file: TextIO | None = None) -> None:
    """Rewrite the live line, cut at the terminal's width; print nothing where that is no terminal."""
    global _live
    _live = file or sys.stdout
    columns = width(_live)
    if columns is None:
        _live = None
    else:
        print(ERASE + escaped(text)[:columns], end="", file=_live, flush=True)


def erase_line(file: TextIO) -> None:
    """Empty the line of the cursor, where that is a terminal's."""
    if width(file) is not None:
        print(ERASE, end="", file=file, flush=True)


def width(file: TextIO | None = None) -> int | None:
    """Return the columns to write in; None where ``file`` (default: standard output) is no terminal.

    The last column stays free: some terminals go to the next line as soon as it is written.
    """
    if not (file or sys.stdout).isatty() or os.environ.get("TERM") == "dumb":
        return None
    return max(20, shutil.get_terminal_size().columns - 1)


def fitted(parts: Sequence[str], columns: int | None) -> str:
    """Return the parts as a line, the most important first; those that do not fit are left out, but for the first.

    columns: as of ``width``.
    """
    line = parts[0]
    for part in parts[1:]:
        if columns is None or len(line) + len(GAP) + len(part) <= columns:
            line += GAP + part
    return line


def paragraph(text: str, columns: int | None, indent: str = "") -> str:
    """Return the text in lines of at most ``columns``, from the second on with ``indent``; words stay whole."""
    if columns is None:
        return text
    return "\n".join(
        wrap(
            text,
            columns,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
    )


def table(
    rows: Sequence[Sequence[str]], columns: int | None = None, *, right: Collection[str] = (), ruled: bool = False
) -> str:
    """Return rows as aligned text, the head first.

    Where they are wider than ``columns``, what does not fit follows in further blocks, each with the first column, and
    a long cell goes over several lines. right: heads of the columns that are set to the right; ruled: with a line
    below the head.
    """
    limit = [max(8, (columns - len(GAP)) // 2)] * len(rows[0]) if columns else [None] * len(rows[0])
    lines = [[_cell(cell, most) for cell, most in zip(row, limit, strict=True)] for row in rows]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*lines, strict=True)]
    return "\n\n".join(_block(lines, block, widths, right, ruled) for block in _blocks(widths, columns))


def _cell(text: str, most: int | None) -> list[str]:
    text = escaped(text)
    return [text] if most is None or len(text) <= most else wrap(text, most)


def _blocks(widths: Sequence[int], columns: int | None) -> Iterator[list[int]]:
    """Yield the columns of each block; the first is in all."""
    block = [0]
    for column in range(1, len(widths)):
        taken = sum(widths[c] + len(GAP) for c in block)
        if columns is not None and len(block) > 1 and taken + widths[column] > columns:
            yield block
            block = [0]
        block.append(column)
    yield block


def _block(
    rows: Sequence[Sequence[Sequence[str]]],
    block: Sequence[int],
    widths: Sequence[int],
    right: Collection[str],
    ruled: bool,
) -> str:
    flush_right = {column for column in block if rows[0][column][0] in right}
    out = list[list[str]]()
    for row in rows:
        lines = zip_longest(*(row[column] for column in block), fillvalue="")
        out.append(
            [
                GAP.join(
                    text.rjust(widths[c]) if c in flush_right else text.ljust(widths[c])
                    for c, text in zip(block, line, strict=True)
                ).rstrip()
                for line in lines
            ]
        )
    head = out[0]
    rule = ["-" * max(len(line) for lines in out for line in lines)] if ruled else []
    return "\n".join([*head, *rule, *(line for lines in out[1:] for line in lines)])
