"""tuning/ours.csv is what the kept records of benchmarks/results give."""

from __future__ import annotations

import shlex

from anchorfl.pipeline.config.overrides import override
from anchorfl.pipeline.config.presets import preset_names, read_preset
from anchorfl.tuning.tables.ours import OURS, csv_text, read_ours
from benchmarks.reproducibility import ARCHIVES, Records, ours


def test_the_file_is_what_the_records_give(tmp_path):
    """As ``python -m benchmarks.reproducibility --check`` finds, which mends it without ``--check``."""
    assert OURS.read_text(encoding="utf-8") == ours(Records(tmp_path))


def test_a_preset_takes_the_options_that_its_runs_had():
    """The option of one method stood beside others, which have it not."""
    for preset, options in {(figure.preset, figure.options) for figure in read_ours()}:
        override(read_preset(preset), shlex.split(options))


def test_the_file_reads_back():
    kept = read_ours()
    assert csv_text(kept) == OURS.read_text(encoding="utf-8")
    assert {figure.preset for figure in kept} < set(preset_names())
    assert len({(figure.preset, figure.metric) for figure in kept}) == len(kept)
    assert {name for figure in kept for name in figure.records.split()} <= {path.name for path in ARCHIVES.iterdir()}
