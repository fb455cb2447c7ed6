"""The token by which Ray knows who may speak to it: a file that nobody but its owner can read.

Whoever has the token runs code as its owner. Ray 2.60 makes the file itself where there is none, with the modes of the
user's umask (0644 as a rule), so it is made here before Ray looks, with mode 0600 from its first byte on.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from anchorfl.pipeline.terminal import say_error
from anchorfl.tasks.errors import InputError

MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Ray's own variables: whether a token is wanted, the token itself, the file that holds it."""
OTHERS = 0o077
"""Bits of a mode that let anybody but the owner in."""


def default_path() -> Path:
    """Return the path at which Ray looks for the token unless a variable says otherwise."""
    return Path.home() / ".ray" / "auth_token"


def ensure_token() -> None:
    """Make a token where a Ray that is started now has none; ``RAY_AUTH_MODE`` other than ``token`` wants none.

    Raises InputError as ``restrict_mode``, and where ``RAY_AUTH_TOKEN_PATH`` names no file.
    """
    if os.environ.get(MODE, "token").lower() != "token" or os.environ.get(TOKEN):
        return
    path = Path(os.environ.get(PATH) or default_path())
    if not path.exists():
        if os.environ.get(PATH):
            raise InputError(f"{PATH} = {path}: there is no such file; unset it, or write a token there with mode 600")
        create(path)
    restrict_mode(path)


def create(path: Path) -> None:
    """Write a new token of 256 bits to ``path``; of several processes that do this at once, one makes it for all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(32))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(draft, path)  # unlike a rename, it never replaces a token that is in use
        except FileExistsError:
            return
    finally:
        draft.unlink()


def restrict_mode(path: Path | None = None) -> None:
    """Close a token file that others can read, and say so; do nothing where there is none.

    path: None: the one in use.

    Mended and not refused, since Ray itself leaves it open: everybody who has used Ray has such a file. Raises
    InputError where it cannot be closed, because it belongs to somebody else or lies on a disk without modes.
    """
    path = path or Path(os.environ.get(PATH) or default_path())
    if not path.exists():
        return
    status = path.stat()
    if not status.st_mode & OTHERS:
        return
    hint = f"make a file of your own with mode 600 and name it in {PATH}, or give the token in {TOKEN}"
    shown = f"{path} (mode {stat.S_IMODE(status.st_mode):04o})"
    try:
        path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
    except OSError as error:
        raise InputError(
            f"{shown}: others can read Ray's token, and run code as you, and it cannot be closed"
            f" ({error.strerror}); {hint}"
        ) from error
    if path.stat().st_mode & OTHERS:
        raise InputError(f"{shown}: others can read Ray's token, and run code as you; this disk keeps no modes; {hint}")
    say_error(
        f"anchorfl: {shown} could be read by others and is now closed to them; where others use this machine, delete it"
        " while no Ray runs, and the next start makes a new token"
    )
