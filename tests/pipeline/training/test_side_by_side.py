"""Works in turn: their order, who begins when, what fails; clients in lanes give the bits that they have alone."""

from __future__ import annotations

import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.side_by_side import Lanes, returned
from tests.runs import nobody, quiet

SHORT = torch.OutOfMemoryError("short")


@pytest.fixture
def log():
    return []


@pytest.fixture
def work(log):
    """Return a maker of works that log (name, lane) at each of their steps and return their name."""

    def make(name, steps, error=None):
        def run(lane):
            for _ in range(steps):
                log.append((name, lane))
                yield
            if error and error(log):
                raise error(log)
            return name

        return run

    return make


def test_they_take_turns_and_the_next_one_begins_where_a_lane_is_free(work, log):
    works = [work("a", 3), work("b", 1), work("c", 1)]
    assert list(Lanes(2).run(works)) == ["a", "b", "c"]
    assert log == [("a", 0), ("b", 1), ("a", 0), ("a", 0), ("c", 1)]


def test_one_lane_does_one_after_the_other_and_asks_for_the_next_when_it_is_wanted(work, log):
    asked = []

    def works():
        for name in "ab":
            asked.append(name)
            yield work(name, 2)

    results = Lanes(1).run(works())
    assert (next(results), asked, log) == ("a", ["a"], [("a", 0)] * 2)
    assert list(results) == ["b"]


def test_no_work_is_no_result():
    assert list(Lanes(3).run([])) == []


def test_an_error_is_the_result_of_its_work_alone(work):
    error = ValueError("no")
    a, b, c = Lanes(2).run([work("a", 1), work("b", 1, lambda log: error), work("c", 2)])
    assert (a, b, c) == ("a", error, "c")


def test_what_is_out_of_memory_beside_others_begins_anew_without_them(work, log):
    def short(log):
        return SHORT if log.count(("b", 1)) == 1 and ("b", 0) not in log else None

    lanes = Lanes(2)
    assert list(lanes.run([work("a", 4), work("b", 1, short), work("c", 1)])) == ["a", "b", "c"]
    assert lanes.count == 1
    assert log == [("a", 0), ("b", 1), ("a", 0), ("a", 0), ("a", 0), ("b", 0), ("c", 0)]


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_out_of_memory_alone_has_failed(work, count):
    assert list(Lanes(count).run([work("a", 1, lambda log: SHORT)])) == [SHORT]


def test_what_stays_short_of_memory_has_failed_after_a_second_try(work, log):
    assert list(Lanes(2).run([work("a", 2), work("b", 1, lambda log: SHORT)])) == ["a", SHORT]
    assert [lane for name, lane in log if name == "b"] == [1, 0]


def test_returned_ends_a_work(work):
    assert returned(work("a", 3)(0)) == "a"


@pytest.mark.parametrize("method", METHODS)
def test_clients_in_lanes_give_the_bits_that_they_have_alone(experiment, method):
    """Dropout, memories and messages of their own; more clients than lanes."""
    e = experiment(method, federation={"epochs": 2})
    states = []
    for lanes in (1, 3):
        executor = SerialExecutor(make_run_spec(e, quiet))
        executor.runner.lanes = Lanes(lanes)
        for round_ in (1, 2):
            assert not executor.round(round_, range(e.task.clients), nobody).failed
        memories = {str(client): executor.memory(client) for client in range(e.task.clients)}
        states.append((messages.checksum(executor.snapshot()), messages.checksum(memories)))
        assert len(executor.runner.models) == lanes
    assert states[0] == states[1]
