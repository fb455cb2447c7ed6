"""Pieces of several tests of the tasks: a running Ray, and the real data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def ray_running():
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    yield
    if started:
        ray.shutdown()


@pytest.fixture
def data_folder(monkeypatch):
    """Return $ANCHORFL_DATA, or the shared folder beside the repository."""
    folder = Path(os.environ.get("ANCHORFL_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (folder / "reuters21578_r8").is_dir():
        pytest.skip(f"no R8 below {folder}; set ANCHORFL_DATA")
    monkeypatch.setenv("ANCHORFL_DATA", str(folder))
    return folder
