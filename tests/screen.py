"""A terminal of a given width: a process in a pseudo-terminal, and the rows that its output leaves on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from tests.processes import ROOT

TOKEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\s\S]")

COLOR = re.compile(r"\x1b\[[0-9;]*m")


def rows_of(text: str, width: int) -> list[str]:
    """Return the rows of the screen, oldest first, as a terminal makes them that goes on in the next row at its edge.

    It obeys line ends, carriage returns and ``ESC[2K``; colors take no room, and anything else fails.
    """
    rows, column = [""], 0
    for token in TOKEN.findall(text):
        if token == "\n":
            rows.append("")
            column = 0
        elif token == "\r":
            column = 0
        elif token == "\x1b[2K":
            rows[-1] = ""
        elif not COLOR.fullmatch(token):
            assert token.isprintable(), f"{token!r} reached the terminal"
            if column == width:
                rows.append("")
                column = 0
            rows[-1] = rows[-1][:column].ljust(column) + token + rows[-1][column + 1 :]
            column += 1
    return rows


def _own_terminal() -> None:
    """Take the terminal that is standard input, and heed its Ctrl-C, which a shell's background ignores."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def in_terminal(
    arguments: Sequence[str], folder: Path, columns: int = 80, keys: str = "", after: str = ""
) -> tuple[int, str]:
    """Run ``anchorfl`` in a terminal of 50 rows; return its exit code and all that it wrote.

    keys: typed as soon as ``after`` was written, such as Ctrl-C.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    own = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    own |= {"PYTHONPATH": str(ROOT / "src"), "ANCHORFL_CACHE": str(folder / "cache"), "TERM": "xterm"}
    code = "from anchorfl.tuning.cli import console; console()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=folder, env=own, stdin=follower, stdout=follower,
        stderr=follower, start_new_session=True, preexec_fn=_own_terminal,
    ) as process:  # fmt: skip
        os.close(follower)
        written = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux says so where the last process with this terminal has ended, others with b""
                part = b""
            if not part:
                break
            written += part
            if keys and after.encode() in written:
                os.write(leader, keys.encode())
                keys = ""
    os.close(leader)
    return process.returncode, written.decode()
