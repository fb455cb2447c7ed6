"""Text of a user or a file as Markdown: names that look like HTML stay names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from anchorfl.tasks.errors import escaped, escaped_lines


def plain_markdown(text: str) -> str:
    """Return a text in which no tag opens, as Markdown would pass it on to the browser, and no link or picture, with
    controls as escapes.
    """
    return re.sub(r"\](?=[\[(:])", r"\\]", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", escaped_lines(text)))


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table, whose first row is its head; a cell stays on its line and in its column."""
    safe = [[plain_markdown(escaped(cell)).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [safe[0], ["---"] * len(safe[0]), *safe[1:]])
