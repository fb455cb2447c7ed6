"""Every partition: each row in one client, class sets as specified, same seed same plan, errors that name the mend."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.partition import PARTITIONS, make_plan, partitions_of
from anchorfl.tasks.partition.plan import plan_digest
from anchorfl.tasks.partition.stratify import describe_classes, largest_remainder, stratified_holdout
from tests.tasks.federations import QUICK, owner_of, plan_of, rows_of, shuffled, stored, task_of


@st.composite
def federations(draw):
    """Labels with every class common, row ids in any order, options that fit."""
    classes = draw(st.integers(2, 6))
    rows = draw(st.integers(20 * classes, 40 * classes))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    y_NC = np.eye(classes, dtype=bool)[np.arange(rows) % classes]
    if draw(st.booleans()):
        y_NC |= rng.random(y_NC.shape) < 0.2
    options = TaskOptions(
        clients=draw(st.integers(1, 3)),
        partition=draw(st.sampled_from(["k_classes", "dirichlet", "iid"])),
        beta=draw(st.sampled_from([0.05, 0.5, 10.0])),
        validation=draw(st.sampled_from([0.0, 0.1, 0.3])),
    )
    k = draw(st.integers(-(-classes // options.clients), classes))
    return y_NC, rng.permutation(rows) * 7, replace(options, classes_per_client=k), draw(st.integers(0, 2**40))


@QUICK
@given(federations())
def test_every_row_has_one_owner_and_the_class_sets_are_as_specified(case):
    y_NC, row_N, options, seed = case
    plan = plan_of(y_NC, options, seed, row_N)
    owner_of(plan, rows_of(y_NC, row_N))
    assert len(plan.validation) == round(options.validation * len(row_N))
    union = set()
    for client in plan.clients:
        assert list(client.classes) == sorted(set(client.classes))
        holds = np.flatnonzero(y_NC[np.isin(row_N, client.rows)].any(0)).tolist()
        union |= set(client.classes)
        if options.partition == "k_classes":
            assert set(client.classes) <= set(holds)
            assert len(client.classes) == options.classes_per_client
        elif options.partition == "dirichlet":
            assert list(client.classes) == holds
            assert len(client.rows) >= 2
        else:
            assert client.classes == tuple(range(y_NC.shape[1]))
    assert union == set(range(y_NC.shape[1]))
    if options.partition != "dirichlet":
        sizes = [len(c.rows) for c in plan.clients]
        assert max(sizes) - min(sizes) <= 1


@QUICK
@given(federations())
def test_same_seed_same_plan_whatever_the_order_of_the_rows(case):
    y_NC, row_N, options, seed = case
    plan = plan_of(y_NC, options, seed, row_N)
    task = task_of(y_NC.shape[1])
    assert plan_digest(plan) == plan_digest(make_plan(shuffled(rows_of(y_NC, row_N), 0), task, options, seed))
    assert plan_digest(plan_of(y_NC, options, seed + 1, row_N)) != plan_digest(plan)
    back = stored(plan)
    assert plan_digest(back) == plan_digest(plan)
    assert back.clients[0].classes == plan.clients[0].classes


def test_the_digest_tells_clients_apart():
    y_NC = np.eye(4, dtype=bool)[np.arange(80) % 4]
    plan = plan_of(y_NC, TaskOptions(clients=2), 1)
    other = replace(plan, clients=(replace(plan.clients[0], classes=(0, 1)), plan.clients[1]))
    swapped = replace(plan, clients=plan.clients[::-1])
    held_by = [replace(plan, validation_client=np.full(len(plan.validation), client)) for client in (0, 1)]
    plans = [plan, swapped, replace(plan, seed=2), other, *held_by]
    assert len(plan.validation)
    assert len(set(map(plan_digest, plans))) == len(plans)


@QUICK
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0, 0.99), st.integers(0, 9))
def test_holdout_is_stratified_and_leaves_every_class_a_row(counts, share, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    rows = np.arange(len(labels)) + 100
    total = round(share * len(labels))
    if total > len(labels) - len(counts):
        with pytest.raises(InputError, match="use at most"):
            stratified_holdout(labels, rows, share, np.random.default_rng(seed))
        return
    held = stratified_holdout(labels, rows, share, np.random.default_rng(seed))
    assert len(held) == len(set(held)) == total
    left = np.bincount(labels, minlength=len(counts)) - np.bincount(labels[held - 100], minlength=len(counts))
    assert left.min() >= 1


def test_holdout_follows_the_class_sizes():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    held = stratified_holdout(labels, np.arange(160), 0.1, np.random.default_rng(0))
    assert np.bincount(labels[held]).tolist() == [10, 5, 1]
    with pytest.raises(InputError, match=r"must lie in \[0, 1\)"):
        stratified_holdout(labels, np.arange(160), 1.0, np.random.default_rng(0))


@QUICK
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(lambda p: sum(p) > 0.01), st.integers(0, 500))
def test_largest_remainder_adds_up_and_stays_within_one(weights, total):
    share = np.array(weights) / sum(weights) * total
    count = largest_remainder(share, total)
    assert count.sum() == total
    assert np.abs(count - share).max() < 1 + 1e-6


def test_largest_remainder_by_hand():
    assert largest_remainder(np.array([1.5, 2.5, 1.0]), 5).tolist() == [2, 2, 1]
    assert largest_remainder(np.array([4.0, 1.0]), 5, np.array([3, 9])).tolist() == [3, 2]
    with pytest.raises(ValueError, match="do not fit"):
        largest_remainder(np.array([1.0]), 2, np.array([1]))


def test_the_validation_split_does_not_move_the_class_draws():
    y_NC = np.eye(8, dtype=bool)[np.arange(800) % 8]
    plans = [
        plan_of(y_NC, TaskOptions(clients=4, validation=v), 3) for v in (0.0, 0.1)
    ]  # every client holds every class, so only the generators decide
    assert [c.classes for c in plans[0].clients] == [c.classes for c in plans[1].clients]


def test_dirichlet_gets_more_skewed_with_smaller_beta():
    y_NC = np.eye(5, dtype=bool)[np.arange(1000) % 5]
    held = [
        np.mean([len(c.classes) for c in plan_of(y_NC, options, 0).clients])
        for options in (TaskOptions(partition="dirichlet", beta=b) for b in (0.05, 100.0))
    ]
    assert held[0] < held[1] == 5


@pytest.mark.parametrize("size", [1000, 5000, 50_000])
def test_dirichlet_with_500_clients_ends_in_seconds(size):
    """Draws are bounded; where none gives every client its rows, they are moved (other libraries never return here)."""
    y_NC = np.eye(100, dtype=bool)[np.arange(size) % 100]
    start = time.perf_counter()
    options = TaskOptions(clients=500, partition="dirichlet", beta=0.05, validation=0)
    plan = plan_of(y_NC, options, 0)
    assert time.perf_counter() - start < 20
    owner_of(plan, rows_of(y_NC))
    least = min(len(c.rows) for c in plan.clients)
    assert least == 2 if size < 50_000 else least >= 2  # no more are moved than are needed


@QUICK
@given(st.integers(1, 60), st.integers(1, 4), st.sampled_from([0.01, 0.05]), st.data())
def test_dirichlet_gives_every_client_its_rows_however_few_there_are(size, classes, beta, data):
    classes = min(classes, size)
    clients = data.draw(st.integers(1, size))
    options = TaskOptions(clients=clients, partition="dirichlet", beta=beta, validation=0)
    plan = plan_of(np.eye(classes, dtype=bool)[np.arange(size) % classes], options, size)
    assert min(len(c.rows) for c in plan.clients) >= min(2, size // clients)


def test_dirichlet_with_fewer_labeled_rows_than_clients_is_refused():
    """Somebody would identify nothing."""
    y_NC = np.zeros((100, 2), dtype=bool)
    y_NC[np.arange(8), np.arange(8) % 2] = True
    with pytest.raises(InputError, match=r"client \d+ would identify nothing, since it has no row with a class"):
        plan_of(y_NC, TaskOptions(clients=20, partition="dirichlet", validation=0), 1)


def test_dirichlet_deals_rows_without_a_class_evenly():
    """They count towards no client's share: each has two rows with a class, so that it identifies something."""
    y_NC = np.zeros((1000, 4), dtype=bool)
    y_NC[np.arange(400), np.arange(400) % 4] = True
    rows = rows_of(y_NC)
    for beta in (0.05, 0.1, 10.0):
        for seed in range(5):
            options = TaskOptions(clients=20, partition="dirichlet", beta=beta, validation=0)
            plan = plan_of(y_NC, options, seed)
            owner_N = owner_of(plan, rows)
            assert np.bincount(owner_N[400:]).tolist() == [30] * 20
            assert np.bincount(owner_N[:400], minlength=20).min() >= 2
            assert all(client.classes for client in plan.clients)


def test_dirichlet_with_as_many_clients_as_rows_gives_each_one():
    y_NC = np.eye(2, dtype=bool)[np.arange(30) % 2]
    options = TaskOptions(clients=30, partition="dirichlet", beta=0.1, validation=0)
    assert {len(c.rows) for c in plan_of(y_NC, options, 0).clients} == {1}


BALANCED = np.eye(4, dtype=bool)[np.arange(80) % 4]
LONELY = np.eye(4, dtype=bool)[np.where(np.arange(80) == 0, 3, np.arange(80) % 3)]


@pytest.mark.parametrize(
    ("y_NC", "options", "message"),
    [
        (LONELY, {"clients": 2, "classes_per_client": 4}, r"client \d has rows of only 3 classes; lower it to 3"),
        (BALANCED, {"clients": 2, "classes_per_client": 1}, "cannot identify all 4 classes; raise"),
        (
            BALANCED,
            {"clients": 1, "classes_per_client": 3, "cover": "error"},
            "'class[0-3]' is identified by no client: set",
        ),
        (BALANCED[:, [0, 1, 2, 3, 3]] & [1, 1, 1, 1, 0], {"clients": 2}, "'class4' has no training row"),
        (
            BALANCED[:, [0, 1, 2, 3, 3]] & [1, 1, 1, 1, 0],
            {"clients": 2, "partition": "dirichlet"},
            "'class4' has no training row",
        ),
        (BALANCED, {"clients": 0}, r"clients = 0 must lie in 1\.\.72"),
        (BALANCED, {"clients": 73}, r"clients = 73 must lie in 1\.\.72"),
        (BALANCED, {"classes_per_client": 0}, "must be at least 1"),
        (BALANCED, {"partition": "dirichlet", "beta": 0.0}, "must be a finite number above 0"),
        (BALANCED, {"partition": "dirichlet", "beta": float("nan")}, "must be a finite number above 0"),
        (BALANCED, {"partition": "random"}, "none of k_classes, dirichlet, iid"),
        (BALANCED, {"validation": -0.1}, r"validation = -0\.1 must lie in \[0, 1\)"),
        (BALANCED, {"validation": 0.99}, r"use at most 0\.950"),
    ],
)
def test_options_that_do_not_fit_are_refused(y_NC, options, message):
    with pytest.raises(InputError, match=message):
        plan_of(y_NC, TaskOptions(**{"clients": 2, **options}), 0)


@pytest.mark.parametrize(
    ("absent", "end"), [(2, "'c1'"), (10, "'c9'"), (11, "'c9' and 1 more"), (25, "'c9' and 15 more")]
)
def test_the_first_ten_of_many_classes_are_named(absent, end):
    chosen_C = np.arange(30) < absent
    assert describe_classes(chosen_C, [f"c{i}" for i in range(30)]).endswith(end)


def test_exhausted_cover_names_the_class():
    """Eight classes have one row each, so ten clients with one class each all but never cover ten classes."""
    classes = np.concatenate([np.zeros(400, int), np.arange(2, 10), np.ones(400, int)])
    options = TaskOptions(clients=10, classes_per_client=1, validation=0)
    with pytest.raises(InputError, match=r"is identified by no client: not in 1000 draws; raise"):
        plan_of(np.eye(10, dtype=bool)[classes], options, 0)


def test_rows_that_are_not_the_tasks_are_refused():
    with pytest.raises(ValueError, match="unique"):
        plan_of(BALANCED, TaskOptions(), 0, np.zeros(80, int))
    with pytest.raises(ValueError, match="one per row"):
        plan_of(BALANCED, TaskOptions(), 0, np.arange(79))
    with pytest.raises(ValueError, match="the labels have 4 classes, but made has 3"):
        make_plan(rows_of(BALANCED), task_of(3), TaskOptions(), 0)
    with pytest.raises(ValueError, match="must be among the rows"):
        make_plan(rows_of(BALANCED), task_of(4), TaskOptions(), 0, validation=np.array([80]))


GROUPS = {"a": (0, 1), "b": (2, 3)}


@pytest.mark.parametrize("partition", PARTITIONS)
def test_published_validation_rows_are_used_as_they_are(partition):
    rows = rows_of(BALANCED, subject_N=np.array([f"user{i % 4}" for i in range(80)]))
    published = np.array([41, 3, 17])
    options = TaskOptions(clients=4, partition=partition, classes_per_client=2, validation=0.5)
    plan = make_plan(rows, task_of(4, GROUPS, "user"), options, 1, published)
    assert plan.validation.tolist() == [3, 17, 41]
    assert np.array_equal(np.sort(np.concatenate([c.rows for c in plan.clients])), np.delete(np.arange(80), published))


def test_a_data_set_has_the_partitions_that_fit_it():
    assert partitions_of(task_of(4)) == ("k_classes", "dirichlet", "iid", "one_class")
    assert partitions_of(task_of(4, GROUPS)) == ("k_classes", "dirichlet", "iid", "categories", "one_class")
    assert partitions_of(task_of(4, GROUPS, "user")) == PARTITIONS
    for partition in ("categories", "subjects"):
        hint = f"made has no {partition}; use one of k_classes, dirichlet, iid, one_class"
        with pytest.raises(InputError, match=hint):
            plan_of(BALANCED, TaskOptions(clients=2, partition=partition), 0)


def test_keep_subjects_is_refused_where_it_says_nothing():
    with pytest.raises(InputError, match="no meaning with partition = 'iid'; set it to false"):
        plan_of(BALANCED, TaskOptions(clients=2, partition="iid", keep_subjects=True), 0)
    options = TaskOptions(clients=2, partition="categories", keep_subjects=True)
    with pytest.raises(InputError, match="made has no subjects; set it to false"):
        make_plan(rows_of(BALANCED), task_of(4, GROUPS), options, 0)


@pytest.mark.parametrize(
    ("partition", "expected"),
    [("k_classes", "df0035f4ea134179"), ("dirichlet", "69c1be6c8ce96dde"), ("iid", "dd2222ef025c1e8c")],
)
def test_plans_stay_the_same_from_version_to_version(partition, expected):
    """A change here changes every published result: it belongs under Numbers in the changelog."""
    y_NC = np.eye(6, dtype=bool)[np.arange(300) % 6] | (np.arange(1800).reshape(300, 6) % 7 == 0)
    options = TaskOptions(clients=5, partition=partition, classes_per_client=2, beta=0.3)
    assert plan_digest(plan_of(y_NC, options, 4321, np.arange(300) * 3))[:16] == expected
