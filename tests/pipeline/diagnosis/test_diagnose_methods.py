"""``anchorfl diagnose`` on methods whose clients keep more than moments, or are sent a part of the model."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch.nn.functional as F
from safetensors.torch import load_file

from anchorfl.pipeline.algorithm.optimizers import without_moments
from anchorfl.pipeline.diagnosis import divergence
from anchorfl.pipeline.diagnosis.analysis import Analysis, open_analysis
from anchorfl.pipeline.diagnosis.diagnose import diagnose
from anchorfl.tasks.registry import find_task
from tests.pipeline.diagnosed import QUICK, table
from tests.runs import quiet

PARTS = dataclasses.replace(QUICK, parts=("divergence", "pseudo", "agreement", "embeddings", "confusion", "generated"))
SGD = {"name": "sgd", "lr": 0.1, "batch_size": 0}


@pytest.fixture
def finished(experiment, finished_run, tmp_path):
    """Return a maker of runs of two rounds, both kept."""

    def make(method, options=None, **changes):
        sections = {"evaluation": {"save_state_every": 1}, "federation": {"rounds": 2}} | changes
        made = experiment(method, options=options, **sections)
        return shutil.copytree(finished_run(made).folder, tmp_path / method)

    return make


@pytest.mark.parametrize(
    ("method", "options", "changes"),
    [
        ("fedrep", None, {}),
        ("scaffold", None, {}),
        ("fedalc", None, {"optimizer": SGD}),
        ("fedalc-fixed", None, {"optimizer": SGD}),
        ("fedbm", {"cgde": False}, {}),
    ],
)
def test_every_part_of_methods_with_memories_and_letters(finished, method, options, changes):
    folder = finished(method, options, **changes)
    lines = diagnose(folder, PARTS, quiet)
    assert any("local models of clients" in line for line in lines)
    assert f"pseudo-labels: {method} makes none here" in lines
    by_kind = {}
    for row in table(folder / "diagnosis" / "divergence.csv"):
        by_kind.setdefault(row["kind"], set()).add(int(row["round"]))
    lasting = method != "fedalc"  # its clients keep moments only
    assert by_kind["local"] == ({2} if lasting else {1, 2})


def test_local_training_starts_from_what_the_client_keeps(finished, monkeypatch):
    """FedRep's client goes on with its own head, with new moments."""
    analysis = open_analysis(finished("fedrep"), quiet)
    client = next(m for m in range(4) if analysis.memory(m))
    kept = analysis.lasting(client)
    assert kept
    assert set(kept) < set(analysis.memory(client))
    assert kept == without_moments(analysis.memory(client))
    seen = []

    def watched(self, client, round_, broadcast, memory, client_message=None):
        seen.append(memory)

    monkeypatch.setattr(type(analysis.runner), "fit", watched)
    analysis.local_weights(analysis.last.round, client, kept)
    assert seen == [kept]
    assert analysis.trainable() == [2]


def test_moments_alone_leave_every_round_open(finished):
    analysis = open_analysis(finished("fedavg"), quiet)
    assert any(analysis.memory(m) for m in range(4))
    assert not any(analysis.lasting(m) for m in range(4))
    assert analysis.trainable() == analysis.rounds() == [1, 2]


def test_an_interrupted_diagnosis_leaves_the_older_one(finished, monkeypatch):
    """Between its two renames; the next call finds the older one, whatever becomes of it."""
    folder = finished("fedavg")
    quick = dataclasses.replace(QUICK, parts=("confusion",))
    diagnose(folder, quick, quiet)
    (folder / "diagnosis").rename(folder / ".diagnosis-older")
    monkeypatch.setattr(Analysis, "at", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        diagnose(folder, quick, quiet)
    assert (folder / "diagnosis" / "confusion.csv").exists()
    monkeypatch.undo()
    diagnose(folder, quick, quiet)
    assert not (folder / ".diagnosis-older").exists()


def test_the_prototypes_of_fednh_are_its_class_embeddings(finished):
    """They stand in the model's state, which the server moves; no gradient does."""
    folder = finished("fednh")
    lines = diagnose(folder, dataclasses.replace(QUICK, parts=("embeddings",)), quiet)
    assert any(line.startswith("class embeddings after round 2: ") for line in lines)
    rows_CD = F.normalize(load_file(folder / "model" / "weights.safetensors")["head.rows"].double(), dim=-1)
    names = list(find_task("toy-single").class_names)
    shown = {row["class"]: row for row in table(folder / "diagnosis" / "class_cosine.csv")}
    for a, one in enumerate(names):
        for b, other in enumerate(names):
            assert float(shown[one][other]) == pytest.approx(float(rows_CD[a] @ rows_CD[b]), abs=1e-5)


def test_the_distance_is_left_out_where_clients_are_too_many(finished, monkeypatch):
    """In one line, and no table is written."""
    monkeypatch.setattr(divergence, "MOST", 3)
    folder = finished("fedavg")
    lines = diagnose(folder, dataclasses.replace(QUICK, parts=("divergence",), clients=(0, 1)), quiet)
    assert lines == ["A-distance: 4 clients are too many to compare (at most 3)"]
    assert not (folder / "diagnosis" / "divergence.csv").exists()
