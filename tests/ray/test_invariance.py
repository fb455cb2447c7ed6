"""Weights, scores, records and MLflow's rows do not depend on how many actors there are, on faults that a retry mends,
or on interruptions.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import sys

import pytest
from ray import cloudpickle

import tests.faulty
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.run.lifecycle import Result, run
from benchmarks.chaos import rows_of
from tests.faulty import Faulty
from tests.runs import interrupted_before, quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_running")]
for module in (tests.faulty, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)  # actors cannot import a test module


def stored(path) -> list[tuple[str, int, float]]:
    """MLflow's rows of a database, without what is the machine's; fails where there is not exactly one run."""
    with sqlite3.connect(path) as store:
        assert store.execute("select count(*) from runs where name not like '%-model'").fetchone() == (1,)
        rows = store.execute("select key, step, value from metrics order by key, step").fetchall()
    return [row for row in rows if not row[0].startswith(("time/", "system/", "failures/", "time"))]


@pytest.fixture
def whole(experiment, tmp_path):
    """Return the experiment, and its result in one process; faults leave their marks in a folder."""
    e = experiment("fedavg", federation={"rounds": 3, "epochs": 1})
    (tmp_path / "failures").mkdir()
    e = dataclasses.replace(
        e,
        task=dataclasses.replace(e.task, clients=8),
        federation=dataclasses.replace(e.federation, clients_per_round=6),
        method=Faulty(clients=(), kind="raise", times=0, folder=str(tmp_path / "failures")),
        tracking=dataclasses.replace(e.tracking, uri=f"sqlite:///{tmp_path}/serial.db"),
    )
    return e, run(e, tmp_path / "serial", quiet)


def interrupted(e: Experiment, folder) -> Result:
    """Stop a run before round 2 is computed, and go on with it."""
    with interrupted_before(2):
        run(e, folder, quiet)
    return run(e, folder, quiet)


@pytest.mark.parametrize(
    ("actors", "fault", "stop"),
    [
        (1, "nan", False),
        (2, "exit", True),
        pytest.param(4, "", True, marks=pytest.mark.slow),
        pytest.param(8, "", False, marks=pytest.mark.slow),
    ],
)
def test_one_result(whole, tmp_path, actors, fault, stop):
    e, expected = whole
    name = f"ray{actors}"
    e = dataclasses.replace(
        e,
        cluster=dataclasses.replace(e.cluster, executor="ray", clients_per_actor=8 // actors),
        method=dataclasses.replace(e.method, clients=(1, 2, 6), kind=fault, times=1) if fault else e.method,
        tracking=dataclasses.replace(e.tracking, uri=f"sqlite:///{tmp_path}/{name}.db"),
    )
    got = interrupted(e, tmp_path / name) if stop else run(e, tmp_path / name, quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    assert rows_of(tmp_path / name) == rows_of(tmp_path / "serial")
    assert stored(tmp_path / f"{name}.db") == stored(tmp_path / "serial.db")
    assert len(list((tmp_path / "failures").iterdir())) >= 2 * bool(fault)
