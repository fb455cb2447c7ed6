"""One line of text that a terminal shows as it stands, whatever a message quotes from a file."""

from __future__ import annotations

LONGEST = 1500
"""Characters; from a longer text the middle is left out."""


def plain_line(text: str) -> str:
    """The text with line ends, and what a terminal would obey or could not encode, as escapes."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"
