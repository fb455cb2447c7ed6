"""The suite's presets have the values that the kept searches chose, and a kept search is a search that can be read."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from anchorfl.pipeline.config.presets import read_preset, shipped
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


def test_given_class_sets_are_those_of_the_paper_s_table_with_the_values_found_on_drawn_ones():
    """The search's seed is none of those whose sets are given, so the two settings are one there."""
    rows = [preset.row for preset in shipped().presets.values() if preset.federation.name == "suite-r8-given"]
    assert len(rows) == 13
    for row in rows:
        given, drawn = read_preset(f"suite-r8-given/{row}"), read_preset(f"suite-r8-masks-3/{row}")
        assert given.task.client_classes == read_preset("r8-8/fedavg").task.client_classes
        assert str(suite_search.SEED) not in given.task.client_classes
        assert replace(given, task=drawn.task) == drawn
