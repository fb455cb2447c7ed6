"""Test rows of the clients' own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.client_test import client_test_of_split
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import ClientPlan, PartitionPlan, plan_digest
from anchorfl.tasks.registry import find_task
from anchorfl.tasks.registry import task_of as task_of_options
from anchorfl.tasks.tabular.table import resolve_options
from tests.tasks.federations import QUICK, rows_of, shuffled, stored, task_of


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    y_NC = rng.random((draw(st.integers(60, 200)), 6)) < draw(st.sampled_from([0.15, 0.4]))
    y_NC[:48, :] |= np.eye(6, dtype=bool)[np.arange(48) % 6]
    one_class = draw(st.booleans())
    chosen = TaskOptions(
        clients=0 if one_class else 5,
        partition="one_class" if one_class else draw(st.sampled_from(["iid", "k_classes", "dirichlet"])),
        classes_per_client=3,
        validation=draw(st.sampled_from([0.0, 0.2])),
        client_test=draw(st.sampled_from(["0.2", "0.01", "0.9"])),
    )
    return rows_of(y_NC, rng.permutation(len(y_NC)) + 5), task_of(6), chosen


@QUICK
@given(cases(), st.integers(0, 2**40))
def test_rows_of_the_test_leave_their_clients_training_and_nothing_else_changes(case, seed):
    rows, task, chosen = case
    plan, whole = (make_plan(rows, task, o, seed) for o in (chosen, replace(chosen, client_test="none")))
    assert np.array_equal(plan.validation, whole.validation)
    trained = np.concatenate([client.rows for client in plan.clients])
    for client, test, before in zip(plan.clients, plan.client_test, whole.clients, strict=True):
        assert np.array_equal(np.sort(np.concatenate([client.rows, test])), before.rows)
        assert client.classes == before.classes
        assert len(client.rows) >= 1
        assert not np.isin(test, trained).any()  # of nobody: with one_class several hold a row
        assert not np.isin(test, plan.validation).any()
        if chosen.partition != "one_class":
            assert len(test) <= max(1, round(float(chosen.client_test) * len(before.rows)))
    assert whole.client_test == ()
    assert plan_digest(make_plan(shuffled(rows, 1), task, chosen, seed)) == plan_digest(plan) != plan_digest(whole)
    again = stored(plan)
    assert all(np.array_equal(a, b) for a, b in zip(again.client_test, plan.client_test, strict=True))


def test_every_known_class_keeps_a_training_row_and_few_rows_give_no_test_row():
    """Client sizes 1, 2 of one class, 2 of two classes, and 20; share 0.9."""
    subject_N = np.array(["a"] + ["b"] * 2 + ["c"] * 2 + ["d"] * 20)
    class_N = np.array([0, 1, 1, 0, 1] + [2] * 19 + [0])
    chosen = TaskOptions(clients=4, partition="subjects", validation=0.0, client_test="0.9")
    task = task_of(3, subjects="person", kind="single")
    plan = make_plan(rows_of(np.eye(3)[class_N], None, subject_N), task, chosen, 7)
    assert [len(test) for test in plan.client_test] == [0, 1, 0, 18]
    assert 24 in plan.clients[3].rows


def person(options=None):
    """Return the options of clients that are people, whose own test rows are all that is drawn."""
    return TaskOptions(
        **{"partition": "subjects", "clients": 1, "validation": 0.0, "client_test": "0.4"} | (options or {})
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_pieces_of_a_sequence_stay_together_and_count_as_one_of_their_first_pieces_class(seed):
    """Of two people: ten sequences of 1 to 5 pieces each, six that begin with class 0 and four with class 1, then 2."""
    first_W, long_W = np.array(([0] * 6 + [1] * 4) * 2), np.tile([1, 2, 3, 4, 5], 4)
    whole_N = np.repeat(np.arange(20), long_W)
    class_N = np.where(np.diff(whole_N, prepend=-1) > 0, first_W[whole_N], 2)
    who_N = np.array(["a", "b"])[whole_N // 10]
    rows, task = rows_of(np.eye(3)[class_N], None, who_N, whole_N), task_of(3, subjects="person", kind="single")
    plan = make_plan(shuffled(rows, seed), task, person({"clients": 2, "client_test": "0.5"}), seed)
    for number, (client, test) in enumerate(zip(plan.clients, plan.client_test, strict=True)):
        taken = np.unique(whole_N[test])
        assert np.array_equal(test, np.flatnonzero(np.isin(whole_N, taken)))
        assert np.array_equal(client.rows, np.flatnonzero(~np.isin(whole_N, taken) & (whole_N // 10 == number)))
        assert np.bincount(first_W[taken]).tolist() == [3, 2]


def test_test_rows_are_stratified_by_the_labels_that_the_client_knows():
    """Ten rows of the class that it knows, and one each of ten others, which to this client are rows without a label:
    half of both.
    """
    class_N = np.array([0] * 10 + [*range(1, 11)])
    chosen = person({"partition": "iid", "client_classes": "[[0]]", "cover": "any", "client_test": "0.5"})
    (test,) = make_plan(rows_of(np.eye(11)[class_N]), task_of(11, kind="single"), chosen, 3).client_test
    assert np.bincount(np.minimum(class_N[test], 1)).tolist() == [5, 5]


@pytest.mark.parametrize(("share", "count"), [("0.01", 1), ("0.15", 3), ("0.24", 4), ("0.99", 15)])
def test_a_client_gives_its_share_of_rows_with_a_class_and_one_at_the_least(share, count):
    """Of 17 rows with one of two classes, among 5 without any, the last of all among these; each class keeps one."""
    class_N = np.array([-1, 0, 1, -1, 0] + [0, 1] * 6 + [-1, 0, 0, -1, -1])
    rows = rows_of(class_N[:, None] == [0, 1])
    assert (int((class_N >= 0).sum()), len(class_N)) == (17, 22)
    chosen = person({"partition": "iid", "client_test": share})
    (test,) = make_plan(rows, task_of(2, kind="single"), chosen, 1).client_test
    assert len(test) == count
    assert (class_N[test] >= 0).all()


def test_a_client_of_shared_rows_that_were_all_drawn_keeps_its_first():
    """Rows 1, 2, 4 and 5 are of class 2 and of a rarer one, which keeps one of its three rows: perhaps row 0 or 3."""
    y_NC = np.zeros((6, 3), dtype=bool)
    y_NC[:3, 0] = y_NC[3:, 1] = y_NC[[1, 2, 4, 5], 2] = True
    chosen, kept = TaskOptions(clients=0, partition="one_class", validation=0.0, client_test="0.9"), []
    for seed in range(40):
        plan = make_plan(rows_of(y_NC), task_of(3), chosen, seed)
        trained = np.unique(np.concatenate([client.rows for client in plan.clients]))
        assert [len(np.intersect1d(trained, part)) for part in ([0, 1, 2], [3, 4, 5])] in ([1, 1], [2, 1])
        kept.append((trained.tolist(), plan.clients[2].rows.tolist(), plan.client_test[2].tolist()))
    assert ([0, 1, 3], [1], [2, 4, 5]) in kept
    assert not any(trained == [0, 3] for trained, *_ in kept)


@pytest.mark.parametrize("name", ["toy-multi", "toy-single"])
def test_the_files_hold_the_rows_with_all_their_labels_and_inputs_are_fitted_without_them(name, tmp_path):
    task = find_task(name)
    options = TaskOptions(name=name, clients=4, classes_per_client=2, cache=str(tmp_path), client_test="0.25")
    prepared = prepare(task, options, 3, engine="local")
    plan, manifest = prepared.plan(), prepared.manifest
    assert sum(manifest.client_test) > 10
    assert manifest.client_test == tuple(map(len, plan.client_test))
    assert manifest.examples == tuple(len(client.rows) for client in plan.clients)
    table = task.read(None, options)
    place = {row: i for i, row in enumerate(sorted(table["row"].to_pylist()))}
    labels = {place[row]: c for row, c in zip(table["row"].to_pylist(), table["labels"].to_pylist(), strict=True)}
    for client in range(4):
        got = prepared.client_test(client, Objective(task.kind))
        assert got.known_NC.all()
        found = [sorted(np.flatnonzero(y_C).tolist()) for y_C in got.y_NC]
        assert found == [sorted(labels[row]) for row in plan.client_test[client].tolist()]


def test_the_split_of_a_table_gives_each_client_its_test_rows(tmp_path):
    rows = ["x,y,who,split"]
    rows += [f"{i},{'ab'[i % 2]},{who},{'test' if i > 5 else 'train'}" for who in "uv" for i in range(8)]
    (tmp_path / "own.csv").write_text("\n".join([*rows, "3,a,w,test", ""]))
    options = TaskOptions(
        file=str(tmp_path / "own.csv"), label_columns="y", client_column="who", split_column="split",
        client_test="split", validation=0.0, cache=str(tmp_path / "cache"),
    )  # fmt: skip
    options = resolve_options(options, lambda _: None)
    prepared = prepare(task_of_options(options), options, 0, engine="local")
    assert prepared.manifest.client_test == (2, 2)  # w trains nothing, so its row is nobody's
    assert prepared.manifest.test == 5
    assert [len(client.rows) for client in prepared.plan().clients] == [6, 6]
    toy = TaskOptions(name="toy-single", clients=4, client_test="split", cache=str(tmp_path))
    with pytest.raises(InputError, match="only with partition = 'subjects'"):
        prepare(find_task("toy-single"), toy, 0, engine="local")


def test_the_test_split_goes_by_subject_whatever_the_order_of_the_rows():
    """Rows 0 to 9 lie in another order; odd ones are of the split, row 9 of somebody who trains nothing."""
    row_N = np.array([7, 2, 9, 0, 5, 4, 1, 8, 3, 6])
    who = {0: "v", 2: "u", 4: "v", 6: "u", 8: "u", 1: "v", 3: "u", 5: "u", 7: "v", 9: "w"}
    subject_N = np.array([who[row] for row in row_N.tolist()])
    clients = tuple(ClientPlan(np.array(rows), (0,)) for rows in ([2, 6, 8], [0, 4]))
    plan, chosen = PartitionPlan(clients, np.array([], dtype=np.int64), 0), person({"client_test": "split"})
    got = client_test_of_split(plan, chosen, row_N, np.array([9, 7, 5, 3, 1]), subject_N)
    assert [test.tolist() for test in got.client_test] == [[3, 5], [1, 7]]
    assert got.clients == plan.clients
    with pytest.raises(InputError, match="no test row is of a client that has training rows"):
        client_test_of_split(plan, chosen, row_N, np.array([9]), subject_N)


@pytest.mark.parametrize("share", ["0", "1", "1.5", "nan", "half"])
def test_a_bad_share_is_refused(share):
    with pytest.raises(InputError, match=r"client_test = .* must be 'none', 'split', or a share"):
        make_plan(rows_of(np.eye(4)), task_of(4), TaskOptions(clients=2, client_test=share), 0)


@pytest.mark.parametrize("step", [1, 10**13])
def test_ids_of_rows_may_be_of_any_size(step):
    """Those of FLAIR are numbers of photographs, beyond 10^10."""
    rng = np.random.default_rng(0)
    y_NC = np.eye(6, dtype=bool)[np.arange(120) % 6] | (rng.random((120, 6)) < 0.2)
    o = TaskOptions(clients=0, partition="one_class", client_test="0.3", validation=0.0)
    small, large = (make_plan(rows_of(y_NC, np.arange(120) * k), task_of(6), o, 3) for k in (1, step))
    assert [len(test) for test in large.client_test] == [len(test) for test in small.client_test]
    assert all(len(test) for test in large.client_test)


def test_a_sequence_that_gives_a_row_back_gives_back_all():
    """A class whose rows were all drawn keeps its first row, and with it what belongs to that."""
    for seed in range(60):
        whole_N = np.repeat(np.arange(12), 3)
        y_NC = np.eye(6, dtype=bool)[np.repeat(np.arange(12) // 2, 3)]
        y_NC[:, 5] |= whole_N == 0
        o = TaskOptions(clients=0, partition="one_class", client_test="0.6", validation=0.0)
        plan = make_plan(rows_of(y_NC, np.arange(36), None, whole_N), task_of(6), o, seed)
        tests = np.concatenate(plan.client_test)
        trained = np.concatenate([client.rows for client in plan.clients])
        assert not np.isin(whole_N[tests], whole_N[trained]).any()
