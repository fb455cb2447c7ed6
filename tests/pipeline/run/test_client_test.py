"""Scores on clients' own test rows, from a run's options to its records."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.results.client_scores import ClientScore, read_client_scores, spread, write_client_scores
from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.results.run_page import run_page
from anchorfl.pipeline.results.run_view import Run
from anchorfl.pipeline.run.client_test import score_clients
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec, resolve_options
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.storage.saved_model import load_model
from anchorfl.pipeline.training.client_test import ClientTest
from anchorfl.pipeline.training.evaluation import decisions_of, evaluate
from anchorfl.tasks.contract import ClientData, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from tests.pipeline import compared
from tests.runs import nobody, quiet

SHORT = {"rounds": 2, "epochs": 1}


def own_tests(experiment, method="fedavg", task="toy-single", options=None, validation=0.0, **sections):
    e = experiment(method, task, options=options, federation=SHORT)
    e = replace(e, task=replace(e.task, client_test="0.3", validation=validation))
    return replace(e, **{name: replace(getattr(e, name), **values) for name, values in sections.items()})


def test_each_client_is_scored_by_the_saved_model_on_its_rows_alone(experiment, tmp_path):
    e = own_tests(experiment)
    run(e, tmp_path / "r", quiet)
    shown = Run(tmp_path / "r")
    model = load_model(tmp_path / "r" / "model").model
    table = shown.per_client()
    assert list(table.columns) == ["rows", "f1_macro", "accuracy"]
    for client in range(4):
        rows = shown.data.client_test(client, Objective("single"))
        decisions = decisions_of(model, rows, Objective("single"))
        assert table.loc[client].tolist() == [len(rows), decisions.macro_f1, decisions.accuracy]
    assert table["accuracy"].nunique() > 1
    of_clients = json.loads((tmp_path / "r" / "result.json").read_text())["client_test"]
    f1 = table["f1_macro"].to_numpy()
    expected = {"mean": f1.mean(), "worst": f1.min(), "p10": np.percentile(f1, 10), "sd": f1.std()}
    assert of_clients["f1_macro"] == {"clients": 4.0, **expected}
    final = read_records(tmp_path / "r" / "final_scores")[0][0]
    assert (final.round, final.metrics["client_test/f1_macro_worst"]) == (2, f1.min())
    got = compare([tmp_path / "r"], tmp_path / "compared")
    assert got.to_dicts()[0]["f1_clients_worst"] == f1.min()
    worst = f"{100 * f1.min():.2f}"
    assert "F1 worst" in got.text
    assert worst in got.text
    lines = (tmp_path / "compared" / "comparison.csv").read_text().splitlines()
    assert next(csv.DictReader(lines))["f1_clients_worst_percent"] == worst
    page = run_page([tmp_path / "r"])
    assert page.count("<h2>Clients</h2>") == 1
    assert page.index("10th percentile") < page.index(worst)


def test_each_clients_own_model_is_scored_on_its_rows_with_one_thread(experiment):
    """FedRep: the mean body with the client's head, or the first one. The process's threads are then as they were."""
    e = own_tests(experiment, "fedrep", options={"evaluate_on": "clients", "head_epochs": 2})
    run_spec = make_run_spec(e, quiet)
    executor, model, asked = SerialExecutor(run_spec), run_spec.model(), []
    first = {k: v.clone() for k, v in model.state_dict().items() if k.startswith("head.")}
    executor.round(1, [1, 3], nobody)

    def memory(client):
        asked.append((client, torch.get_num_threads()))
        return executor.memory(client)

    torch.set_num_threads(3)
    got = score_clients(run_spec, executor.snapshot(), memory)
    assert torch.get_num_threads() == 3
    assert asked == [(client, 1) for client in range(4)]
    body = {k.removeprefix("weights/"): v for k, v in executor.snapshot().items()}
    for client, score in enumerate(got):
        kept = executor.memory(client).items()
        head = {k.removeprefix("personal."): v for k, v in kept if k.startswith("personal.")} or first
        rows = run_spec.data().client_test(client, Objective("single"))
        decisions = evaluate(model, body | head, rows, Objective("single"))
        scores = {"f1_macro": decisions.macro_f1, "accuracy": decisions.accuracy}
        assert score == ClientScore(client, "", len(rows), scores)
    assert len({score.values["f1_macro"] for score in got}) > 1


def test_threads_are_as_they_were_where_a_memory_is_lost(experiment):
    def lost(client):
        raise OSError("it is gone")

    run_spec = make_run_spec(own_tests(experiment, "fedproto"), quiet)
    state = SerialExecutor(run_spec).snapshot()
    torch.set_num_threads(2)
    with pytest.raises(OSError, match="it is gone"):
        score_clients(run_spec, state, lost)
    assert torch.get_num_threads() == 2


def test_a_client_without_test_rows_has_no_scores_and_its_model_is_not_asked_for(experiment, tmp_path):
    """Bob has one row, which he trains on; names come from the table."""
    lines = ["x,y,who,part", *(f"{i % 2},{'ab'[i % 2]},{who},train" for who in ("ann", "cid") for i in range(10))]
    lines += ["1,b,bob,train", "0,a,ann,test"]
    (tmp_path / "own.csv").write_text("\n".join([*lines, ""]))
    e = own_tests(experiment, "fedproto")
    task = TaskOptions(
        file=str(tmp_path / "own.csv"), label_columns="y", client_column="who", split_column="part",
        validation=0.0, client_test="0.3", cache=str(tmp_path / "cache"),
    )  # fmt: skip
    e = resolve_options(replace(e, task=task, federation=replace(e.federation, clients_per_round=0)), quiet)
    run_spec, asked = make_run_spec(e, quiet), []
    got = score_clients(run_spec, SerialExecutor(run_spec).snapshot(), lambda client: asked.append(client) or {})
    assert [(score.name, score.rows, bool(score.values)) for score in got] == [
        ("ann", 3, True), ("bob", 0, False), ("cid", 3, True)
    ]  # fmt: skip
    assert asked == [0, 2]


ALL = ["f1_macro", "accuracy", "precision_macro", "recall_macro", "auc", "sum"]


@pytest.mark.parametrize(
    ("classes", "known", "names"),
    [
        ([0, 2, 2, 2], [1, 1, 1, 1], ALL),
        ([2, 2, 2, 2], [1, 1, 1, 1], ALL[:4]),
        ([0, 2, 2, 2], [0, 1, 1, 1], ALL[:4]),
        ([0, 2, 2, 2], [0, 0, 0, 0], []),
    ],
    ids=["two classes", "one class", "one known class", "nothing known"],
)
def test_auc_needs_known_rows_of_two_classes(classes, known, names):
    """The others are there with one; the accuracy is that of the rows whose class is known."""
    y_NC = torch.eye(compared.C, dtype=torch.float64)[classes]
    known_NC = torch.tensor(known, dtype=torch.float64)[:, None].expand(y_NC.shape)
    rows = ClientData(compared.rows_of()[1].x[:4], y_NC, known_NC, known_NC)
    data = SimpleNamespace(client_test=lambda client, objective: rows)
    model = compared.dense()
    got = ClientTest(data, Objective("single"), "classification").scores(model, 0)
    assert list(got) == names
    if names:
        guess_N = compared.logits(compared.arrays(model.state_dict()), rows.x.numpy()).argmax(1)
        right = [guess == class_ for guess, class_, is_known in zip(guess_N, classes, known, strict=True) if is_known]
        assert got["accuracy"] == np.mean(right)


def test_the_option_alone_changes_data_and_digest_and_without_it_nothing_is_written(experiment, tmp_path):
    e = own_tests(experiment)
    off = replace(e, task=replace(e.task, client_test="none"))
    assert digest(e) != digest(off)
    run(off, tmp_path / "r", quiet)
    assert not (tmp_path / "r" / "client_scores.csv").exists()
    assert "client_test" not in json.loads((tmp_path / "r" / "result.json").read_text())
    assert "<h2>Clients</h2>" not in run_page([tmp_path / "r"])
    with pytest.raises(InputError, match=r"no scores by client: set --task\.client_test"):
        Run(tmp_path / "r").per_client()
    never = replace(e, evaluation=replace(e.evaluation, test="never"))
    run(never, tmp_path / "never", quiet)
    assert not (tmp_path / "never" / "client_scores.csv").exists()  # a trial of a sweep may not see test rows


METHODS = [
    ("fedavg", None, {"validation": 0.2, "evaluation": {"model_selection": "best_validation", "test": "last"}}),
    ("fedrep", {"evaluate_on": "clients", "head_epochs": 1}, {}),
    ("fedproto", {"inference": "prototype"}, {}),
    ("fedavg", None, {"task": "toy-multi", "evaluation": {"metrics": "ranking"}}),
    ("fedavg", None, {"evaluation": {"metrics": "classification"}}),
]


@pytest.mark.parametrize(("method", "options", "sections"), METHODS)
def test_serial_and_forked_give_the_same_bytes(experiment, tmp_path, method, options, sections):
    e = own_tests(experiment, method, options=options, **sections)
    run(e, tmp_path / "serial", quiet)
    run(replace(e, cluster=replace(e.cluster, executor="forked")), tmp_path / "forked", quiet)
    serial, forked = ((tmp_path / name / "client_scores.csv").read_bytes() for name in ("serial", "forked"))
    assert serial == forked
    table = Run(tmp_path / "serial").per_client()
    assert (table["rows"] > 0).all()
    assert table.iloc[:, 1].nunique() > 1


def test_one_class_clients_in_batched_rounds_and_one_by_one(experiment, tmp_path):
    """A row of several classes sits with several clients; as a test row it is trained on by none of them."""
    e = own_tests(
        experiment, "fedalc", "toy-multi", model={"dropout": 0.0},
        optimizer={"name": "sgd", "momentum": 0.0, "batch_size": 0, "weight_decay": 0.0},
    )  # fmt: skip
    classes = len(find_task("toy-multi").class_names)
    e = replace(e, task=replace(e.task, partition="one_class", clients=classes))
    tables = []
    for batched in (True, False):
        federation = replace(e.federation, clients_per_round=classes, batched_clients=batched)
        run(replace(e, federation=federation), tmp_path / str(batched), quiet)
        tables.append(Run(tmp_path / str(batched)).per_client())
    assert (tables[0]["rows"] > 0).all()
    assert np.allclose(*tables)


def test_own_networks_of_an_earlier_round_are_refused(experiment):
    with pytest.raises(ValueError, match=r"task\.client_test scores the clients' own models of fedproto"):
        own_tests(experiment, "fedproto", validation=0.2, evaluation={"model_selection": "best_validation"})


def test_the_spread_counts_clients_that_have_a_score(tmp_path):
    scores = [
        ClientScore(0, "a,b", 5, {"accuracy": 1.0}),
        ClientScore(1, "", 0),
        ClientScore(2, "", 3, {"accuracy": 0.5}),
    ]
    assert spread(scores) == {"accuracy": {"clients": 2.0, "mean": 0.75, "worst": 0.5, "p10": 0.55, "sd": 0.25}}
    write_client_scores(tmp_path, scores)
    assert read_client_scores(tmp_path) == scores


HEAD = "client,name,rows,accuracy\n"


@pytest.mark.parametrize(
    "text", ["", "a,b\n", f"{HEAD}0,,3\n", f"{HEAD}0,,3,nan\n", "client,name,rows,evil\n", f'{HEAD}"0', "\xff"]
)
def test_a_damaged_file_is_one_line(tmp_path, text):
    (tmp_path / "client_scores.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"client_scores\.csv is damaged"):
        read_client_scores(tmp_path)
