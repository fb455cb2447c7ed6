"""Confusion of classes and generated images of a finished run."""

from __future__ import annotations

import csv
import dataclasses
import shutil

import numpy as np
import pytest
from PIL import Image

from anchorfl.pipeline.diagnosis.analysis import open_analysis
from anchorfl.pipeline.diagnosis.diagnose import DiagnoseOptions, diagnose
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.metrics.classification import count_confusion
from tests.runs import quiet

GENERATOR = {
    "cgde": True,
    "lambda_dis": 0.0,
    "generator_every": 2,
    "generator_steps": 2,
    "generator_batch": 8,
    "synthetic_per_batch": 4,
}


@pytest.fixture
def finished(experiment, finished_run, tmp_path):
    """FedBM on the digits, two trainings of the generator, every round kept."""
    e = experiment(
        "fedbm", "digits", options=GENERATOR, evaluation={"save_state_every": 1},
        federation={"rounds": 5, "epochs": 1}, model={"width": 8},
    )  # fmt: skip
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid"))
    result = finished_run(e)
    return shutil.copytree(result.folder, tmp_path / "run"), result


def test_confusion_counts_against_loops():
    rng = np.random.default_rng(0)
    true_N, taken_N = rng.integers(3, size=(2, 40))
    want = [[sum((true_N == a) & (taken_N == b)) for b in range(3)] for a in range(3)]
    assert count_confusion(true_N, taken_N, 3).tolist() == want


def test_a_run_with_a_generator_is_pictured(finished):
    folder, result = finished
    lines = diagnose(folder, DiagnoseOptions(parts=("confusion", "generated")), quiet)
    assert any(line.startswith("confusion after round 5: ") for line in lines)
    assert any("% for their class after round 4" in line for line in lines)
    out = folder / "diagnosis"
    with (out / "confusion.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    count_CC = np.array([[int(v) for v in row[1:]] for row in rows[1:]])
    assert np.trace(count_CC) / count_CC.sum() == pytest.approx(result.scores["test"]["accuracy"])
    analysis = open_analysis(folder, quiet)
    test = analysis.prepared.split("test", analysis.server.objective)
    assert count_CC.sum(1).tolist() == test.y_NC.sum(0).tolist()  # a row of the table is a true class
    assert count_CC.sum(0).tolist() != count_CC.sum(1).tolist()
    with np.load(out / "generated.npz") as data:
        assert data["rounds"].tolist() == [2, 4]
        assert data["over_rounds"].shape == (2, 10, 1, 8, 8)
        assert data["last"].shape == (8, 10, 1, 8, 8)
        assert not np.array_equal(data["over_rounds"][0], data["over_rounds"][1])
        assert np.array_equal(data["over_rounds"][1], data["last"][0])
    for name in ("confusion", "generated", "generated_last"):
        with Image.open(out / f"{name}.png") as picture:
            assert min(picture.size) > 300
    with (out / "generated.csv").open(newline="") as stream:
        shares = list(csv.DictReader(stream))
    assert len(shares) == 20
    assert all(0 <= float(row["recognized"]) <= 1 for row in shares)
    metrics = [r.metrics for r in read_records(out)[0]]
    assert [m["diagnosis/generated/recognized"] for m in metrics] == [
        pytest.approx(np.mean([float(s["recognized"]) for s in shares if s["round"] == r]), abs=1e-5)
        for r in ("2", "4")
    ]


def test_the_same_run_gives_the_same_pictures(finished):
    folder, _ = finished
    both = []
    for _ in range(2):
        diagnose(folder, DiagnoseOptions(parts=("generated",)), quiet)
        both.append((folder / "diagnosis" / "generated.png").read_bytes())
    assert both[0] == both[1]


def test_methods_without_a_generator_and_rows_with_several_labels_say_so(experiment, tmp_path):
    run(experiment("fedavg", "toy-multi"), tmp_path / "run", quiet)
    lines = diagnose(tmp_path / "run", DiagnoseOptions(parts=("confusion", "generated")), quiet)
    assert "generated images: fedavg has trained no generator" in lines
    assert "confusion: classes of this task do not exclude each other" in lines
