"""Prepared data on disk: round trip, no undisclosed label, damage that is reported with its mend."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.plan import plan_digest
from anchorfl.tasks.registry import find_task

TASKS = ("toy-single", "toy-multi")


@pytest.fixture(scope="module", params=TASKS)
def made(request, tmp_path_factory):
    """Return the task, its raw table and its prepared data."""
    task = find_task(request.param)
    options = TaskOptions(name=task.name, clients=4, classes_per_client=2, cache=str(tmp_path_factory.mktemp("cache")))
    return task, task.read(None, options), prepare(task, options, 5, engine="local")


@pytest.fixture
def copy(made, tmp_path):
    """Return a copy of the prepared folder that a test may damage."""
    return shutil.copytree(made[2].folder, tmp_path / "copy")


def test_a_clients_file_never_holds_a_label_that_it_does_not_identify(made):
    task, raw, prepared = made
    labels, plan, objective = (
        Labels.of_lists(raw["labels"], len(task.class_names)),
        prepared.plan(),
        Objective(task.kind),
    )
    y_NC = labels.matrix()
    for number, client in enumerate(plan.clients):
        table = pq.read_table(f"{prepared.folder}/client-{number:05d}.parquet")
        assert table.column_names == ["row", "x", "labels", "known"]
        assert table.schema.metadata is None
        assert set(table["labels"].combine_chunks().flatten().to_pylist()) <= set(client.classes)
        assert np.array_equal(table["row"].to_numpy(), client.rows)
        data = prepared.client(number, objective)
        aware = np.isin(np.arange(len(task.class_names)), client.classes)
        own = (y_NC[client.rows] & aware).any(1, keepdims=True)
        known = np.broadcast_to(own if task.kind == "single" else aware, y_NC[client.rows].shape)
        assert np.array_equal(data.known_NC.numpy(), known)
        assert np.array_equal(data.y_NC.numpy(), y_NC[client.rows] & known)
        assert torch.equal(data.weight_NC, objective.weights(data.y_NC, data.known_NC))
        card = prepared.cards()[number]
        assert (card.client, card.num_examples) == (number, len(client.rows))
        assert card.count_C.tolist() == (y_NC[client.rows] & known).sum(0).tolist()
        assert card.identified_C.tolist() == aware.tolist()
        held_MC = prepared.class_histogram().matrix(len(plan.clients), len(task.class_names))
        assert held_MC[number].tolist() == y_NC[client.rows].sum(0).tolist()
        sparse = prepared.sparse_client(number).part(0, len(client.rows))
        assert torch.equal(sparse.data.x, data.x)
        assert np.array_equal(sparse.labels.matrix(), data.y_NC.numpy() > 0)


def test_inputs_come_back_as_encoded(made):
    task, raw, prepared = made
    spec = prepared.manifest.spec
    encoded = task.encode(raw, spec)["x"].to_pylist()
    for number, client in enumerate(prepared.plan().clients):
        data = prepared.client(number, Objective(task.kind))
        for position, row in enumerate(client.rows.tolist()):
            x = data.x[position]
            if spec.kind == "tokens":
                assert data.length_N is not None
                assert data.x.dtype == torch.int32
                assert x[: data.length_N[position]].tolist() == encoded[row]
                assert x[data.length_N[position] :].sum() == 0
            else:
                assert tuple(x.shape) == spec.shape
                assert np.array_equal(x.numpy().ravel(), np.float32(encoded[row]))


def test_the_servers_splits_are_fully_labeled(made):
    task, raw, prepared = made
    y_NC = Labels.of_lists(raw["labels"], len(task.class_names)).matrix()
    rows = {"test": np.flatnonzero(np.array(raw["split"]) == "test"), "validation": prepared.plan().validation}
    for name, row_N in rows.items():
        data = prepared.split(name, Objective(task.kind))
        assert data.known_NC.min() == 1
        assert np.array_equal(data.y_NC.numpy(), y_NC[row_N])
    assert prepared.manifest.test == len(rows["test"])


def test_loading_gives_the_same_manifest_and_data_stay_writable(made):
    task, _, prepared = made
    again = Prepared.load(prepared.folder)
    assert again == prepared
    assert plan_digest(again.plan()) == again.manifest.partition_digest
    data = again.client(0, Objective(task.kind))
    data.x.add_(1)  # a warning, and so an error, where the tensor is a view of read-only memory
    data.y_NC.add_(1)
    with pytest.raises(IndexError, match=r"0\.\.3"):
        again.client(4, Objective(task.kind))
    with pytest.raises(IndexError, match=r"0\.\.3"):
        again.sparse_client(-1)


@pytest.mark.parametrize(
    "name", ["manifest.json", "client-00001.parquet", "test.parquet", "class_counts.parquet", "partition.json"]
)
def test_a_missing_file_is_named_with_the_mend(copy, name):
    (copy / name).unlink()
    with pytest.raises(InputError, match=rf"{name} is missing.*delete the folder and prepare the data again"):
        Prepared.load(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 0}, "has format 0, this version reads 6"),
        ({"seed": None, "new": 1}, "damaged"),
        ({"spec": []}, "damaged"),
    ],
)
def test_a_foreign_manifest_is_refused(copy, change, message):
    path = copy / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        Prepared.load(copy)
    path.write_text("not json")
    with pytest.raises(InputError, match="damaged"):
        Prepared.load(copy)


def test_damaged_or_foreign_files_are_refused(made, copy):
    objective = Objective(made[0].kind)
    (copy / "client-00000.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(InputError, match=r"client-00000\.parquet is damaged"):
        Prepared.load(copy).client(0, objective)
    shutil.copy(copy / "client-00001.parquet", copy / "test.parquet")
    with pytest.raises(InputError, match=r"test\.parquet has \d+ rows, not 48"):
        Prepared.load(copy).split("test", objective)
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text.replace(made[2].manifest.partition_digest, "0" * 64))
    with pytest.raises(InputError, match="not the manifest's plan"):
        Prepared.load(copy).plan()
