"""Checks of the findings: a file with some content, and a reader that refuses it."""

from __future__ import annotations

from tests.fuzz.promise import keep


def refused(read, *words):
    """Check the promise, and that the line holds these words."""
    said = keep("findings", read)
    assert said
    for word in words:
        assert word in said


def file(folder, name, data):
    """Write a file with this content."""
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path
