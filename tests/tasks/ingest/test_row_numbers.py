"""Numbers of stored rows: they and the order of a file tell no label, and what is read is as without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.ingest import ingest, prepared
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.row_numbers import row_numbers, row_places
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.plan import plan_digest
from anchorfl.tasks.registry import find_task

CLASSES, CLIENTS = 4, 6


def sorted_task():
    """Return the toy texts five times over, sorted by class, as folders of classes are."""
    toy = find_task("toy-single")

    def read(folder, options):
        table = pa.concat_tables([toy.read(folder, options)] * 5)
        class_N = Labels.of_lists(table["labels"], CLASSES).class_P
        table = table.take(np.argsort(class_N, kind="stable"))
        return table.set_column(table.column_names.index("row"), "row", pa.array(np.arange(table.num_rows)))

    return replace(toy, read=read)


def made(cache, partition="k_classes"):
    clients = 0 if partition == "one_class" else CLIENTS
    options = TaskOptions(
        name="toy-single", clients=clients, classes_per_client=2, partition=partition, cache=str(cache)
    )
    return prepare(sorted_task(), options, 0, engine="local")


def without_numbers(patch):
    """Store rows under their places, as they were once."""
    patch.setattr(ingest, "row_numbers", lambda raw, rows: np.arange(rows))
    patch.setattr(prepared, "row_places", lambda raw, rows: np.arange(rows))


def guessed(data):
    """Return how often two guesses are right about hidden labels: by the nearest row of the test file, by the position
    in the client's file.
    """
    test = data.rows(CLIENTS)
    test_B, label_B = test["row"].to_numpy(), np.concatenate(test["labels"].to_numpy())
    truth = sorted_task().read(None, None)["labels"].to_pylist()
    by_row, by_position = [], []
    for client in range(CLIENTS):
        table = data.rows(client)
        hidden_B = np.array([not labels for labels in table["labels"].to_pylist()])
        place_B = prepared.row_places(data.manifest.raw_digest, data.manifest.raw_rows)[table["row"].to_numpy()]
        want_B = np.array([truth[place][0] for place in place_B.tolist()])
        nearest_B = label_B[np.abs(table["row"].to_numpy()[:, None] - test_B).argmin(1)]
        position_B = np.arange(len(want_B)) * CLASSES // len(want_B)
        by_row += (nearest_B == want_B)[hidden_B].tolist()
        by_position += (position_B == want_B)[hidden_B].tolist()
    assert len(by_row) > 300
    return np.mean(by_row), np.mean(by_position)


def test_neither_the_row_nor_its_position_tells_a_hidden_label(tmp_path):
    by_row, by_position = guessed(made(tmp_path))
    assert by_row < 1 / CLASSES + 0.1
    assert by_position < 1 / CLASSES + 0.1


def test_places_would_tell_it(tmp_path, monkeypatch):
    """So that the test above would see it."""
    without_numbers(monkeypatch)
    by_row, by_position = guessed(made(tmp_path))
    assert by_row > 0.95
    assert by_position > 0.7


@pytest.mark.parametrize("partition", ["k_classes", "one_class"])
def test_what_is_read_is_as_without_numbers(tmp_path, partition):
    ours = made(tmp_path / "ours", partition)
    with pytest.MonkeyPatch.context() as patch:
        without_numbers(patch)
        plain = made(tmp_path / "plain", partition)
        plan, objective = plain.plan(), Objective("single")
        want = [plain.client(client, objective) for client in range(len(plan.clients))] + [
            plain.split(name, objective) for name in prepared.SERVER_SPLITS
        ]
    got = [ours.client(client, objective) for client in range(len(plan.clients))] + [
        ours.split(name, objective) for name in prepared.SERVER_SPLITS
    ]
    for data, other in zip(got, want, strict=True):
        assert data.x.equal(other.x)
        assert data.y_NC.equal(other.y_NC)
        assert data.known_NC.equal(other.known_NC)
    assert plan_digest(ours.plan()) == plan_digest(plan)


def test_numbers_are_a_permutation_of_the_raw_files():
    number_N = row_numbers("abc", 1000)
    assert sorted(number_N.tolist()) == list(range(1000))
    assert row_places("abc", 1000)[number_N].tolist() == list(range(1000))
    assert (number_N != row_numbers("other", 1000)).mean() > 0.9
    assert number_N[:5].tolist() == [96, 698, 863, 867, 561], "of every version"
