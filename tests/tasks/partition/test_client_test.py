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
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import plan_digest
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


@pytest.mark.parametrize("share", ["0", "1", "1.5", "nan", "half"])
def test_a_bad_share_is_refused(share):
    with pytest.raises(InputError, match=r"client_test = .* must be 'none', 'split', or a share"):
        make_plan(rows_of(np.eye(4)), task_of(4), TaskOptions(clients=2, client_test=share), 0)
