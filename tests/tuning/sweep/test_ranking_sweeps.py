"""Sweeps over runs that are scored by their rankings: what a trial reports, and how figures call it."""

from __future__ import annotations

import json

import pytest

from anchorfl.pipeline.storage.run_record import RoundRecord, RunInfo
from anchorfl.pipeline.tracking.jsonl import JsonLines
from anchorfl.tasks.errors import InputError
from anchorfl.tuning.search.trial import TrialContext, _record
from anchorfl.tuning.sweep.plots import against, heat_map
from anchorfl.tuning.sweep.report import write_report
from tests.tuning.sweep.test_report import sweep


@pytest.mark.parametrize(("metric", "shown"), [("p_at_1", "P@1"), ("map", "mAP"), ("f1_macro", "macro F1")])
def test_figures_call_the_metric_by_its_name(tmp_path, metric, shown):
    view = sweep(metric=metric)
    assert against(view, "q1").axes[0].get_ylabel() == f"validation {shown} (%)"
    assert heat_map(view, "q1", "q2").axes[1].get_ylabel() == f"validation {shown} (%), last"
    write_report(view, tmp_path)
    assert f"validation {metric}, last, mean over seeds" in (tmp_path / "report.md").read_text()


def test_a_trial_reports_its_metric_or_says_that_runs_lack_it(tmp_path):
    for seed, score in ((1, 0.4), (2, 0.6)):
        record = JsonLines(tmp_path / f"seed-{seed}")
        record.begin(RunInfo(name=f"seed-{seed}", experiment="toy", params={}, folder=tmp_path / f"seed-{seed}"))
        metrics = {"validation/p_at_1": score, "time/clients": 1.0, "time/evaluate": 0.5}
        record.round(RoundRecord(1, 100.0, metrics))
    context = TrialContext({}, {}, str(tmp_path), 1, "validation/p_at_1", 1)
    got = _record(tmp_path, [1, 2], 1, context, 1)
    assert (got["score"], got["scores"]) == (pytest.approx(0.5), {"1": 0.4, "2": 0.6})
    assert json.loads(json.dumps(got)) == got
    with pytest.raises(InputError, match=r"seeds \[1, 2\] have no validation/map .* give another --metric"):
        _record(tmp_path, [1, 2], 1, TrialContext({}, {}, str(tmp_path), 1, "validation/map", 1), 1)
