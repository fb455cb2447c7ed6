"""Weights, scores, records and MLflow's rows do not depend on how many actors there are, on faults that a retry mends,
or on interruptions.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import sys

import pytest
import ray
from ray import cloudpickle
from ray.exceptions import ActorDiedError

import tests.faulty
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.run.lifecycle import Result, run
from anchorfl.testing import stopped_before
from benchmarks.chaos import rows_of
from tests.faulty import Faulty
from tests.runs import quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]
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
    with stopped_before(2):
        run(e, folder, quiet)
    return run(e, folder, quiet)


@pytest.mark.parametrize(
    ("actors", "fault", "stop", "tree"),
    [
        (1, "nan", False, False),
        (2, "exit", True, True),
        pytest.param(4, "", True, False, marks=pytest.mark.slow),
        pytest.param(8, "", False, False, marks=pytest.mark.slow),
    ],
)
def test_one_result(whole, tmp_path, actors, fault, stop, tree):
    e, expected = whole
    name = f"ray{actors}"
    e = dataclasses.replace(
        e,
        cluster=dataclasses.replace(e.cluster, executor="ray", clients_per_actor=8 // actors, sum_on_nodes=tree),
        method=dataclasses.replace(e.method, clients=(1, 2, 6), kind=fault, times=1) if fault else e.method,
        tracking=dataclasses.replace(e.tracking, uri=f"sqlite:///{tmp_path}/{name}.db"),
    )
    got = interrupted(e, tmp_path / name) if stop else run(e, tmp_path / name, quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    assert rows_of(tmp_path / name) == rows_of(tmp_path / "serial")
    assert stored(tmp_path / f"{name}.db") == stored(tmp_path / "serial.db")
    assert len(list((tmp_path / "failures").iterdir())) >= 2 * bool(fault)


def wait_until_dead(actor) -> None:
    """Return when calls of a killed actor fail."""
    try:
        while True:
            ray.get(actor.ping.remote())
    except ActorDiedError:
        return


def test_the_sums_of_a_node_may_be_lost(whole, tmp_path, monkeypatch, capsys):
    """The run goes on from its last checkpoint."""
    e, expected = whole
    cluster = dataclasses.replace(e.cluster, executor="ray", clients_per_actor=4, sum_on_nodes=True)
    complete, killed = RayExecutor._complete, list[int]()

    def with_a_loss(self, pending, collected):
        if pending.number == 2 and not killed:
            killed.append(len(collected.nodes))
            for actor in collected.nodes.values():
                ray.kill(actor)
                wait_until_dead(actor)
        complete(self, pending, collected)

    monkeypatch.setattr(RayExecutor, "_complete", with_a_loss)
    tracking = dataclasses.replace(e.tracking, uri="none")
    capsys.readouterr()
    got = run(dataclasses.replace(e, cluster=cluster, tracking=tracking), tmp_path / "lost", quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    assert killed == [1]
    assert capsys.readouterr().out.count("starting it anew and going on from the last checkpoint") == 1
