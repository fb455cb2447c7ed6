"""Whole subjects over the clients: one each, or balanced; a client identifies the classes that it holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.partition import _spare_last_rows, make_plan
from anchorfl.tasks.partition.plan import plan_digest
from anchorfl.tasks.partition.subjects import balance_subjects
from tests.tasks.federations import QUICK, multi_labels, owner_of, rows_of, shuffled, task_of


def options(clients, **others):
    return TaskOptions(**{"clients": clients, "partition": "subjects", "validation": 0.0, **others})


@st.composite
def cases(draw):
    """Draw rows of several subjects, some of them with few rows, and a number of clients."""
    y_NC = draw(multi_labels())
    y_NC[~y_NC.any(1), 0] = True  # so that every client holds some class
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    most = draw(st.integers(1, 12))
    subject_N = np.array([f"writer {s}" for s in rng.integers(0, most, len(y_NC))])
    clients = draw(st.integers(1, len(np.unique(subject_N))))
    return rows_of(y_NC, rng.permutation(len(y_NC)) + 7, subject_N), clients


@QUICK
@given(cases(), st.integers(0, 2**40))
def test_a_subject_is_with_one_client_which_identifies_what_it_holds(case, seed):
    rows, clients = case
    task = task_of(rows.labels.classes, subjects="writer")
    plan = make_plan(rows, task, options(clients), seed)
    owner_N = owner_of(plan, rows)
    assert set(owner_N) == set(range(clients)) == set(range(len(plan.clients)))
    for subject in np.unique(rows.subject_N):
        assert len(set(owner_N[rows.subject_N == subject])) == 1
    for client, own in enumerate(plan.clients):
        assert list(own.classes) == np.flatnonzero(rows.labels.matrix()[owner_N == client].any(0)).tolist()
    assert set().union(*(c.classes for c in plan.clients)) == set(range(rows.labels.classes))
    names, size_S = np.unique(rows.subject_N, return_counts=True)
    load_M = np.bincount(owner_N)
    assert load_M.max() - load_M.min() <= size_S.max()  # dealt to the smallest client, it cannot be further off
    if clients == len(names):
        assert [set(rows.subject_N[owner_N == c]) for c in range(clients)] == [{name} for name in names]
    assert plan_digest(make_plan(shuffled(rows, 1), task, options(clients), seed)) == plan_digest(plan)


@QUICK
@given(cases(), st.integers(0, 2**40), st.sampled_from([0.1, 0.3]), st.booleans())
def test_every_subject_keeps_a_training_row_with_a_class(case, seed, share, pieces):
    """Validation takes no client's last row: as many clients as there were subjects have rows, with a class."""
    rows, _ = case
    y_NC = rows.labels.matrix()
    rng = np.random.default_rng(seed)
    bare_N = (rng.random(len(y_NC)) < 0.3) & (y_NC.sum(0)[y_NC.argmax(1)] > 9)
    whole_N = np.arange(len(y_NC)) // 2 if pieces else None
    subject_N = rows.subject_N[whole_N * 2] if pieces else rows.subject_N  # a sequence is of one subject
    rows = rows_of(np.where(bare_N[:, None], False, y_NC), rows.row_N, subject_N, whole_N)
    labeled_N = rows.labels.length_N > 0
    named = np.unique(rows.subject_N[labeled_N])
    try:
        drawn = rows.held_out(share, np.random.default_rng(0))
    except InputError:
        assume(False)
    validation = _spare_last_rows(rows, drawn)
    assert set(validation) <= set(drawn)
    kept_N = ~np.isin(rows.row_N, validation)
    assert set(rows.subject_N[kept_N & labeled_N]) == set(named)
    if pieces:
        assert not set(rows.whole_N[kept_N]) & set(rows.whole_N[~kept_N])
    lost = set(named) - set(rows.subject_N[labeled_N & ~np.isin(rows.row_N, drawn)])
    back_N = np.isin(rows.row_N, np.setdiff1d(drawn, validation))
    assert set(rows.subject_N[back_N & labeled_N]) == lost
    if not pieces:
        assert back_N.sum() == len(lost)


@QUICK
@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.3]), st.booleans())
def test_validation_takes_rows_with_a_class_alone(seed, share, subjects):
    """A row without a class has no score where rows have one class or none; a share of the others is held out."""
    rng = np.random.default_rng(seed)
    y_NC = np.eye(3, dtype=bool)[np.arange(90) % 3] & (rng.random(90) > 0.4)[:, None]
    y_NC[:9] = np.eye(3)[np.arange(9) % 3]
    rows = rows_of(y_NC, rng.permutation(90) + 4, np.array([f"s{i % 3}" for i in range(90)]))
    task = task_of(3, subjects="s", kind="single")
    partition = "subjects" if subjects else "iid"
    validation = make_plan(rows, task, options(3, validation=share, partition=partition), seed).validation
    labeled_N = rows.labels.length_N > 0
    assert set(validation) <= set(rows.row_N[labeled_N].tolist())
    assert len(validation) == round(share * labeled_N.sum()) or subjects


def test_small_clients_beside_large_ones_stay():
    """Five clients of 60 rows and 30 of one: with a tenth for validation, all of them are clients."""
    subject_N = np.array([f"s{i // 60}" for i in range(300)] + [f"t{i}" for i in range(30)])
    rows = rows_of(np.eye(2)[np.arange(330) % 2], subject_N=subject_N)
    for seed in range(5):
        plan = make_plan(rows, task_of(2, subjects="client"), options(35, validation=0.1), seed)
        assert min(len(c.rows) for c in plan.clients) == 1
        assert len(plan.clients) == 35
        assert 20 < len(plan.validation) <= 33


def test_another_seed_deals_otherwise_unless_every_subject_has_a_client():
    rows = rows_of(np.eye(2)[np.arange(60) % 2], subject_N=np.array([f"user{i // 5:02}" for i in range(60)]))
    task = task_of(2, subjects="user")

    def parts(clients, seed):
        return [c.rows.tolist() for c in make_plan(rows, task, options(clients), seed).clients]

    assert parts(4, 0) == parts(4, 0) != parts(4, 1)
    assert parts(12, 0) == parts(12, 1)
    assert parts(12, 0)[3] == [15, 16, 17, 18, 19]
    assert {len(part) for part in parts(4, 0)} == {15}


@QUICK
@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.data(), st.integers(0, 99))
def test_loads_are_as_even_as_the_subjects_allow(sizes, data, seed):
    clients = data.draw(st.integers(1, len(sizes)))
    load_M = np.bincount(balance_subjects(np.array(sizes), clients, np.random.default_rng(seed)), weights=sizes)
    assert len(load_M) == clients
    assert load_M.min() > 0
    assert load_M.max() <= sum(sizes) / clients + max(sizes)  # the last subject went to a client below the mean


@pytest.mark.parametrize(
    ("sizes", "clients", "dealt"),
    [
        ([2, 9, 4, 7, 5], 2, [1, 0, 0, 1, 1]),  # 9 | 7, then 5 to 7, 4 to 9, and 2 to the 12 beside 13
        ([1, 2, 3, 10, 5, 6], 3, [1, 1, 2, 0, 2, 1]),  # 10 | 6 | 5, then 3 to 5, 2 to 6, and 1 to the first of 8 and 8
    ],
)
def test_the_largest_subject_comes_first_to_the_client_with_the_fewest_rows(sizes, clients, dealt):
    """All sizes differ, so that nothing is left to chance."""
    for seed in range(5):
        assert balance_subjects(np.array(sizes), clients, np.random.default_rng(seed)).tolist() == dealt


def test_a_large_subject_that_stands_last_is_not_dealt_last():
    """Twelve of one row, then one of six: each of two clients has nine rows, whatever the seed."""
    subject_N = np.array([*(f"s{i:02}" for i in range(12)), *["t"] * 6])
    rows = rows_of(np.eye(2)[np.arange(18) % 2], subject_N=subject_N)
    for seed in range(5):
        plan = make_plan(rows, task_of(2, subjects="user"), options(2), seed)
        assert [len(c.rows) for c in plan.clients] == [9, 9]
        assert set(range(12, 18)) <= set(plan.clients[0].rows.tolist())


def test_more_clients_than_subjects_are_refused():
    rows = rows_of(np.eye(2)[np.arange(20) % 2], subject_N=np.array([f"user{i % 4}" for i in range(20)]))
    message = r"clients = 5, but the training rows have only 4 subjects \(user\).*needs clients = 4 or fewer"
    with pytest.raises(InputError, match=message):
        make_plan(rows, task_of(2, subjects="user"), options(5), 0)
    with pytest.raises(InputError, match=r"clients = 0 must lie in 1\.\.20"):
        make_plan(rows, task_of(2, subjects="user"), options(0), 0)


def test_a_client_that_would_identify_nothing_is_refused():
    rows = rows_of([[1], [0]], subject_N=np.array(["a", "b"]))
    with pytest.raises(InputError, match=r"user b would identify nothing.*use fewer \[task\] clients"):
        make_plan(rows, task_of(1, subjects="user"), options(2), 0)
    assert make_plan(rows, task_of(1, subjects="user"), options(1), 0).clients[0].rows.tolist() == [0, 1]


def test_a_class_without_a_row_is_named():
    rows = rows_of([[1, 0], [1, 0]], subject_N=np.array(["a", "b"]))
    with pytest.raises(InputError, match="'class1' has no training row; use a smaller"):
        make_plan(rows, task_of(2, subjects="user"), options(2), 0)


def test_a_task_that_does_not_read_its_subjects_is_at_fault():
    with pytest.raises(ValueError, match="read must give the column 'subject'"):
        make_plan(rows_of(np.eye(2)), task_of(2, subjects="user"), options(2), 0)
