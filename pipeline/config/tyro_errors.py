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

from anchorfl.tasks.errors import InputError, nearest

T = TypeVar("T")
COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""Escape sequences of a terminal."""
FRAME = re.compile(r"[─│╭╮╰╯┌┐└┘]+|-{4,}")
"""Frame of the panel, and the rules within it."""
FOOTER = re.compile(r" ?For full helptext.*$")
"""Last line of the panel."""
REPEATED = re.compile(r"^Value error Error parsing \S+: (?=--|\w+\.\w+[ :]|method:)")
"""Words before an error of our own, which names its option itself."""

BAD_VALUE = re.compile(
    r"Value error Error parsing --(\S+): .*?(?:: |from \[)(['\"].*?['\"])(?:\]\. Got errors: .*)?"
    r" Argument helptext: --\1 (\S+)"
)
"""A value of the wrong type: option, value, type."""
BAD_CHOICE = re.compile(
    r"Invalid choice invalid choice (['\"].*['\"]) for argument '--(\S+)'\. Expected one of \((.*?),?\)\.$"
)
"""A value that is none of those allowed: value, option, those allowed."""
NO_VALUE = re.compile(r"Missing argument Missing value for argument '(--\S+)'")
"""An option at the end of the line."""
KINDS = {"INT": "a whole number", "FLOAT": "a number", "{None}": "None"}
"""tyro's name of a type -> ours."""


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
    """Return a panel as one line in our words; what is not known, in its own, without its frame and its footer."""
    words = FRAME.sub(" ", COLORS.sub("", panel)).split()
    line = REPEATED.sub("", FOOTER.sub("", " ".join(words)))
    if bad := BAD_VALUE.match(line):
        name, value, kind = bad.groups()
        return f"{name} = {value}: must be {' or '.join(KINDS.get(word, word) for word in kind.split('|'))}"
    if bad := BAD_CHOICE.match(line):
        value, name = bad[1], bad[2]
        choices = re.findall(r"'(.*?)'", bad[3])
        return f"{name} = {value}{nearest(value[1:-1], choices)}: one of {', '.join(choices)}"
    if bad := NO_VALUE.match(line):
        return f"{bad[1]}: give a value behind it"
    return line
