"""``requirements.lock``: every patch release of the oldest Python can install what it names."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"
OLDEST = "3.11.0"
"""Debian 12 has 3.11.2: a package that wants 3.11.5 ends ``make setup`` there."""


def test_the_oldest_python_installs_every_locked_version():
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\n]+)", LOCK.read_text(), re.MULTILINE | re.IGNORECASE))
    assert len(locked) > 100
    checked = 0
    for name, version in locked.items():
        try:
            about = metadata(name)
        except PackageNotFoundError:  # of another platform
            continue
        if about["Version"].partition("+")[0] != version:  # another environment than the lock's
            continue
        checked += 1
        assert SpecifierSet(about["Requires-Python"] or "").contains(OLDEST), f"{name} {about['Requires-Python']}"
    assert checked > 100
