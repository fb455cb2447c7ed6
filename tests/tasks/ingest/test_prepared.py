"""Prepared data on disk: round trip, no undisclosed label, damage that is reported with its mend."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import SERVER_SPLITS, Prepared, _footer
from anchorfl.tasks.ingest.row_numbers import row_places
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.plan import plan_digest
from anchorfl.tasks.registry import find_task

TASKS = ("toy-single", "toy-multi")
ONE_OF_EACH_KIND = (
    "rows-00000.parquet", "clients.parquet", "extents.parquet", "class_counts.parquet", "partition.parquet",
)  # fmt: skip


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
        table = prepared.rows(number)
        assert table.column_names == ["row", "x", "labels", "known"]
        assert table.schema.metadata is None
        assert set(table["labels"].combine_chunks().flatten().to_pylist()) <= set(client.classes)
        number_B = table["row"].to_numpy()
        assert (np.diff(number_B) > 0).all()
        place_N = row_places(prepared.manifest.raw_digest, raw.num_rows)
        assert np.array_equal(np.sort(place_N[number_B]), client.rows)
        assert np.array_equal(prepared.client_columns(number, ["row"])["row"].to_numpy(), client.rows)
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
    assert plan_digest(again.stored_plan()) == again.manifest.partition_digest
    data = again.client(0, Objective(task.kind))
    data.x.add_(1)  # a warning, and so an error, where the tensor is a view of read-only memory
    data.y_NC.add_(1)
    with pytest.raises(IndexError, match=r"0\.\.3"):
        again.client(4, Objective(task.kind))
    with pytest.raises(IndexError, match=r"0\.\.3"):
        again.sparse_client(-1)


@pytest.mark.parametrize("name", [*ONE_OF_EACH_KIND, "manifest.json"])
def test_a_missing_file_is_named_with_the_mend(copy, name):
    (copy / name).unlink()
    with pytest.raises(PreparedDataError, match=rf"{name} is missing.*delete the folder and prepare the data again"):
        Prepared.load(copy)


def test_a_process_reads_a_manifest_anew_where_the_file_is_another(copy):
    first = Prepared.of_process(copy)
    assert Prepared.of_process(copy) is first
    path = copy / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 0}))
    with pytest.raises(PreparedDataError, match="has format 0"):
        Prepared.of_process(copy)
    path.unlink()
    with pytest.raises(PreparedDataError, match=r"manifest\.json is missing"):
        Prepared.of_process(copy)


def test_a_manifest_of_another_version_is_refused(copy):
    path = copy / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 0}))
    with pytest.raises(PreparedDataError, match=r"manifest\.json has format 0, this version reads \d+"):
        Prepared.load(copy)


EDITS = {
    "class_names": lambda m: m["class_names"].reverse(),
    "test": lambda m: m.update(test=m["test"] + 1),
    "seed": lambda m: m.update(seed=None, new=1),
    "spec": lambda m: m.update(spec=[]),
    "files": lambda m: m["files"].pop("rows-00000.parquet"),
    "digest": lambda m: m.pop("digest"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_manifest_is_refused(copy, edit):
    path = copy / "manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content, indent=1))
    with pytest.raises(PreparedDataError, match=r"manifest\.json is damaged .*; delete the folder"):
        Prepared.load(copy)


@pytest.mark.parametrize("text", ["", "not json", "[1]", "{" * 10_000])
def test_what_is_no_manifest_is_refused(copy, text):
    (copy / "manifest.json").write_text(text)
    with pytest.raises(PreparedDataError, match=r"manifest\.json is damaged .*; delete the folder"):
        Prepared.load(copy)


def read_all(folder):
    """Read every file of a prepared folder, as a run and its diagnosis do in a process of their own."""
    _footer.cache_clear()
    prepared = Prepared.load(folder)
    objective = Objective(prepared.manifest.kind)
    prepared.plan()
    prepared.class_histogram()
    for client in range(len(prepared.manifest.examples)):
        prepared.client(client, objective)
    for split in SERVER_SPLITS:
        prepared.split(split, objective)


@pytest.mark.parametrize("name", [*ONE_OF_EACH_KIND, "manifest.json"])
def test_one_flipped_bit_is_found_wherever_it_is(copy, name):
    """At 60 random positions of the file, the first and the last bit among them."""
    path, rng = copy / name, np.random.default_rng(0)
    data = path.read_bytes()
    last = 8 * len(data) - 1
    for bit in [0, last, *rng.integers(0, last, 58).tolist()]:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(PreparedDataError, match=re.escape(name) + ".*; delete the folder and prepare"):
            read_all(copy)
    path.write_bytes(data)
    read_all(copy)


@pytest.mark.parametrize(("name", "other"), [("clients", "extents"), ("partition", "rows-00000")])
def test_files_in_each_others_place_are_refused(copy, name, other):
    ours, theirs = (copy / f"{n}.parquet" for n in (name, other))
    kept = ours.read_bytes()
    ours.write_bytes(theirs.read_bytes())
    theirs.write_bytes(kept)
    with pytest.raises(PreparedDataError, match=rf"{name}\.parquet is damaged"):
        read_all(copy)


def test_a_file_that_goes_after_loading_is_named(copy):
    prepared = Prepared.load(copy)
    shutil.rmtree(copy)
    with pytest.raises(PreparedDataError, match=r"copy: rows-00000\.parquet is missing; delete the folder"):
        prepared.client(1, Objective(prepared.manifest.kind))


def test_too_little_memory_is_no_damage(made, monkeypatch):
    """Another process may have enough: it is a fault that a retry may mend."""

    def full(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", full)
    with pytest.raises(MemoryError):
        made[2].client(0, Objective(made[0].kind))


def test_a_folder_that_this_machine_does_not_see_names_the_cache(tmp_path):
    """As on a node without the disk of the one that prepared the data."""
    with pytest.raises(PreparedDataError, match=r"gone is not on this machine: .*--task\.cache s3://BUCKET/cache"):
        Prepared.load(str(tmp_path / "gone"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(PreparedDataError, match=r"manifest\.json is missing, so this is no complete prepared data"):
        Prepared.load(str(tmp_path / "empty"))
