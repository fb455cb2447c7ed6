"""Scores on clients' own test rows, from a run's options to its records."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.results.client_scores import ClientScore, read_client_scores, spread, write_client_scores
from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.results.run_page import run_page
from anchorfl.pipeline.results.run_view import Run
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.storage.saved_model import load_model
from anchorfl.pipeline.training.evaluation import decisions_of
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.registry import find_task
from tests.runs import quiet

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
