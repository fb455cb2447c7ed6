"""Classes by category, a row to the client of its rarest class: against the rule written out in plain Python."""

from __future__ import annotations

import collections
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.categories import _move_units, class_sets
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import plan_digest
from anchorfl.tasks.partition.stratify import generator
from tests.tasks.federations import QUICK, multi_labels, owner_of, rows_of, shuffled, task_of


def options(clients, keep=False):
    return TaskOptions(clients=clients, partition="categories", validation=0.0, keep_subjects=keep)


@st.composite
def grouped(draw, classes):
    """Category -> class numbers, in any order, every class in one."""
    of_class = draw(st.lists(st.integers(0, classes - 1), min_size=classes, max_size=classes))
    order = draw(st.permutations(range(classes)))
    return {f"group{g}": tuple(c for c in order if of_class[c] == g) for g in dict.fromkeys(of_class)}


@QUICK
@given(multi_labels(least=3), st.integers(0, 10**6))
def test_published_validation_rows_go_by_their_rarest_class(y_NC, seed):
    """Counted over these rows, with the class sets of the training rows; the training rows do not move."""
    rng = np.random.default_rng(seed)
    classes, row_N = y_NC.shape[1], rng.permutation(2 * len(y_NC)) + 7
    rows = rows_of(np.concatenate([y_NC, y_NC]), row_N)  # so that the training rows have every class
    task = task_of(classes, {"one": tuple(range(classes))})
    own, server = options(min(2, classes)), options(min(2, classes))
    own = replace(own, validation_from="clients")
    validation = row_N[: len(y_NC)]
    plan, plain = (make_plan(rows, task, o, seed, validation) for o in (own, server))
    assert [c.rows.tolist() for c in plan.clients] == [c.rows.tolist() for c in plain.clients]
    assert plan.validation.tolist() == plain.validation.tolist() == sorted(validation.tolist())
    client_of = dict(zip(plan.validation.tolist(), plan.validation_client.tolist(), strict=True))
    count_C = y_NC.sum(0)
    for row, y in zip(validation.tolist(), y_NC, strict=True):
        if y.any():
            rarest = min(np.flatnonzero(y), key=lambda c: (count_C[c], c))
            assert rarest in plan.clients[client_of[row]].classes
    if classes > 1:
        with pytest.raises(InputError, match="some class has none or several; leave identified"):
            make_plan(rows, task, replace(own, identified="all"), seed, validation)


@st.composite
def cases(draw):
    y_NC = draw(multi_labels(least=draw(st.integers(1, 3))))
    classes = y_NC.shape[1]
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    subject_N = np.array([f"user{s}" for s in rng.integers(0, draw(st.integers(1, 40)), len(y_NC))])
    rows = rows_of(y_NC, rng.permutation(len(y_NC)) + 7, subject_N)
    task = task_of(classes, draw(grouped(classes)), "user")
    return rows, task, options(draw(st.integers(1, min(classes, len(y_NC)))), draw(st.booleans()))


def by_the_rule(rows, owner_C, keep):
    """Return the clients of every row (one, several where a vote is even, none where nothing is said), unmoved."""
    y_NC = rows.labels.matrix()
    count_C = y_NC.sum(0)
    votes = collections.defaultdict(collections.Counter)
    units = rows.subject_N if keep else np.arange(len(y_NC))
    for unit, y in zip(units.tolist(), y_NC, strict=True):
        if y.any():
            votes[unit][owner_C[min(np.flatnonzero(y), key=lambda c: (count_C[c], c))]] += 1
    best = {unit: max(c.values()) for unit, c in votes.items()}
    first = {unit: min(client for client, n in c.items() if n == best[unit]) for unit, c in votes.items()}
    return np.array([first.get(unit, -1) for unit in units.tolist()]), units


def without_row(y_NC, owner_N, owner_C):
    """Classes that have no row with their client."""
    return {c for c in range(y_NC.shape[1]) if not (y_NC[:, c] & (owner_N == owner_C[c])).any()}


def owners_of_classes(sets, classes):
    owner_C = np.full(classes, -1)
    for client, own in enumerate(sets):
        assert (owner_C[list(own)] == -1).all()
        owner_C[list(own)] = client
    assert (owner_C >= 0).all()
    return owner_C


def attempt(rows, task, chosen, seed):
    """Return the plan, or None and the error."""
    try:
        return make_plan(rows, task, chosen, seed), ""
    except InputError as error:
        return None, str(error)


def check_error(error, rows, owner_C, chosen):
    """It is one of the two that may be, and the classes that it names have no row by the rule."""
    if chosen.keep_subjects and chosen.clients > len(np.unique(rows.subject_N)):
        assert "subjects (user), each of which stays with one client; use" in error
        return
    assert "has no row that its client could get" in error
    ruled_N, _ = by_the_rule(rows, owner_C, chosen.keep_subjects)
    assert {int(c) for c in re.findall("'class(.)'", error)} <= without_row(rows.labels.matrix(), ruled_N, owner_C)


@QUICK
@given(cases(), st.integers(0, 2**40))
def test_every_row_is_with_the_client_of_its_rarest_class(case, seed):
    rows, task, chosen = case
    plan, error = attempt(rows, task, chosen, seed)
    owner_C = owners_of_classes(class_sets(task, chosen.clients, generator(seed, "categories")), len(task.class_names))
    if plan is None:
        check_error(error, rows, owner_C, chosen)
        return
    y_NC, owner_N = rows.labels.matrix(), owner_of(plan, rows)
    assert np.array_equal(owners_of_classes([c.classes for c in plan.clients], len(task.class_names)), owner_C)
    ruled_N, units = by_the_rule(rows, owner_C, chosen.keep_subjects)
    said_N = ruled_N >= 0
    starved = without_row(y_NC, np.where(said_N, ruled_N, owner_N), owner_C)
    moved = {unit: owner_N[units == unit][0] for unit in set(units[said_N & (owner_N != ruled_N)].tolist())}
    assert len(moved) <= len(starved)
    for unit, client in moved.items():  # only for a class that had no row with its client
        assert {owner_C[c] for c in starved if y_NC[units == unit, c].any()} >= {client}
    assert not without_row(y_NC, owner_N, owner_C)
    assert all(len(c.rows) for c in plan.clients)
    if chosen.keep_subjects:
        assert all(len(set(owner_N[rows.subject_N == s])) == 1 for s in rows.subject_N)
    silent_M = np.bincount(owner_N[~said_N], minlength=chosen.clients)
    if not chosen.keep_subjects:
        assert silent_M.max() - silent_M.min() <= 1
    assert plan_digest(make_plan(shuffled(rows, 1), task, chosen, seed)) == plan_digest(plan)


@QUICK
@given(st.integers(1, 30), st.data(), st.integers(0, 10**6))
def test_categories_are_cut_or_joined_to_as_many_as_there_are_clients(classes, data, seed):
    task = task_of(classes, data.draw(grouped(classes)))
    clients = data.draw(st.integers(1, classes))
    sets = [set(s.tolist()) for s in class_sets(task, clients, np.random.default_rng(seed))]
    groups = [{int(name[5:]) for name in members} for members in task.groups.values()]
    assert len(sets) == clients
    assert sorted(c for s in sets for c in s) == list(range(classes))
    if clients == len(groups):
        assert sets == groups
    elif clients > len(groups):
        assert all(any(s <= g for g in groups) for s in sets)
        cut = [len(s) for s in sets if s not in groups]
        left = [len(s) for s in sets if s in groups]
        # a half came from the largest of its time, so nothing that was left is larger than its two halves
        assert max(left, default=0) <= 2 * min(cut) + 1
    else:
        assert all(any(g <= s for s in sets) for g in groups)
    again = class_sets(task, clients, np.random.default_rng(seed))
    assert [set(s.tolist()) for s in again] == sets


SIZES = {"posture": 6, "phone": 4, "companion": 2, "location": 16, "activity": 23}
"""Classes per category of ExtraSensory (methods: FedAlign, 4.1)."""


def extrasensory():
    starts = np.cumsum([0, *SIZES.values()])
    return task_of(51, {g: range(starts[i], starts[i + 1]) for i, g in enumerate(SIZES)})


@pytest.mark.parametrize(
    ("clients", "sizes"),
    [
        (3, [12, 16, 23]),
        (4, [6, 6, 16, 23]),
        (5, [6, 4, 2, 16, 23]),
        (6, [6, 4, 2, 16, 12, 11]),
        (8, [6, 4, 2, 8, 8, 6, 6, 11]),
        (15, [3, 3, 4, 2, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 5]),
        (51, [1] * 51),
    ],
)
def test_sizes_by_hand(clients, sizes):
    assert [len(s) for s in class_sets(extrasensory(), clients, np.random.default_rng(0))] == sizes


def test_halves_are_random_by_seed():
    rng = np.random.default_rng
    cut = [tuple(map(tuple, class_sets(extrasensory(), 15, rng(seed)))) for seed in (0, 0, 1)]
    assert cut[0] == cut[1] != cut[2]
    y_NC = np.eye(51)[np.arange(510) % 51]
    plans = [plan_digest(make_plan(rows_of(y_NC), extrasensory(), options(15), seed)) for seed in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]


def test_a_row_by_hand():
    """Class 0 is common, 1 less so, 2 rare; 0 and 1 are with client 0, 2 with client 1."""
    y_NC = np.array([[1, 0, 0]] * 4 + [[1, 1, 0]] * 2 + [[1, 1, 1]])
    plan = make_plan(rows_of(y_NC), task_of(3, {"a": (0, 1), "b": (2,)}), options(2), 0)
    assert [(c.rows.tolist(), c.classes) for c in plan.clients] == [([0, 1, 2, 3, 4, 5], (0, 1)), ([6], (2,))]


def test_a_class_that_is_never_the_rarest_gets_one_row():
    """Class 0 always stands beside a rarer class of the other client, so the rule alone leaves client 0 without it."""
    y_NC = np.array([[1, 1, 0]] * 2 + [[1, 0, 1]] * 2 + [[0, 0, 1]])
    task = task_of(3, {"a": (0,), "b": (1, 2)})
    plan = make_plan(rows_of(y_NC), task, options(2), 0)
    assert [c.rows.tolist() for c in plan.clients] == [[0], [1, 2, 3, 4]]


def test_subjects_stay_together_by_the_majority_of_their_rows():
    y_NC = np.array([[1, 0]] * 2 + [[0, 1]] + [[0, 1]] * 3 + [[1, 0], [0, 1]])
    subject_N = np.array(["u"] * 3 + ["v"] * 3 + ["w"] * 2)
    rows, task = rows_of(y_NC, subject_N=subject_N), task_of(2, {"a": (0,), "b": (1,)}, "user")
    plan = make_plan(rows, task, options(2, keep=True), 0)
    assert [c.rows.tolist() for c in plan.clients] == [[0, 1, 2, 6, 7], [3, 4, 5]]  # w is even: the first of equals
    plan = make_plan(rows, task, options(2), 0)
    assert [c.rows.tolist() for c in plan.clients] == [[0, 1, 6], [2, 3, 4, 5, 7]]


def test_the_smallest_subject_moves_to_a_class_that_would_have_none():
    y_NC = np.array([[0, 1]] * 4 + [[1, 0]] + [[0, 1]] * 2 + [[1, 0]] + [[0, 1]] * 3)
    subject_N = np.array(["u"] * 5 + ["v"] * 3 + ["w"] * 3)  # the rule gives all of them to client 1
    task = task_of(2, {"a": (0,), "b": (1,)}, "user")
    plan = make_plan(rows_of(y_NC, subject_N=subject_N), task, options(2, keep=True), 0)
    assert [c.rows.tolist() for c in plan.clients] == [[5, 6, 7], [0, 1, 2, 3, 4, 8, 9, 10]]


def test_a_class_that_cannot_have_a_row_is_named():
    task = task_of(2, {"a": (0,), "b": (1,)}, "user")
    with pytest.raises(
        InputError, match=r"'class1' has no row that its client could get.*; use fewer \[task\] clients"
    ):
        make_plan(rows_of([[1, 1], [0, 0]]), task, options(2), 0)
    rows = rows_of([[1, 0], [0, 1], [0, 1], [0, 0]], subject_N=np.array(["u", "u", "u", "v"]))
    with pytest.raises(InputError, match=r"'class0' has no row .*; set \[task\] keep_subjects = false, use fewer"):
        make_plan(rows, task, options(2, keep=True), 0)
    assert len(make_plan(rows, task, options(2), 0).clients) == 2


def test_a_subject_is_not_moved_when_the_one_before_it_made_it_the_last():
    """u and v hold class 2 for client 2; u may go to class 0, then v must stay, and class 1 gets none."""
    y_NC = np.array([[0, 0, 1]] * 2 + [[1, 0, 0]] + [[0, 0, 1]] * 2 + [[0, 1, 0], [0, 0, 0]])
    rows = rows_of(y_NC, subject_N=np.array(["u"] * 3 + ["v"] * 3 + ["w"]))
    task = task_of(3, {"a": (0,), "b": (1,), "c": (2,)}, "user")
    with pytest.raises(InputError, match=r"^class 'class1' has no row"):
        make_plan(rows, task, options(3, keep=True), 0)


def test_a_class_keeps_the_only_unit_that_it_was_given():
    """Unit 2 serves class 0 when unit 1 is wanted by class 2, which then gets that one; nobody loses what it got."""
    classes_of_units = pa.array([[1], [0, 2], [0]], pa.list_(pa.int32()))
    labels, owner_C, client_U = Labels.of_lists(classes_of_units, 3), np.array([1, 2, 2]), np.array([1, 0, 0])
    moved_U = _move_units(client_U, labels, np.arange(3), owner_C)
    assert moved_U.tolist() == [2, 2, 1]


def test_no_unit_moves_for_a_class_that_another_move_served():
    """Unit 0 goes to client 0 for class 0, and brings class 1 with it; unit 1 stays, though it could go for that."""
    labels = Labels.of_lists(pa.array([[0, 1, 2], [1, 2], [2]], pa.list_(pa.int32())), 3)
    moved_U = _move_units(np.array([1, 1, 1]), labels, np.arange(3), np.array([0, 0, 1]))
    assert moved_U.tolist() == [0, 1, 1]


def test_more_clients_than_subjects_that_stay_together_are_refused():
    rows = rows_of(np.eye(2), subject_N=np.array(["u", "u"]))
    message = (
        r"clients = 2, but the training rows have only 1 subjects \(user\).*use clients = 1 or fewer, or set keep_su"
    )
    with pytest.raises(InputError, match=message):
        make_plan(rows, task_of(2, {"a": (0,), "b": (1,)}, "user"), options(2, keep=True), 0)


@pytest.mark.parametrize(
    ("groups", "clients", "message"),
    [
        ({"a": (0, 1), "b": (2,)}, 2, "made: class 'class3' is in no category; add it to one"),
        ({"a": (0, 1), "b": (1, 2, 3)}, 2, "made: class 'class1' is in 'a' and in 'b'; leave it in one category"),
        ({"a": (0, 1, 2, 3), "b": (9,)}, 2, "category 'b' lists 'class9', which is no class; correct the categories"),
        ({"a": (0, 1, 2, 3)}, 5, "clients = 5, but made has 4 classes.*use clients = 4 or fewer"),
    ],
)
def test_categories_that_do_not_fit_are_refused(groups, clients, message):
    with pytest.raises(InputError, match=message):
        make_plan(rows_of(np.eye(4)[np.arange(20) % 4]), task_of(4, groups), options(clients), 0)


def test_a_class_without_a_row_is_named():
    with pytest.raises(InputError, match="'class1' has no training row; use a smaller"):
        make_plan(rows_of([[1, 0], [1, 0]]), task_of(2, {"a": (0, 1)}), options(1), 0)


def test_a_category_left_without_classes_is_no_category():
    task = task_of(2, {"a": (0,), "empty": (), "b": (1,)})
    assert [s.tolist() for s in class_sets(task, 2, np.random.default_rng(0))] == [[0], [1]]


def test_the_plan_stays_the_same_from_version_to_version():
    """A change here changes every published result: it belongs under Numbers in the changelog."""
    y_NC = np.arange(1200).reshape(300, 4) % 7 == 0
    assert (~y_NC.any(1)).sum() > 50
    chosen = TaskOptions(clients=2, partition="categories")
    plan = make_plan(rows_of(y_NC, np.arange(300) * 3), task_of(4, {"a": (0, 1), "b": (2, 3)}), chosen, 4321)
    assert plan_digest(plan)[:16] == "928c5436460e44bc"
