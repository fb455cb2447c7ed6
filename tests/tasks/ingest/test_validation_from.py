"""Validation rows held out from every client, with the labels that the client has (FedAlign's code)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.raw_table import restrict_validation_labels
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import ClientPlan, PartitionPlan, plan_digest
from anchorfl.tasks.registry import find_task
from tests.tasks.federations import QUICK, rows_of, shuffled, stored, task_of

GROUPS = {"a": (0, 1), "b": (2,), "c": (3, 4, 5)}


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    y_NC = rng.random((draw(st.integers(60, 200)), 6)) < draw(st.sampled_from([0.15, 0.4]))
    y_NC[:48, :] |= np.eye(6, dtype=bool)[np.arange(48) % 6]
    chosen = TaskOptions(
        clients=3,
        partition=draw(st.sampled_from(["categories", "iid", "k_classes", "dirichlet"])),
        classes_per_client=3,
        validation=draw(st.sampled_from([0.0, 0.1, 0.25])),
        validation_from="clients",
    )
    return rows_of(y_NC, rng.permutation(len(y_NC)) + 5), task_of(6, GROUPS), chosen


@QUICK
@given(cases(), st.integers(0, 2**40))
def test_the_partition_comes_first_and_a_share_of_each_client_is_held_out(case, seed):
    rows, task, chosen = case
    plan = make_plan(rows, task, chosen, seed)
    whole = make_plan(rows, task, replace(chosen, validation=0.0, validation_from="server"), seed)
    assert (np.diff(plan.validation) > 0).all()
    assert len(plan.validation_client) == len(plan.validation)
    for number, (client, before) in enumerate(zip(plan.clients, whole.clients, strict=True)):
        held = plan.validation[plan.validation_client == number]
        assert len(held) == round(chosen.validation * len(before.rows))
        assert np.array_equal(np.sort(np.concatenate([client.rows, held])), before.rows)
        assert client.classes == before.classes
    assert plan_digest(make_plan(shuffled(rows, 1), task, chosen, seed)) == plan_digest(plan)
    again = stored(plan)
    assert plan_digest(again) == plan_digest(plan)
    assert np.array_equal(again.validation_client, plan.validation_client)


@QUICK
@given(cases(), st.integers(0, 2**40), st.sampled_from(["clients", "server"]))
def test_pieces_of_a_sequence_are_held_out_together(case, seed, where):
    """Nor does ``categories`` give them to two clients; as many sequences are held out as rows would be."""
    rows, task, chosen = case
    rng = np.random.default_rng(seed)
    count = len(rows.row_N)
    index_N = np.repeat(np.arange(count), rng.integers(1, 4, count))
    whole_N = rng.permutation(count)[index_N] + 3
    cut = rows_of(rows.labels.matrix()[index_N], rng.permutation(len(index_N)) + 5, None, whole_N)
    chosen = replace(chosen, partition="categories", validation_from=where)
    plan = make_plan(cut, task, chosen, seed)
    whole_of = dict(zip(cut.row_N.tolist(), whole_N.tolist(), strict=True))
    parts = [{whole_of[row] for row in own.tolist()} for own in [*(c.rows for c in plan.clients), plan.validation]]
    assert sum(len(part) for part in parts) == len(set(whole_N.tolist()))  # no sequence is in two of them
    if where == "server":
        assert len(parts[-1]) == round(chosen.validation * count)
    assert plan_digest(make_plan(shuffled(cut, 1), task, chosen, seed)) == plan_digest(plan)


@pytest.mark.parametrize("seed", range(5))
def test_what_a_client_holds_out_does_not_depend_on_labels_that_it_does_not_know(seed):
    """The rows of its unknown classes change labels among themselves, and the plan stays as it was."""
    class_N = np.random.default_rng(seed).integers(6, size=240)
    chosen = TaskOptions(clients=3, classes_per_client=2, validation=0.2, validation_from="clients")
    plan = make_plan(rows_of(np.eye(6)[class_N]), task_of(6), chosen, seed)
    mixed_N = class_N.copy()
    for number, own in enumerate(plan.clients):
        every = np.concatenate([own.rows, plan.validation[plan.validation_client == number]])
        hidden = every[~np.isin(class_N[every], own.classes)]
        mixed_N[hidden] = np.random.default_rng(seed + 1).permutation(class_N[hidden])
    assert (mixed_N != class_N).sum() > 50
    again = make_plan(rows_of(np.eye(6)[mixed_N]), task_of(6), chosen, seed)
    assert plan_digest(again) == plan_digest(plan)


@pytest.mark.parametrize("name", ["toy-multi", "toy-single"])
def test_the_file_of_the_server_holds_what_the_clients_knew(name, tmp_path):
    task = find_task(name)
    options = TaskOptions(name=name, clients=4, classes_per_client=2, validation=0.3, cache=str(tmp_path), min_count=1)
    theirs = replace(options, validation_from="clients")
    objective = Objective(task.kind)
    prepared, all_known = (prepare(task, o, 3, engine="local") for o in (theirs, options))
    plan, got = prepared.plan(), prepared.split("validation", objective)
    aware_MC = np.zeros((4, len(task.class_names)), dtype=bool)
    for client, own in enumerate(plan.clients):
        aware_MC[client, list(own.classes)] = True
    table = task.read(None, theirs)
    place = {row: i for i, row in enumerate(table["row"].to_pylist())}
    for i, (row, client) in enumerate(zip(plan.validation.tolist(), plan.validation_client.tolist(), strict=True)):
        y_C = np.zeros(len(task.class_names), dtype=bool)
        y_C[table["labels"][place[row]].as_py()] = True
        known_C = aware_MC[client]
        if task.kind == "single":
            known_C = np.full_like(known_C, bool((y_C & known_C).any()))
        assert np.array_equal(got.known_NC[i].numpy() > 0, known_C)
        assert np.array_equal(got.y_NC[i].numpy() > 0, y_C & known_C)
    assert not got.known_NC.all()
    assert all_known.split("validation", objective).known_NC.all()
    test, other = (p.split("test", objective) for p in (prepared, all_known))
    assert test.known_NC.all()
    assert np.array_equal(test.y_NC, other.y_NC)
    assert sum(prepared.manifest.examples) + prepared.manifest.validation == sum(place[r] >= 0 for r in place) - len(
        test
    )


@pytest.mark.parametrize(
    ("kind", "labels", "known", "left"),
    [
        ("single", [2], None, ([], [])),  # of a class that its client does not know: it cannot say what it is not
        ("single", [1], None, ([1], [0, 1])),
        ("single", [], [], ([], [])),
        ("multi", [2], None, ([], [0, 1])),  # the client says that it is of neither class
        ("multi", [0, 2], None, ([0], [0, 1])),
        ("multi", [2], [1, 2], ([], [1])),
    ],
)
def test_a_held_out_row_shows_what_its_client_knows_of_it(kind, labels, known, left):
    """Client 0 knows classes 0 and 1, client 1 the third; rows that are not held out stay as they are."""
    table = pa.table(
        {"row": [9, 2, 8, 5], "labels": [[1], labels, labels, [2]], "known": [None, known, known, None]},
        schema=pa.schema([("row", pa.int64()), *((n, pa.list_(pa.int32())) for n in ("labels", "known"))]),
    )
    of_clients = (ClientPlan(np.array([8]), (0, 1)), ClientPlan(np.array([9]), (2,)))
    plan = PartitionPlan(of_clients, np.array([2, 5]), 0, np.array([0, 1]))
    got, seen = restrict_validation_labels(table, Labels.of_lists(table["labels"], 3), plan, kind)
    assert got["row"].to_pylist() == [9, 2, 8, 5]
    assert got["labels"].to_pylist() == seen.lists().to_pylist() == [[1], left[0], labels, [2]]
    assert got["known"].to_pylist() == [None, left[1], known, [2]]


def test_one_class_and_a_share_that_leaves_a_client_nothing_are_refused():
    rows = rows_of(np.eye(4)[np.arange(20) % 4])
    chosen = TaskOptions(clients=4, partition="one_class", validation_from="clients", validation=0.1)
    with pytest.raises(InputError, match="validation_from = 'clients': with partition = 'one_class' a row sits"):
        make_plan(rows, task_of(4), chosen, 0)
    with pytest.raises(InputError, match=r"validation = 0\.9 takes"):
        make_plan(rows, task_of(4), replace(chosen, partition="iid", clients=2, validation=0.9), 0)


def test_it_is_refused_where_the_validation_rows_are_published():
    rows = rows_of(np.eye(4)[np.arange(20) % 4])
    chosen = TaskOptions(clients=2, partition="iid", validation_from="clients")
    with pytest.raises(InputError, match="validation_from = 'clients': made publishes its validation rows"):
        make_plan(rows, task_of(4), chosen, 0, np.array([1, 2]))
    assert (
        len(make_plan(rows, task_of(4), replace(chosen, validation_from="server"), 0, np.array([1, 2])).validation) == 2
    )


@pytest.mark.parametrize("partition", ["iid", "k_classes", "dirichlet"])
def test_clients_that_share_a_sequence_hold_none_of_it_out(partition):
    """Its pieces lie with several clients; what one holds out, another trains on. The server's share is whole."""
    rows = rows_of(np.eye(4)[np.arange(80) // 4 % 4], None, None, np.arange(80) // 4)
    chosen = TaskOptions(clients=4, classes_per_client=2, partition=partition, validation_from="clients", beta=10.0)
    with pytest.raises(InputError, match=f"partition = '{partition}' deals the pieces of a sequence"):
        make_plan(rows, task_of(4), chosen, 0)
    plan = make_plan(rows, task_of(4), replace(chosen, validation_from="server"), 0)
    assert len(set(plan.validation // 4)) * 4 == len(plan.validation) == 8
    with pytest.raises(InputError, match=r"validation = 0\.99 takes 20 of 20 sequences, but each of 4 classes"):
        make_plan(rows, task_of(4), replace(chosen, validation_from="server", validation=0.99), 0)
