"""The worked examples of the documentation, taken from their pages: run, or held equal to what ships."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import anchorfl.tasks.registry
from anchorfl.pipeline import methods
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.methods import fedprox
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import resolve_options
from anchorfl.pipeline.training.class_vectors import concept_request
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from tests.runs import quiet
from tests.tiny_bert import saved_bert

DOCS = Path(__file__).parents[2] / "docs"


def block(page, name, language="python"):
    """Return the code block that follows ``<!-- example: name -->`` in a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- example: {name} -->\n```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"{page} has no example {name}"
    return found[1]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Load the module of a code block."""

    def load(page, name):
        file = tmp_path / f"docs_{name}.py"
        file.write_text(block(page, name), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, file.stem, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_fedprox_of_the_page_is_the_one_that_ships():
    """Its behavior is tested in tests/pipeline/methods/test_fedprox.py."""
    assert block("adding-a-method.md", "fedprox") == Path(fedprox.__file__).read_text(encoding="utf-8")


def test_registry_of_the_page_is_the_one_that_ships():
    assert block("adding-a-method.md", "registry") in Path(methods.__file__).read_text(encoding="utf-8")


def test_preset_of_the_page_is_digits_with_another_method(tmp_path):
    file = tmp_path / "prox.toml"
    file.write_text(block("adding-a-method.md", "preset", "toml"), encoding="utf-8")
    base = read_preset("digits/fedavg")
    method = fedprox.FedProx(mu=0.001, weighting="uniform")
    assert read_preset(str(file)) == dataclasses.replace(base, method=method)


def test_one_class_preset_of_the_page_runs(tmp_path):
    """On the toy task in place of scene, whose files are the reader's."""
    file = tmp_path / "scene-fedalc.toml"
    file.write_text(block("methods/fedalc.md", "preset", "toml"), encoding="utf-8")
    e = read_preset(str(file))
    assert (e.task.name, e.method.name) == ("scene", "fedalc")
    e = dataclasses.replace(
        e, task=dataclasses.replace(e.task, name="toy-multi"), tracking=TrackingOptions(uri="none"),
        federation=dataclasses.replace(e.federation, rounds=2), cluster=ClusterOptions(executor="serial"),
    )  # fmt: skip
    result = run(resolve_options(e, quiet), tmp_path / "run", quiet)
    assert 0 < result.scores["test"]["p_at_1"] <= 1


def test_robust_merges_of_the_page_withstand_somebody(tmp_path):
    """Options that could not would be refused here."""
    file = tmp_path / "one-class.toml"
    file.write_text(block("robust-aggregation.md", "one-class", "toml"), encoding="utf-8")
    e = read_preset(str(file))
    for merge in ("median", "trimmed_mean", "krum"):
        assert (
            dataclasses.replace(e, federation=dataclasses.replace(e.federation, aggregation=merge)).task.clients == 10
        )


def test_concepts_of_the_page_are_what_a_run_asks_for(example, experiment, tmp_path):
    model = saved_bert(tmp_path)
    file = example("concepts.md", "concepts").write("digits", str(model), tmp_path / "out")
    e = experiment("fedavg", "digits", class_embeddings={"encoder": str(model)})
    asked = concept_request(e, find_task("digits").class_names)
    assert file == asked.file(tmp_path / "out")
    assert file.is_file()


def test_gestures_of_the_page_are_prepared_and_a_bad_line_is_named(example, tmp_path, monkeypatch):
    module = example("adding-a-data-set.md", "gestures")
    monkeypatch.setitem(anchorfl.tasks.registry.TASKS, "gestures", module.gestures)
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
