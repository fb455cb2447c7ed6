"""The suite's presets have the values that the kept searches chose, and a kept search is a search that can be read."""

from __future__ import annotations

import tarfile
from operator import attrgetter
from pathlib import Path

from anchorfl.pipeline.config.presets import read_preset
from benchmarks import suite_search

ARCHIVE = Path(suite_search.__file__).parent / "results" / "searches-suite.tar.xz"


def test_the_presets_have_the_values_that_the_kept_searches_chose(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    names = {folder.name for folder in tmp_path.iterdir()}
    plans = [plan for plan in suite_search.plans([], []) if suite_search.folder_of(tmp_path, plan).name in names]
    assert len(plans) == len(names) > 0
    for plan in plans:
        point = suite_search.best(tmp_path, plan)
        assert point, plan.preset
        preset = read_preset(plan.preset)
        assert {name: attrgetter(plan.names[name])(preset) for name in point} == dict(point), plan.preset


def test_keeping_a_kept_search_again_gives_the_same_bytes(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for ledger in tmp_path.rglob(suite_search.LEDGER):
        assert suite_search.slim(ledger) == ledger.read_bytes()
        assert suite_search.seconds(ledger) > 0
