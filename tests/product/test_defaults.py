"""A digest covers what differs from the defaults; these are held here, and a changed one needs a new epoch."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from anchorfl.pipeline.config.experiment import EPOCH, Experiment, digest
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.tasks.options import TaskOptions

HELD = Path(__file__).parent / "defaults.json"


def defaults(node, prefix):
    """Return the default of every option by its full name."""
    out = {}
    for f in fields(node):
        value = getattr(node, f.name)
        out |= defaults(value, f"{prefix}{f.name}.") if is_dataclass(value) else {f"{prefix}{f.name}": value}
    return out


def now():
    out = {k: v for k, v in defaults(Experiment(method=FedAvg()), "").items() if not k.startswith("method.")}
    for name, method in METHODS.items():
        out |= defaults(method(), f"method:{name}.")
    return json.loads(json.dumps(out))


def test_defaults_are_those_of_the_epoch():
    """To mend a failure: a new option goes into defaults.json; a CHANGED default also needs EPOCH + 1 in
    pipeline/config/experiment.py, or that of a method a higher ``revision`` there, and a line under Numbers in
    CHANGELOG.md: ``python -m tests.product.test_defaults`` writes the file anew.
    """
    held = json.loads(HELD.read_text())
    assert held["epoch"] == EPOCH
    assert now() == held["defaults"]


def test_methods_with_equal_options_have_digests_of_their_own():
    assert len({digest(Experiment(method=method())) for method in METHODS.values()}) == len(METHODS)


def test_a_higher_revision_of_a_method_is_another_experiment(monkeypatch):
    e = Experiment(method=FedAvg())
    before = digest(e)
    monkeypatch.setattr(FedAvg, "revision", 2)
    assert digest(e) != before


@pytest.mark.parametrize(
    ("task", "differs"),
    [(TaskOptions(name="r8"), False), (TaskOptions(name="scene"), True), (TaskOptions(file="own.csv"), True)],
)
def test_a_revision_of_several_labels_alone_leaves_experiments_with_one_as_they_are(monkeypatch, task, differs):
    e = Experiment(method=FedAvg(), task=task)
    before = digest(e)
    monkeypatch.setattr(FedAvg, "revision", 2)
    monkeypatch.setattr(FedAvg, "single_label_revision", 1)
    assert (digest(e) != before) == differs


if __name__ == "__main__":
    HELD.write_text(json.dumps({"epoch": EPOCH, "defaults": now()}, indent=1, sort_keys=True) + "\n")
