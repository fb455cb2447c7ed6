"""What clients identify: any rule beside any partition, class sets that a user gives, classes left to nobody."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import JsonText, TaskOptions, json_text
from anchorfl.tasks.partition.client_classes import _class_number, read_client_classes, sets_of_seed
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import plan_digest
from tests.tasks.federations import QUICK, plan_of, rows_of, task_of

BALANCED = np.eye(4, dtype=bool)[np.arange(80) % 4]
SUBJECT_N = np.array(["ann", "bob", "eve"])[np.arange(80) // 4 % 3]


def subjects_plan(seed=0, y_NC=BALANCED, **options):
    """Make a plan of whole subjects."""
    rows = rows_of(y_NC, subject_N=SUBJECT_N[: len(y_NC)])
    chosen = TaskOptions(clients=3, partition="subjects", validation=0, **options)
    return make_plan(rows, task_of(y_NC.shape[1], subjects="user"), chosen, seed)


def sets(plan):
    return [client.classes for client in plan.clients]


@QUICK
@given(
    st.sampled_from(["k_classes", "iid", "dirichlet", "subjects", "categories"]),
    st.sampled_from(["partition", "k_classes", "held", "all"]),
    st.integers(1, 3),
    st.integers(0, 2**40),
)
def test_any_rule_goes_beside_any_partition_of_rows(partition, rule, k, seed):
    y_NC = BALANCED | (np.random.default_rng(seed).random(BALANCED.shape) < 0.1)
    options = TaskOptions(clients=3, partition=partition, beta=10.0, validation=0, identified=rule, cover="any")
    options = replace(options, classes_per_client=k)
    rows = rows_of(y_NC, subject_N=SUBJECT_N)
    task = task_of(4, groups={"a": [0, 1], "b": [2], "c": [3]}, subjects="user")
    plan = make_plan(rows, task, options, seed)
    base_rule = "partition" if partition != "k_classes" else "all"
    base = make_plan(rows, task, replace(options, identified=base_rule), seed)
    for client, same in zip(plan.clients, base.clients, strict=True):
        assert np.array_equal(client.rows, same.rows)
        held = np.flatnonzero(y_NC[client.rows].any(0)).tolist()
        if rule == "k_classes" or (rule == "partition" and partition == "k_classes"):
            assert len(client.classes) == min(k, len(held))
            assert set(client.classes) <= set(held)
        elif rule == "held":
            assert list(client.classes) == held
        elif rule == "all":
            assert client.classes == (0, 1, 2, 3)
        else:
            assert client.classes == same.classes


def test_k_classes_is_iid_with_k_random_classes():
    for seed in range(5):
        one = plan_of(BALANCED, TaskOptions(clients=3, classes_per_client=2), seed)
        two = plan_of(
            BALANCED, TaskOptions(clients=3, classes_per_client=2, partition="iid", identified="k_classes"), seed
        )
        assert sets(one) == sets(two)
        assert all(np.array_equal(a.rows, b.rows) for a, b in zip(one.clients, two.clients, strict=True))


def test_the_draw_without_a_redraw_is_uniform_over_subsets_of_its_own_classes():
    options = TaskOptions(clients=1, classes_per_client=2, cover="any", validation=0)
    drawn = [sets(plan_of(BALANCED, options, seed))[0] for seed in range(1200)]
    counts = [drawn.count(pair) for pair in sorted(set(drawn))]
    assert len(counts) == 6
    assert sum((n - 200) ** 2 / 200 for n in counts) < 20.5  # chi-square, 5 degrees of freedom, p = 0.001


GIVEN = [["class0", "class2"], ["1"], [3, "class0"]]


@pytest.mark.parametrize(
    "value",
    [
        GIVEN,
        {"2": [3, "class0"], "0": ["class2", "class0"], "1": [1]},
        {"7": GIVEN, "8": [["class0"], ["class0"], ["class0"]]},
        {"7": {"0": [0, 2], "1": [1], "2": [0, 3]}},
        {"ann": [0, 2], "eve": [3, 0], "bob": [1]},
    ],
)
def test_every_form_gives_the_same_sets(value):
    plan = subjects_plan(7, client_classes=json_text(value))
    assert sets(plan) == [(0, 2), (1,), (0, 3)]
    drawn = subjects_plan(7)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(plan.clients, drawn.clients, strict=True))


def test_a_number_that_is_the_name_of_another_class_is_asked_about():
    """Labels 1, 2, 3 of a table: is 1 the first class, or the one called so?"""
    assert _class_number(1, ["0", "1", "2"], 0) == _class_number("1", ["0", "1", "2"], 0) == 1
    assert _class_number("1", ["1", "2", "3"], 0) == 0
    with pytest.raises(
        InputError, match=r'client 4: 1 is the number of the class 2, and the name of another: write "1"'
    ):
        _class_number(1, ["1", "2", "3"], 4)


@pytest.mark.parametrize("partition", ["k_classes", "iid", "dirichlet"])
def test_sets_are_given_for_any_partition(partition):
    options = TaskOptions(
        clients=3, partition=partition, beta=10.0, validation_from="clients", client_classes=json_text(GIVEN)
    )
    plan = plan_of(BALANCED, options, 7)
    assert sets(plan) == [(0, 2), (1,), (0, 3)]


def test_categories_deal_the_rows_by_the_given_sets():
    """A row goes to the client that was given its rarest class; so each class needs one client."""
    y_NC = BALANCED | (np.random.default_rng(0).random(BALANCED.shape) < 0.2)
    task = task_of(4, groups={"a": [0, 1], "b": [2, 3]})
    options = TaskOptions(clients=2, partition="categories", validation=0, client_classes=json_text([[0, 3], [1, 2]]))
    plan = make_plan(rows_of(y_NC), task, options, 7)
    swapped = task_of(4, groups={"a": [0, 3], "b": [1, 2]})
    drawn = make_plan(rows_of(y_NC), swapped, replace(options, client_classes=JsonText("")), 7)
    assert plan_digest(plan) == plan_digest(drawn)
    assert sets(plan) == [(0, 3), (1, 2)]
    for wrong in ([[0, 3], [1]], [[0, 3], [1, 2, 0]]):
        with pytest.raises(InputError, match="has no client, or several, and with partition = 'categories'"):
            make_plan(rows_of(y_NC), task, replace(options, client_classes=json_text(wrong)), 7)


def test_classes_that_are_too_rare_may_be_named():
    task = replace(task_of(4), dropped=("rare", "rarer"))
    options = TaskOptions(clients=2, validation=0, client_classes=json_text([["rare", 0, 1], ["class2", "class3"]]))
    assert sets(make_plan(rows_of(BALANCED), task, options, 0)) == [(0, 1), (2, 3)]
    with pytest.raises(InputError, match="client 0 would identify nothing, since min_positives leaves out rare, rarer"):
        make_plan(
            rows_of(BALANCED), task, replace(options, client_classes=json_text([["rare", "rarer"], [0, 1, 2, 3]])), 0
        )


def test_a_seed_without_sets_is_drawn():
    options = TaskOptions(clients=3, classes_per_client=2)
    with_sets = replace(options, client_classes=json_text({"7": GIVEN}))
    assert sets(plan_of(BALANCED, with_sets, 8)) == sets(plan_of(BALANCED, options, 8))
    assert sets(plan_of(BALANCED, with_sets, 7)) == [(0, 2), (1,), (0, 3)]


def test_a_class_left_to_nobody_needs_cover_any():
    one = json_text([[0], [1], [2, 1]])
    for cover in ("redraw", "error"):
        with pytest.raises(InputError, match=r"'class3' is identified by no client: .* set \[task\] cover = 'any'"):
            subjects_plan(client_classes=one, cover=cover)
    assert sets(subjects_plan(client_classes=one, cover="any")) == [(0,), (1,), (1, 2)]
    drawn = plan_of(BALANCED, TaskOptions(clients=1, classes_per_client=3, cover="any"), 0)
    assert len(sets(drawn)[0]) == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[0], [1]], "has 2 lists, and there are 3 clients"),
        ([[0], [1], ["clas2"]], r"client 2: no class 'clas2' \(did you mean 'class2'\?\); there are class0"),
        ([[0], [1], [4]], "client 2: no class 4;"),
        ([[0], [1], [-1]], "client 2: no class -1;"),
        ([[0], [1], [2, "class2"]], "client 2 has 'class2' twice"),
        ([[0], [1], []], "at least one a client"),
        ([[0], [1], [True]], "names or numbers of classes"),
        ([[0], [1], 2], "it takes"),
        ({"0": [0], "1": [1]}, "no classes for client 2; give each"),
        ({"0": [0], "1": [1], "4": [2]}, "no client '4'"),
        ({"0": [0], "ann": [1], "4": [2]}, r"no client '0'; there are ann, bob, eve"),
        ({"0": [[0], [1], [2]], "one": [[0], [1], [2]]}, "'one' is no seed"),
        ({"9" * 5000: [[0], [1], [2]]}, "is no seed"),
        ([["9" * 5000], [1], [2]], "client 0"),
        ({}, "it takes"),
        ([], "it takes"),
    ],
)
def test_sets_that_do_not_fit_are_refused(value, message):
    with pytest.raises(InputError, match=message):
        subjects_plan(client_classes=json_text(value), cover="any")


def test_one_class_has_sets_of_its_own():
    for options in ({"identified": "held"}, {"client_classes": json_text(GIVEN)}):
        with pytest.raises(InputError, match="every client identifies the class that it stands for"):
            plan_of(BALANCED, TaskOptions(clients=4, partition="one_class", validation=0, **options), 0)


def test_files_give_the_same_text_as_the_option(tmp_path):
    by_name = {"0": ["a b", "c"], "1": ["c"]}
    (tmp_path / "sets.json").write_text(json.dumps(by_name, indent=2))
    (tmp_path / "sets.csv").write_text("class, client\na b,0\nc,0\nc,1\n", encoding="utf-8-sig")
    (tmp_path / "seeds.csv").write_text("seed,client,class\n7,0,a b\n7,0,c\n7,1,c\n8,0,c\n8,1,c\n")
    text = read_client_classes("sets.json", tmp_path)
    assert text == read_client_classes("sets.csv", tmp_path) == read_client_classes(json.dumps(by_name), tmp_path)
    assert read_client_classes(str(tmp_path / "sets.csv"), tmp_path / "elsewhere") == text
    assert sets_of_seed(read_client_classes("seeds.csv", tmp_path), 7) == json.loads(text)
    assert sets_of_seed(read_client_classes("seeds.csv", tmp_path), 9) is None
    for seeds in ("seed,client,class\n07,0,a b\n07,0,c\n07,1,c\n", json.dumps({"07": by_name})):
        (tmp_path / "zeros.csv").write_text(seeds)
        given = read_client_classes("zeros.csv" if seeds[0] == "s" else seeds, tmp_path)
        assert sets_of_seed(given, 7) == json.loads(text)
    with pytest.raises(InputError, match="at least one a client"):
        sets_of_seed(json_text({"north": [], "south": []}), 7)
    assert read_client_classes("", tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sets.txt", b"", "a .json or .csv file, or JSON"),
        ("sets.json", None, r"sets\.json cannot be read \(No such file"),
        ("sets.json", b"[[1,", r"sets\.json: no JSON .*it takes"),
        ("sets.csv", b"client,klass\n0,a\n", "columns client, klass; it needs client and class, and may have seed"),
        ("sets.csv", b"", "columns none; it needs"),
        ("sets.csv", b"client,class\n", "no line below the heads"),
        ("sets.csv", b"client,class\n0,a\n1\n", r"sets\.csv:3: must have one value for each of client, class"),
        ("sets.csv", b"client,class\n0,a,b\n", r"sets\.csv:2: must have one value"),
        ("sets.csv", b"client,class\n0,\xff\n", "not UTF-8"),
        ("sets.csv", b'client,class\n0,"a\n', r"sets\.csv: no CSV \(unexpected end of data\)"),
        ("sets.csv", b"client,class\n0," + b"a" * 200_000, r"sets\.csv: no CSV \(field larger than field limit"),
        ("sets.json", b'{"0": ["a"], "0": ["b"]}', r"sets\.json: '0' stands there twice"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_client_classes(name, tmp_path)


def test_a_record_names_no_file_to_be_read():
    with pytest.raises(InputError, match="a file is read when a run begins"):
        sets_of_seed(JsonText("sets.csv"), 0)
