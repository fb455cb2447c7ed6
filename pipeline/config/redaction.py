"""Addresses as they may stand in a file or a message: without passwords and tokens."""

from __future__ import annotations

import re

SECRET = r"[^=&?\s]*(?:password|passwd|token|secret|odbc_connect)[^=&\s]*"
"""Names of parameters of an address whose values are nobody's business."""


def redact(text: str) -> str:
    """Return a text without users and passwords of addresses in it; rather too much is hidden than too little."""
    text = re.sub(r"//(?:[^\s/:@]*:[^\s'\"]*|[^/@\s]*)@", "//***@", text)  # a password may hold / and @
    return re.sub(rf"([?&]{SECRET}=)[^&\s'\"]*", r"\1***", text, flags=re.IGNORECASE)


def redact_uri(uri: str) -> str:
    """Return the address of a store as it may stand in a run folder, for a resumed run: without a password, which then
    comes from the environment (``PGPASSWORD``, ``~/.pgpass``, ``MLFLOW_TRACKING_PASSWORD``). A database keeps its user;
    before the host of a server nothing is left, since a token may stand there in place of a user.
    """
    scheme, colon, rest = uri.partition("://")
    if not colon or scheme.startswith("sqlite"):
        return uri
    if scheme.startswith("http"):
        host, slash, path = rest.partition("/")
        rest = host.rpartition("@")[2] + slash + path
    else:
        # A password may hold / and @, and a ?, which SQLAlchemy takes for its own up to the first @.
        rest, replaced = re.subn(r"^([^/:@?]*):[^?]*@", r"\1@", rest)
        rest = rest if replaced else re.sub(r"^([^/:@]*):[^@]*@", r"\1@", rest)
        user, at, server = rest.partition("@")
        rest = user + at + re.sub(r"^[^/]*@", "", server)
    head, question, query = rest.partition("?")
    kept = [part for part in query.split("&") if not re.match(rf"{SECRET}=", part, re.IGNORECASE)]
    return f"{scheme}://{head}" + (question + "&".join(kept) if any(kept) else "")
