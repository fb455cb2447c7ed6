"""tuning/ours.csv is what the kept records of benchmarks/results give."""

from __future__ import annotations

import re
from pathlib import Path

from anchorfl.pipeline.config.presets import preset_names
from anchorfl.tuning.tables.ours import OURS, csv_text, read_ours
from benchmarks.reproducibility import ARCHIVES, Records, ours


def test_the_file_is_what_the_records_give(tmp_path):
    """As ``python -m benchmarks.reproducibility --check`` finds, which mends it without ``--check``."""
    assert OURS.read_text(encoding="utf-8") == ours(Records(tmp_path))


def test_the_file_reads_back():
    kept = read_ours()
    assert csv_text(kept) == OURS.read_text(encoding="utf-8")
    assert {figure.preset for figure in kept} < set(preset_names())
    assert len({(figure.preset, figure.metric) for figure in kept}) == len(kept)
    assert {name for figure in kept for name in figure.records.split()} <= {path.name for path in ARCHIVES.iterdir()}


LINE = re.compile(
    r"\| (?:[^|]+ \| `(?P<preset>\S+?)(?: --task.validation 0)?` |\| )\| (?P<metric>[\w@ ]+) \| [-\d.]+"
    r" \| (?P<mean>[\d.]+) ± (?P<sd>[\d.]+) \|.*"
)
SHOWN = {"macro_f1": "macro F1", "macro_accuracy": "accuracy", "p@1": "P@1", "p@3": "P@3", "p@5": "P@5"}


def test_the_page_of_results_has_the_same_figures():
    """Rows of REPRODUCIBILITY.md at the preset's settings, or on all training rows: mean and sd of every metric."""
    said, preset = {}, ""
    for line in (Path(__file__).parents[3] / "REPRODUCIBILITY.md").read_text(encoding="utf-8").splitlines():
        if found := LINE.fullmatch(line):
            preset = found["preset"] or preset
            said.setdefault((preset, found["metric"]), (found["mean"], found["sd"]))
    mine = [figure for figure in read_ours() if figure.options in ("", "--task.validation 0")]
    of = {(figure.preset, SHOWN[figure.metric]): (figure.mean, figure.sd) for figure in mine}
    both = said.keys() & of.keys()
    assert len(both) == 90
    assert {key: said[key] for key in both} == {key: of[key] for key in both}
