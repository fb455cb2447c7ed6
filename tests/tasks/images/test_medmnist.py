"""MedMNIST: the published splits come back as they are, and what is wrong with a file is named."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.images.ham10000 import ham10000
from anchorfl.tasks.images.medmnist import SPLITS
from anchorfl.tasks.images.pbc import pbc
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task

ORIGINAL = {"bloodmnist": pbc, "dermamnist": ham10000}


def options(name, **more):
    return TaskOptions(name=name, **more)


@pytest.mark.parametrize("name", ORIGINAL)
@pytest.mark.parametrize("side", [28, 128])
def test_rows_classes_and_splits_are_those_of_the_file(made_up, name, side):
    folder, task = made_up(name, 80, 0), find_task(name)
    file = np.load(folder / f"{name}{'' if side == 28 else f'_{side}'}.npz")
    chosen = options(name, variant="" if side == 128 else "28")
    table = task.read(folder, chosen)
    row = 0
    for short, split in SPLITS.items():
        for pixels, label in zip(file[f"{short}_images"], file[f"{short}_labels"], strict=True):
            line = table.slice(row, 1).to_pylist()[0]
            assert (line["row"], line["split"], line["labels"]) == (row, split, [int(label[0])])
            assert np.array_equal(np.array(line["image"]), pixels.ravel())
            row += 1
    assert row == table.num_rows
    assert task.class_names == ORIGINAL[name]().class_names
    assert task.wording == ORIGINAL[name]().wording
    assert task.fit(table, chosen).shape == (3, side, side)


@pytest.mark.parametrize("name", ORIGINAL)
def test_the_published_validation_rows_are_used(made_up, tmp_path, name):
    chosen = options(
        name, root=str(made_up(name, 80, 0)), cache=str(tmp_path), clients=2, partition="dirichlet", image_size=8
    )
    prepared = prepare(find_task(name), chosen, 0, engine="local")
    file = np.load(made_up(name, 80, 0) / f"{name}_128.npz")
    sizes = [len(file[f"{short}_labels"]) for short in SPLITS]
    m = prepared.manifest
    assert [sum(m.examples), m.validation, m.test] == sizes
    test = prepared.split("test", Objective("single"))
    assert sorted(test.y_NC.argmax(1).tolist()) == sorted(file["test_labels"][:, 0].tolist())
    assert test.x.shape == (sizes[2], 3, 8, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_labels": None}, "no array 'val_labels' .* it needs val_images, val_labels"),
        ({"train_images": np.zeros((2, 28, 28), np.uint8)}, "train_images has shape .* needs 4 dimensions"),
        ({"train_images": np.zeros((2, 28, 28, 3), np.uint8)}, "the arrays have different numbers of rows"),
        (
            {"train_images": np.zeros((56, 64, 64, 3), np.uint8)},
            r"train_images and _labels are uint8 \(56, 64, 64, 3\)",
        ),
        ({"train_labels": np.zeros((56, 2), np.uint8)}, r"and \(56, 2\), not uint8 .* \(rows, 1\)"),
        ({"test_labels": np.full((16, 1), "a")}, "test_labels holds <U1, but needs whole numbers"),
    ],
)
def test_bad_arrays_are_named(made_up, tmp_path, change, message):
    folder = shutil.copytree(made_up("bloodmnist", 80, 0), tmp_path / "raw")
    path = folder / "bloodmnist.npz"
    arrays = {k: v for k, v in (dict(np.load(path)) | change).items() if v is not None}
    np.savez_compressed(path, **arrays)
    with pytest.raises(InputError, match=message) as error:
        find_task("bloodmnist").read(folder, options("bloodmnist", variant="28"))
    assert "bloodmnist.npz" in str(error.value)


def test_a_bad_label_is_named_or_left_out(made_up, tmp_path):
    folder = shutil.copytree(made_up("bloodmnist", 80, 0), tmp_path / "raw")
    path = folder / "bloodmnist.npz"
    arrays = dict(np.load(path))
    arrays["val_labels"][1] = 8
    np.savez_compressed(path, **arrays)
    row = len(arrays["train_labels"]) + 1
    with pytest.raises(InputError, match=rf"row {row} of all splits: label 8 is none of 0\.\.7"):
        find_task("bloodmnist").read(folder, options("bloodmnist", variant="28"))
    table = find_task("bloodmnist").read(folder, options("bloodmnist", variant="28", on_bad_row="skip"))
    assert skipped(table)[0] == 1
    assert row not in table["row"].to_pylist()
