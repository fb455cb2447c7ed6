"""Complaints of tyro as one line. Everything that depends on how tyro 1.0 (1.0.17 tried) draws them stands here.

tyro prints a panel to stderr, wrapped to the width of the terminal and framed by box-drawing characters, and exits.
``tests/pipeline/config/test_tyro_errors.py`` has every kind of message word for word, so that an upgrade which draws
them otherwise fails there.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from typing import TypeVar

from anchorfl.tasks.errors import InputError

T = TypeVar("T")
COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""Escape sequences of a terminal."""
FRAME = re.compile(r"[─│╭╮╰╯┌┐└┘]+|-{4,}")
"""Frame of the panel, and the rules within it."""
FOOTER = re.compile(r" ?For full helptext.*$")
"""Last line of the panel."""
REPEATED = re.compile(r"^Value error Error parsing \S+: (?=\w+\.\w+[ :]|method:)")
"""Words before an error of our own, which names its option itself."""


def call_tyro(parse: Callable[[], T]) -> T:
    """Return the result of a tyro parser. InputError in one line where it complains; help goes to stdout and exits."""
    panel = io.StringIO()
    try:
        with contextlib.redirect_stderr(panel):
            return parse()
    except ValueError as error:
        raise InputError(str(error)) from error
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(one_line_of(panel.getvalue())) from stop


def one_line_of(panel: str) -> str:
    """Return the words of a panel in one line, without its frame and its footer."""
    words = FRAME.sub(" ", COLORS.sub("", panel)).split()
    return REPEATED.sub("", FOOTER.sub("", " ".join(words)))
