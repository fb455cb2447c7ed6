"""The made-up paper of the tests of tables."""

from __future__ import annotations

import pytest

from anchorfl.tuning.tables import papers
from tests.tuning.made_tables import toy


@pytest.fixture
def paper(request, tmp_path, monkeypatch):
    """Add the toy paper, with the ``SEEDS`` of the test's module, to the known ones; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    made = toy(tmp_path, seeds=getattr(request.module, "SEEDS", (1, 2)))
    monkeypatch.setitem(papers.PAPERS, "toy", made)
    return made
