"""Made-up lesions."""

from __future__ import annotations

import pytest


@pytest.fixture
def ham_folder(made_up):
    """Return the folder of made-up HAM10000 files, to be read only."""
    return made_up("ham10000", 150, 0)
