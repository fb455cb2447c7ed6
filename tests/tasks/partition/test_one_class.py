"""One client per class: all of its rows, that class alone, also with many classes."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import plan_digest
from anchorfl.tasks.partition.stratify import TrainingRows
from tests.tasks.federations import QUICK, multi_labels, names, rows_of, shuffled, task_of


def options(clients, validation=0.0):
    return TaskOptions(clients=clients, partition="one_class", validation=validation)


@QUICK
@given(multi_labels(), st.integers(0, 2**40))
def test_a_client_has_exactly_the_rows_of_its_class(y_NC, seed):
    classes = y_NC.shape[1]
    rows = rows_of(y_NC, np.random.default_rng(seed).permutation(len(y_NC)) * 3)
    plan = make_plan(rows, task_of(classes), options(classes), seed)
    assert len(plan.clients) == classes
    for class_, client in enumerate(plan.clients):
        assert client.classes == (class_,)
        assert client.rows.dtype == np.int64
        assert client.rows.tolist() == sorted(rows.row_N[y_NC[:, class_]].tolist())
    again = make_plan(shuffled(rows, 1), task_of(classes), options(classes), seed)
    assert plan_digest(again) == plan_digest(plan)
    others = make_plan(rows, task_of(classes), options(classes), seed + 1).clients  # nothing is drawn
    assert [c.rows.tolist() for c in others] == [c.rows.tolist() for c in plan.clients]


def test_rows_held_out_for_validation_are_with_nobody():
    y_NC = np.eye(4, dtype=bool)[np.arange(80) % 4]
    plan = make_plan(rows_of(y_NC), task_of(4), options(4, 0.25), 0)
    assert len(plan.validation) == 20
    owned = np.concatenate([c.rows for c in plan.clients])
    assert np.array_equal(np.sort(np.concatenate([owned, plan.validation])), np.arange(80))


def test_by_hand_a_row_sits_with_every_one_of_its_classes_or_with_nobody():
    plan = make_plan(rows_of([[1, 1], [0, 1], [0, 0]]), task_of(2), options(2), 0)
    assert [c.rows.tolist() for c in plan.clients] == [[0], [0, 1]]


@pytest.mark.parametrize("clients", [1, 3, 10])
def test_another_number_of_clients_is_refused(clients):
    with pytest.raises(
        InputError, match=f"clients = {clients}, but 2 of the 2 classes of made .*set clients = 2, or 0"
    ):
        make_plan(rows_of(np.eye(2)), task_of(2), options(clients), 0)


@pytest.mark.parametrize("clients", [0, 2])
def test_a_class_without_a_row_has_no_client(clients):
    plan = make_plan(rows_of([[1, 0, 0], [0, 0, 1]]), task_of(3), options(clients), 0)
    assert [(c.classes, c.rows.tolist()) for c in plan.clients] == [((0,), [0]), ((2,), [1])]
    with pytest.raises(InputError, match="clients = 3, but 2 of the 3 classes of made have training rows"):
        make_plan(rows_of([[1, 0, 0], [0, 0, 1]]), task_of(3), options(3), 0)


def test_without_any_class_there_is_no_client():
    with pytest.raises(InputError, match="no training row of made has a class"):
        make_plan(rows_of(np.zeros((3, 2))), task_of(2), options(0), 0)


def test_ten_thousand_classes_take_seconds():
    size, classes = 200_000, 10_000
    class_P = (np.arange(2 * size) * 7919 % classes).astype(np.int32)
    rows = TrainingRows(Labels(class_P, np.arange(size + 1) * 2, classes), np.arange(size))
    start = time.perf_counter()
    plan = make_plan(rows, task_of(classes), options(classes), 0)
    assert time.perf_counter() - start < 10
    assert sum(len(c.rows) for c in plan.clients) == 2 * size
    assert [c.classes for c in plan.clients] == [(c,) for c in range(len(names(classes)))]
