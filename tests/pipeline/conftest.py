"""What the tests of this room share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["file", "s3"])
def backup(request, tmp_path):
    """A place for copies: one that needs no server, and an object store."""
    return f"file://{tmp_path}/backup" if request.param == "file" else f"{request.getfixturevalue('s3')}/runs"
