"""The worked examples of the documentation, taken from their pages and run."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import tasks
from models.build import ModelOptions
from pipeline import tree
from pipeline.executor import SerialExecutor
from pipeline.experiment import ClusterOptions, Experiment, FederationOptions
from pipeline.methods.fedavg import FedAvg
from pipeline.optimizers import OptimizerOptions
from pipeline.run import make_setup
from tasks.contract import InputError, Objective, TaskOptions
from tasks.ingest import prepare

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The module of the code block that follows ``<!-- example: name -->`` in a page."""

    def load(page, name):
        text = (DOCS / page).read_text(encoding="utf-8")
        found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
        assert found, f"{page} has no example {name}"
        file = tmp_path / f"docs_{name}.py"
        file.write_text(found[1], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, file.stem, module)
        spec.loader.exec_module(module)
        return module

    return load


def weights_after_a_round(method, cache):
    experiment = Experiment(
        task=TaskOptions(name="toy-single", clients=4, classes_per_client=2, cache=str(cache)),
        method=method,
        model=ModelOptions(width=16, heads=2, feedforward=16),
        federation=FederationOptions(rounds=1, clients_per_round=2, epochs=1),
        optimizer=OptimizerOptions(batch_size=16),
        cluster=ClusterOptions(executor="serial"),
    )
    executor = SerialExecutor(make_setup(experiment, lambda _: None))
    executor.round(1, [0, 2], lambda *_: None)
    return executor.snapshot()


def test_fedprox_of_the_page_without_its_pull_is_fedavg(example, tmp_path):
    prox = example("adding-a-method.md", "fedprox").FedProx
    plain = weights_after_a_round(FedAvg(), tmp_path)
    assert tree.checksum(weights_after_a_round(prox(mu=0.0), tmp_path)) == tree.checksum(plain)
    pulled = weights_after_a_round(prox(mu=1.0), tmp_path)
    assert tree.checksum(pulled) != tree.checksum(plain)
    with pytest.raises(ValueError, match=r"method\.mu = -1: must be at least 0"):
        prox(mu=-1)


def test_gestures_of_the_page_are_prepared_and_a_bad_line_is_named(example, tmp_path, monkeypatch):
    module = example("adding-a-data-set.md", "gestures")
    monkeypatch.setitem(tasks.TASKS, "gestures", module.gestures)
    numbers = ",".join(["9.81"] * 30)
    lines = [f"{split},{name},{numbers}" for split in ("train", "test") for name in module.CLASSES for _ in range(10)]
    file = tmp_path / "gestures.csv"
    file.write_text("\n".join(lines) + "\n")
    options = TaskOptions(
        name="gestures", clients=2, classes_per_client=2, root=str(tmp_path), cache=str(tmp_path / "c")
    )
    prepared = prepare(module.gestures(), options, 0, engine="local")
    rows = prepared.split("test", Objective("single"))
    assert torch.equal(rows.x, torch.ones(30, 10, 3))
    for bad, message in [
        (f"train,swip,{numbers}", r"unknown class 'swip' \(did you mean 'swipe'\?\)"),
        ("train,swipe,1,2", "write train or test, a class and 30 numbers"),
        ("", "write train or test, a class and 30 numbers"),
        (f"train,swipe,x{numbers}", "could not convert"),
    ]:
        file.write_text("\n".join([*lines, bad]) + "\n")
        with pytest.raises(InputError, match=rf"gestures\.csv:61: .*{message}"):
            prepare(module.gestures(), options, 0, engine="local")
