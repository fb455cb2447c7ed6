"""What the tests of findings share."""

from __future__ import annotations

from tests.fuzz.promise import keep


def refused(read, *words):
    """The promise, and that the line holds these words."""
    said = keep("findings", read)
    assert said
    for word in words:
        assert word in said


def file(folder, name, data):
    """A file with this content."""
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path
