"""The files that a sweep is resumed and reported from, and ``cluster.yaml``."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from anchorfl.pipeline.config.presets import read_preset
from anchorfl.tuning.clusters import check as cloud
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.search.options import SweepOptions
from anchorfl.tuning.search.search_space import Choice, Range
from anchorfl.tuning.sweep.plan import SweepPlan, load_plan
from anchorfl.tuning.sweep.report import write_report
from anchorfl.tuning.sweep.sweep import LEDGER, read_sweep
from tests.fuzz.parsers import Parser
from tests.fuzz.promise import QUICK

SHIPPED = Path(__file__).resolve().parents[2] / "cluster.yaml"
RESULT = {"rounds": 2, "scores": {"test": {"f1_macro": 0.5}, "validation": {"f1_macro": 0.5}}, "seconds": 2.0,
          "checksum": "0", "round": 2, "failed": 0, "retried": 0, "digest": "0"}  # fmt: skip


def sweep(folder):
    space = {"q1": Range(90, 99.9, "tail", reason="why"), "q2": Choice((10, 50.0))}
    options = SweepOptions(searcher="random", trials=3, seeds=1, finals=1, rounds=2, scheduler="none")
    plan = SweepPlan("digits/fedalign", read_preset("digits/fedalign"), space, options, "[method]\n")
    plan.save(folder)
    ledger = Ledger(folder / LEDGER)
    ledger.write({"event": "start", "time": time.time(), "versions": {"ray": "0"}})
    for trial in range(2):
        ledger.write({"event": "suggest", "trial": trial, "point": {"q1": 95.0, "q2": 10}, "time": time.time()})
        for round_ in (1, 2):
            seeds = {str(plan.seeds[0]): 0.4 + trial / 10}
            record = {"score": 0.4, "scores": seeds, "seconds": 1.0, "training_seconds": 0.5}
            ledger.write({"event": "result", "trial": trial, "round": round_, "time": time.time(), "record": record})
        ledger.write({"event": "end", "trial": trial, "status": "finished", "error": "", "time": time.time()})
    final = folder / "final" / f"trial-0001-seed-{plan.fresh_seeds[0]}"
    final.mkdir(parents=True)
    (final / "result.json").write_text(json.dumps(RESULT))


def report(folder, made):
    plan = load_plan(folder, {})
    write_report(read_sweep(plan, folder), made, plan.text_of)


def check(folder, made):
    parser = argparse.ArgumentParser()
    cloud.arguments(parser)
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = cloud.check(parser.parse_args([str(folder / "cluster.yaml")]))
    lines = err.getvalue().splitlines()
    assert code in (0, 2)
    assert all(line.startswith(f"{folder}/cluster.yaml: ") for line in lines)
    assert code == 0 or lines


PARSERS = [
    Parser("sweep", sweep, report),
    Parser("cluster.yaml", lambda folder: (folder / "cluster.yaml").write_bytes(SHIPPED.read_bytes()), check),
]


@QUICK
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(bench, data):
    bench.check_changed(data.draw(bench.case()))
