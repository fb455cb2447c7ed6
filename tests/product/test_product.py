"""Every method on every toy task and partition: it trains, it repeats, and its result does not depend on the past."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.storage.saved_model import load_model
from anchorfl.pipeline.training.evaluation import logits_of
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.metrics.decisions import score
from tests.runs import quiet

TOYS = {"single": "toy-single", "multi": "toy-multi"}
PARTITIONS = ("k_classes", "dirichlet", "iid")
VARIANTS = [(name, {}) for name in METHODS] + [
    ("fedalign", {"alignment": False}),
    ("fedalign", {"semantic": False}),
    ("fedalign", {"alternating": False}),
    ("fedalign", {"anchor_score": "dot", "positive_f1_gate": 0.5, "q1": 90.0, "aggregate_pseudo": True}),
    ("fedalign", {"refresh": "epoch"}),
    ("fedavg", {"weighting": "uniform"}),
    ("fedproto", {"inference": "prototype"}),
    ("fedrep", {"evaluate_on": "clients", "head_epochs": 1}),
]
SINGLE_LABEL = {"fedbm", "fedetf", "fedgela", "fednh", "fedproto", "fedrod", "fedtsp"}
"""Methods whose softmax has no counterpart where classes do not exclude each other."""
MULTI_LABEL = {"fedlgt", "fedmlp"}
"""Methods that ask of each class by itself whether a row has it."""


@pytest.mark.parametrize(
    ("method", "options", "task"),
    [(m, o, TOYS[kind]) for m, o in VARIANTS for kind in METHODS[m].supports.kinds],
    ids=lambda v: str(v),
)
def test_every_method_trains_on_every_toy_task(experiment, finished_run, method, options, task):
    e = experiment(method, task, options=options)
    result = finished_run(e)
    assert 0 <= result.scores["test"]["f1_macro"] <= 1
    if e.method.evaluate_on == "clients":  # their models are theirs: tests/pipeline/run/test_own_scores.py
        records = read_records(result.folder)[0]
        assert records[-1].metrics["test/accuracy"] != records[0].metrics["test/accuracy"]
        assert not (result.folder / "model").exists()
        return
    start = make_run_spec(e, quiet).model().state_dict()
    end = load_file(result.folder / "model" / "weights.safetensors")
    assert end.keys() == start.keys()
    assert all(bool(torch.isfinite(w).all()) for w in end.values())
    assert any(not torch.equal(start[name], end[name]) for name in end)
    saved = load_model(result.folder / "model")
    rows = make_run_spec(e, quiet).data().split("test", saved.objective)
    again = score(saved.kind, saved.objective.predict(logits_of(saved.model, rows)), rows.y_NC, rows.known_NC)
    assert again.scores().values == result.scores["test"], "the saved model is the one that was scored"


def test_methods_for_one_kind_of_task_refuse_the_other(experiment, tmp_path):
    """In one line, before anything starts."""
    for kind, other, names in (("single", "multi", SINGLE_LABEL), ("multi", "single", MULTI_LABEL)):
        assert {name for name, method in METHODS.items() if method.supports.kinds == (kind,)} == names
        for name in names:
            with pytest.raises(InputError) as caught:
                run(experiment(name, TOYS[other]), tmp_path / name, quiet)
            said, _, others = str(caught.value).partition(": choose another method: ")
            assert said == f"method '{name}' is for {kind}-label tasks, and 'toy-{other}' is {other}-label"
            assert set(others.split(", ")) == METHODS.keys() - names
            assert not (tmp_path / name / "metrics.jsonl").exists()


@pytest.mark.parametrize("method", ["fedalign", "fedavg"])  # all of them: test_contract.py
@pytest.mark.parametrize("partition", PARTITIONS)
def test_two_runs_with_one_seed_give_one_checksum(experiment, finished_run, tmp_path, method, partition):
    e = experiment(method)
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition=partition))
    first, second = finished_run(e), run(e, tmp_path / "run", quiet)
    assert first.checksum == second.checksum
    assert first.scores == second.scores


def test_another_seed_gives_another_result(experiment, finished_run):
    assert finished_run(experiment(seed=1)).checksum != finished_run(experiment(seed=2)).checksum


@pytest.mark.usefixtures("pictures")
def test_a_run_leaves_what_the_docs_promise(experiment, tmp_path):
    run(experiment("fedalign"), tmp_path / "run", quiet)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert {
        "config.json",
        "metrics.jsonl",
        "per_class.csv",
        "report",
        "model",
        "result.json",
    } <= names
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3]
    about = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert len(about["class_names"]) == 4
    assert about["input"]["kind"] == "tokens"


def test_learning_happens(experiment, tmp_path):
    """On a task that is easy by construction the trained model beats the initial weights by far."""
    e = experiment("fedavg", federation={"rounds": 10, "clients_per_round": 4})
    run(e, tmp_path / "run", quiet)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["metrics"]["test/accuracy"] > records[0]["metrics"]["test/accuracy"] + 0.2
