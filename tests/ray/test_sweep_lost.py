"""A trial whose process is lost: it goes on, and counts as if nothing had happened."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import cloudpickle
import pytest

from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.search.options import SweepOptions, TrialRounds
from anchorfl.tuning.search.search_space import Range
from anchorfl.tuning.search.searchers import make_scheduler, make_searcher
from anchorfl.tuning.search.study import Study
from anchorfl.tuning.search.tune_adapter import Budget, search

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test module


def lost_once(config, context):
    """Train three rounds of a second each by the clock of the process. The first try of trial 0 dies in round 2; work:
    a file that says so.
    """
    from ray import tune

    for round_ in range(1, 4):
        if round_ == 2 and config["number"] == 0 and not Path(context).exists():
            Path(context).touch()
            os._exit(1)
        if round_ > config["after"]:
            score = 0.5 + round_ / 10
            record = {"score": score, "scores": {"0": score}, "seconds": float(round_), "training_seconds": 0.5}
            tune.report({"round": round_, "score": score, "record": json.dumps(record)})


def test_a_trial_that_goes_on_elsewhere_is_whole(ray_running, tmp_path):
    """It is no failed one, and its seconds are those of both processes: 1 before the loss, 2 and 3 after it."""
    options, space = SweepOptions(searcher="random", scheduler="none", trials=2, seeds=1), {"x": Range(0, 1)}
    study = Study(
        space, {"x": 0.5}, True, lambda point: True, 2, 3, make_searcher(options, space, 1, {"x": 0.5}),
        make_scheduler(options, TrialRounds(3, 1)), Ledger(tmp_path / "ledger.jsonl"), [],
    )  # fmt: skip
    search(study, lost_once, str(tmp_path / "mark"), [{"CPU": 1}], 1, Budget(0, 0, lambda: (0, 0)))
    assert (tmp_path / "mark").exists()
    assert [(e.status, e.rounds, e.error) for e in study.trials] == [("finished", 3, "")] * 2
    assert [study.trials[0].records[r]["seconds"] for r in (1, 2, 3)] == [1.0, 3.0, 4.0]
    assert [study.trials[1].records[r]["seconds"] for r in (1, 2, 3)] == [1.0, 2.0, 3.0]
