"""Runs in which nobody identifies some class: it is named, scored apart, kept in macro F1; on Ray the same bits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import resolve_options
from anchorfl.pipeline.storage.run_folder import CONFIG
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.evaluation import score_logits, with_f1_uncovered
from anchorfl.tasks.contract import ClientData, Objective
from anchorfl.tasks.options import json_text
from anchorfl.tasks.registry import find_task
from anchorfl.testing import stopped_before
from tests.runs import quiet


def without(experiment, method, task, missing, **task_options):
    """Return an experiment in which no client identifies the class of a number."""
    e = experiment(method, task)
    others = [c for c in range(len(find_task(task).class_names)) if c != missing]
    sets = [others[:2], others[1:], others] * e.task.clients
    options = {"client_classes": json_text(sets[: e.task.clients]), "cover": "any", **task_options}
    return replace(e, task=replace(e.task, **options))


@pytest.mark.parametrize(
    ("method", "task"),
    [
        ("fedalign", "toy-single"),
        ("fedavg", "toy-single"),
        ("fedpu", "toy-single"),
        ("fedalign", "toy-multi"),
        ("scaffold", "toy-multi"),
    ],
)
def test_the_class_is_scored_apart_and_in_macro_f1(experiment, tmp_path, method, task):
    lines = []
    result = run(without(experiment, method, task, 1), tmp_path / "run", lines.append)
    assert any("identified by no client, and scored apart as f1_uncovered: class " in line for line in lines)
    for record in read_records(tmp_path / "run")[0]:
        f1_C = np.array(list(record.per_class["test/f1"].values()))
        assert record.metrics["test/f1_uncovered"] == pytest.approx(f1_C[1])
        assert record.metrics["test/f1_macro"] == pytest.approx(f1_C.mean())
    assert result.scores["test"]["f1_uncovered"] == record.metrics["test/f1_uncovered"]
    assert "F1 last" in compare([tmp_path / "run"], None).text


def test_labels_that_are_not_known_count_nowhere():
    """Class 1: one hit and one false alarm where it is known, so F1 is 2/3; class 2 has no positive row that is known;
    class 0 is somebody's.
    """
    y_NC = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0]]).double()
    known_NC = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 1], [1, 1, 1]]).double()
    logits_NC = torch.tensor([[1, 1, -1], [1, -1, 1], [1, 1, -1], [1, -1, 1]]).double()
    rows = ClientData(torch.zeros(4, 1), y_NC, known_NC, known_NC)
    scores = score_logits("threshold", Objective("multi"), logits_NC, rows)
    for uncovered, expected in (([0, 1, 1], 2 / 3), ([0, 1, 0], 2 / 3), ([0, 0, 1], None), ([0, 0, 0], None)):
        got = with_f1_uncovered(scores, np.array(uncovered, dtype=bool), rows)
        assert got.values.get("f1_uncovered") == pytest.approx(expected)
        assert {name: value for name, value in got.values.items() if name != "f1_uncovered"} == scores.values


def test_a_covered_run_has_no_such_score(experiment, finished_run):
    assert "f1_uncovered" not in finished_run(experiment()).scores["test"]


def test_a_run_keeps_the_sets_and_not_the_file(experiment, tmp_path):
    """It goes on, to the same bits, when the file is another one."""
    path = tmp_path / "sets.csv"
    plain = without(experiment, "fedalign", "toy-single", 1)
    sets = json.loads(plain.task.client_classes)
    path.write_text("client,class\n" + "".join(f"{m},{c}\n" for m, part in enumerate(sets) for c in part))
    e = resolve_options(replace(plain, task=replace(plain.task, client_classes=str(path))), quiet)
    inline = {str(m): [str(c) for c in part] for m, part in enumerate(sets)}
    assert e == replace(plain, task=replace(plain.task, client_classes=json_text(inline)))
    with stopped_before(2):
        run(e, tmp_path / "run", quiet)
    assert json.loads((tmp_path / "run" / CONFIG).read_text())["task"]["client_classes"] == json_text(inline)
    path.write_text("client,class\n0,0\n")
    checksum = resume(tmp_path / "run", quiet).checksum
    assert checksum == run(plain, tmp_path / "plain", quiet).checksum
    assert digest(e) != digest(plain)  # the numbers are text there
