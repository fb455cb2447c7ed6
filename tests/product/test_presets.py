"""Every shipped preset reads, says what it reproduces, and fits its task."""

from __future__ import annotations

import pytest

from pipeline.config import PRESETS, preset_names, read_preset
from pipeline.experiment import to_tree
from tasks import TASKS

EXPECTED = ["digits/fedalign", "digits/fedavg", "r8-8/fedalign", "r8-8/fedavg"]


def test_all_presets_are_seen():
    assert preset_names() == EXPECTED
    assert len(list(PRESETS.rglob("*.toml"))) == len(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_preset(name):
    e = read_preset(name)
    assert e.task.name in TASKS
    assert to_tree(e)["method"]["name"] == name.split("/")[1]
    opening = (PRESETS / f"{name}.toml").read_text().splitlines()[:2]
    assert all(line.startswith("# ") for line in opening), "a preset opens with what it reproduces and what it costs"


def test_compared_presets_differ_in_the_method_alone():
    """The two rows of one table share task, network, rounds and mini-batches."""
    for folder in ("digits", "r8-8"):
        one, other = read_preset(f"{folder}/fedavg"), read_preset(f"{folder}/fedalign")
        assert (one.task, one.federation, one.evaluation) == (other.task, other.federation, other.evaluation)
        assert one.optimizer.batch_size == other.optimizer.batch_size
        assert (one.model.width, one.model.dropout) == (other.model.width, other.model.dropout)
