"""The next round begins while this one is scored and saved: what is seen meanwhile is of this one; same bits."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from ray import cloudpickle

import tests.faulty
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from tests.faulty import Faulty
from tests.runs import nobody

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]
for module in (tests.faulty, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)  # actors cannot import a test module
ALL = [0, 1, 2, 3]


@pytest.fixture
def run_specs(experiment):
    """Return the specs of a run in this process, and on two actors."""
    run_spec = make_run_spec(experiment("scaffold"), lambda line: None)
    cluster = dataclasses.replace(run_spec.experiment.cluster, executor="ray", clients_per_actor=2)
    return run_spec, dataclasses.replace(run_spec, experiment=dataclasses.replace(run_spec.experiment, cluster=cluster))


@pytest.fixture
def executor(run_specs):
    out = RayExecutor(run_specs[1])
    yield out
    out.close()


@pytest.fixture
def reference(run_specs):
    """After a round, and after two."""
    out, states = SerialExecutor(run_specs[0]), []
    for round_ in (1, 2):
        out.round(round_, ALL, nobody)
        memories = [messages.checksum(out.memory(c)) for c in ALL]
        states.append((messages.checksum(out.snapshot()), out.scores(["test"])["test"].values, memories))
    return states


def seen(executor):
    memories = [messages.checksum(executor.memory(c)) for c in ALL]
    return messages.checksum(executor.snapshot()), executor.scores(["test"])["test"].values, memories


def test_scores_state_and_memories_are_those_of_the_round_before(executor, reference):
    executor.round(1, ALL, nobody)
    executor.start_next_round(2, ALL)
    assert sum(len(call.clients) for call in executor._next.running.values()) >= 2
    assert seen(executor) == reference[0]
    executor.round(2, ALL, nobody)
    assert seen(executor) == reference[1]


def test_a_round_that_is_not_asked_for_after_all_leaves_no_trace(executor, reference):
    executor.round(1, ALL, nobody)
    executor.start_next_round(3, [0, 2])
    executor.round(2, ALL, nobody)
    assert seen(executor) == reference[1]
    executor.start_next_round(3, ALL)
    executor.recover()
    assert executor._next is None
    for round_ in (1, 2):
        executor.round(round_, ALL, nobody)
    assert seen(executor) == reference[1]


@pytest.mark.parametrize("kind", ["exit", *(pytest.param(k, marks=pytest.mark.slow) for k in ("raise", "nan"))])
def test_a_fault_in_a_round_that_began_ahead_is_mended(experiment, tmp_path, kind):
    folder = tmp_path / "failures"
    folder.mkdir()
    plain = run(experiment("fedavg"), tmp_path / "plain", print)
    e = experiment("fedavg", cluster={"executor": "ray", "clients_per_actor": 2})
    faulty = Faulty(clients=(2,), kind=kind, times=1, folder=str(folder), round=2)
    got = run(dataclasses.replace(e, method=faulty), tmp_path / "faulty", print)
    assert list(folder.iterdir())
    assert (got.checksum, got.scores) == (plain.checksum, plain.scores)
