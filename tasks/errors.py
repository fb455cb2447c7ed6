"""Errors by the user, as one line of text that a terminal shows as it stands."""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable

MAX_MESSAGE_CHARS = 1500
"""Characters; from a longer text the middle is left out."""


def escaped(text: str) -> str:
    """Return the text with line ends, and what a terminal would obey or could not encode, as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped_lines(text: str) -> str:
    """Return a text of several lines, each as ``escaped`` does."""
    return "\n".join(map(escaped, text.split("\n")))


_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def has_controls(text: str) -> bool:
    """Return whether a name holds control characters, line ends, or marks that turn the direction of writing.

    Names travel: into tables, pages and records, which others show as they are.
    """
    return _CONTROLS.search(text) is not None


def plain_line(text: str) -> str:
    """Return the text as ``escaped`` does; of a long one the middle is left out."""
    text = escaped(text)
    half = MAX_MESSAGE_CHARS // 2
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:half]} ... {text[-half:]}"


class InputError(ValueError):
    """Bad input by the user: one line that says what is wrong, where, and how to mend it. Exit code 2."""

    def __str__(self) -> str:
        return plain_line(super().__str__())


class PreparedDataError(InputError):
    """Prepared data are missing or damaged. It ends a run: no client is at fault, and no retry would help."""


def first_line(error: BaseException, if_empty: str = "") -> str:
    """Return an exception as one line: its type and the first line of its message.

    if_empty: stands for an empty message; "": the type alone.
    """
    line = (str(error).strip().splitlines() or [if_empty])[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


FULL = errno.ENOSPC, errno.EDQUOT
"""Errors of a disk that has no room, or no room for this user."""


def place_line(error: OSError) -> str:
    """Return one line about a file or folder that cannot be used."""
    where = error.filename.decode(errors="replace") if isinstance(error.filename, bytes) else str(error.filename)
    return f"{os.path.abspath(where)}: {error.strerror}; name a place that is there, and that you may read and write"


MAX_WORD_CHARS = 200
"""Characters of a word that may be another one misspelt."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest known word (``optimizer.lr`` for ``lr``), or nothing."""
    known = list(known)
    if len(word) > MAX_WORD_CHARS:  # no slip of the keyboard, and the search takes its square in time
        return ""
    if ends := [name for name in known if name.endswith(f".{word}")]:
        return f" (did you mean {ends[0]!r}?)"
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
