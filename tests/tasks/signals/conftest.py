"""Made-up ExtraSensory files, and the names in a table of co-occurrences."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def es_twin(made_up):
    """Return the folder of made-up ExtraSensory files, to be read only."""
    return made_up("extrasensory", 800, 7)


@pytest.fixture
def folder(es_twin, tmp_path):
    """Return a copy of the made-up files that a test may spoil."""
    return shutil.copytree(es_twin, tmp_path / "raw")


@pytest.fixture
def cooccurrence_names(data_folder):
    """Return a reader of the class names of FedAlign's table of a data set; skip where there is none."""

    def read(name):
        path = data_folder / "cooccurrence_fedalign" / f"cooccurrence_{name}.csv"
        if not path.is_file():
            pytest.skip(f"no {path}")
        with path.open() as stream:
            return stream.readline().strip().split(",")[1:]

    return read
