"""Folders of images named by class, and OCT-C8 and Kvasir-v2 on made-up files."""

from __future__ import annotations

import re
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch

from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows, skipped
from anchorfl.tasks.images import kvasir, oct_c8
from anchorfl.tasks.images.folders import list_folders, same_content, split_7_1_2
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions


@pytest.fixture
def oct_folder(made_up):
    return made_up("oct-c8", 240, 0)


@pytest.fixture
def kvasir_folder(made_up):
    return made_up("kvasir-v2", 160, 0)


@pytest.fixture
def oct_copy(oct_folder, tmp_path):
    return shutil.copytree(oct_folder, tmp_path / "copy")


# ------------------------------------------------------------------------------------------------------------- splits


def test_the_split_is_exact_and_keeps_units_together():
    rng = np.random.default_rng(0)
    class_N = rng.permutation(np.repeat([0, 1, 2], [1000, 30, 10]))
    side_N = split_7_1_2(class_N, np.arange(len(class_N)), 3)
    for class_, total in enumerate((1000, 30, 10)):
        expected = {"train": 7 * total // 10, "validation": total // 10, "test": 2 * total // 10}
        assert Counter(side_N[class_N == class_]) == expected
    unit_N = np.where(class_N == 0, np.arange(len(class_N)) // 4, 5000 + np.arange(len(class_N)))
    renamed_N = 9999 - unit_N
    side_N = split_7_1_2(class_N, unit_N, 3)
    assert (split_7_1_2(class_N, renamed_N, 3) == side_N).all()
    assert (split_7_1_2(class_N, unit_N, 4) != side_N).any()
    for unit in np.unique(unit_N):
        assert len(set(side_N[unit_N == unit])) == 1
    for class_, total in enumerate((1000, 30, 10)):
        assert (side_N[class_N == class_] == "test").sum() == pytest.approx(0.2 * total, abs=3)
    assert split_7_1_2(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64), 0).tolist() == ["train"] * 3


def test_equal_contents_share_a_number(tmp_path):
    for name, content in (("a", b"1"), ("b", b"2"), ("c", b"1")):
        (tmp_path / name).write_bytes(content)
    numbers = same_content([tmp_path / name for name in "abc"])
    assert numbers[0] == numbers[2] != numbers[1]
    assert same_content(np.array([[1, 2], [1, 3], [1, 2]], dtype=np.uint8)).tolist()[::2] in ([0, 0], [1, 1])


# ---------------------------------------------------------------------------------------------------------- data sets


def test_oct_reads_what_was_written(oct_folder):
    task = oct_c8.oct_c8()
    table = task.read(oct_folder, TaskOptions(name="oct-c8"))
    assert table["row"].to_pylist() == list(range(23 * 8 + 4 * 8 + 4 * 8))
    assert table.num_rows == len(list(oct_folder.rglob("*.jpg")))
    for path, split, labels in zip(*(table[name].to_pylist() for name in ("path", "split", "labels")), strict=True):
        part, folder, name = path.split("/")[-3:]
        assert split == {"train": "train", "val": "validation", "test": "test"}[part]
        assert task.class_names[labels[0]] == oct_c8.FOLDERS[folder]
        assert name.startswith(f"{folder.lower()}_{part}_")
    assert task.fit(table, TaskOptions()).shape == (3, 128, 128)


def fed(data):
    """Return all inputs as a network takes them."""
    return data.rows(torch.arange(len(data))).x


@pytest.mark.parametrize("which", ["oct", "kvasir"])
def test_twins_are_prepared_and_can_be_learnt(which, request, tmp_path):
    folder = request.getfixturevalue(f"{which}_folder")
    task = oct_c8.oct_c8() if which == "oct" else kvasir.kvasir_v2()
    options = TaskOptions(
        name=task.name, root=str(folder), cache=str(tmp_path), clients=3, partition="dirichlet", image_size=16
    )
    prepared = prepare(task, options, 0, engine="local")
    train = [prepared.client(client, Objective("single")) for client in range(3)]
    test = prepared.split("test", Objective("single"))
    assert prepared.manifest.validation == {"oct": 32, "kvasir": 16}[which]  # the published, or the task's own
    x, seen = np.concatenate([fed(data).flatten(1) for data in train]), fed(test)
    y = np.concatenate([data.y_NC.argmax(1) for data in train])
    assert np.abs(np.fft.fft2(seen[:, 0].numpy())[:, 0, 0]).max() < 16 * 16 * 3  # scaled, not 0..255
    waves = [np.abs(np.fft.fft2(part.reshape(-1, 3, 16, 16))).reshape(len(part), -1) for part in (x, seen)]
    centre = np.stack([waves[0][y == class_].mean(0) for class_ in range(8)])
    nearest = np.abs(waves[1][:, None] - centre).sum(2).argmin(1)
    assert (nearest == test.y_NC.argmax(1).numpy()).mean() > 0.8


def test_kvasir_splits_every_class_the_same_way(kvasir_folder):
    table = kvasir.read(kvasir_folder, TaskOptions(name="kvasir-v2"))
    sides = Counter(
        zip(table["split"].to_pylist(), table["labels"].combine_chunks().flatten().to_pylist(), strict=True)
    )
    assert sides == {(s, c): n for s, n in (("train", 14), ("validation", 2), ("test", 4)) for c in range(8)}
    assert kvasir.read(kvasir_folder, TaskOptions(name="kvasir-v2", image_size=9)).equals(table)
    for path, labels in zip(table["path"].to_pylist(), table["labels"].to_pylist(), strict=True):
        assert list(kvasir.FOLDERS)[labels[0]] == path.split("/")[-2]


def test_equal_files_stay_on_one_side(kvasir_folder, tmp_path):
    folder = shutil.copytree(kvasir_folder, tmp_path / "copy")
    originals = sorted((folder / "polyps").iterdir())
    for path in originals:
        shutil.copyfile(path, path.with_name(f"z-{path.name}"))
    table = kvasir.read(folder, TaskOptions(name="kvasir-v2"))
    side = dict(zip((p.split("/")[-1] for p in table["path"].to_pylist()), table["split"].to_pylist(), strict=True))
    assert all(side[path.name] == side[f"z-{path.name}"] for path in originals)
    assert len({side[path.name] for path in originals}) == 3


# ---------------------------------------------------------------------------------------------------------- bad input


def spoil(folder, fault):
    """Spoil a copy of the synthetic OCT files; return the path that the message names."""
    train = folder / "train"
    if fault == "unknown":
        return (train / "DRUSEN").rename(train / "DRUSSEN")
    if fault == "missing":
        shutil.rmtree(train / "DME")
        return train / "DME"
    if fault == "empty":
        for path in (train / "DME").iterdir():
            path.unlink()
        return train / "DME"
    if fault == "nested":
        (train / "DME" / "more").mkdir()
        return train / "DME" / "more"
    shutil.rmtree(train)
    return train


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("unknown", "unknown class folder 'DRUSSEN' (did you mean 'DRUSEN'?); the folders are AMD, CNV"),
        ("missing", "this class folder is missing; get the data again"),
        ("empty", "no .jpg file in this class folder; get the data again"),
        ("nested", "a folder inside a class folder; move its images up or delete it"),
        ("no split", "no such folder; it must hold the folders AMD, CNV"),
    ],
)
@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_a_bad_folder_is_named(oct_copy, fault, message, on_bad_row):
    path = spoil(oct_copy, fault)
    with pytest.raises(InputError, match=re.escape(f"{path}: {message}")):
        oct_c8.read(oct_copy, TaskOptions(name="oct-c8", on_bad_row=on_bad_row))


def test_a_missing_class_is_seen_before_reading(oct_copy):
    shutil.rmtree(oct_copy / "val" / "MH")
    with pytest.raises(InputError, match=r"oct-c8: no val/MH/\*\.jpg \(plain or \.gz\); looked in"):
        prepare(oct_c8.oct_c8(), TaskOptions(name="oct-c8", root=str(oct_copy)), 0, engine="local")


def test_bad_files_are_named_or_left_out(oct_copy):
    whole = oct_c8.read(oct_copy, TaskOptions())
    damaged = oct_copy / "train" / "CNV" / "cnv_train_1003.jpg"
    damaged.write_bytes(b"no jpeg")
    stray = oct_copy / "train" / "MH" / "mh.webp"
    stray.touch()
    outside = oct_copy / "test" / "x.jpg"
    shutil.copyfile(oct_copy / "test" / "MH" / "mh_test_1001.jpg", outside)
    (oct_copy / "test" / "MH" / ".DS_Store").touch()
    (oct_copy / "test" / "README.txt").touch()
    messages = [
        f"{stray}: no .jpg file; convert or delete it",
        f"{outside}: an image outside the class folders; move it into one of them or delete it",
        f"{damaged}: the image cannot be read: it is no image of a known format; get the file again, or delete it",
    ]
    table = oct_c8.read(oct_copy, TaskOptions(on_bad_row="skip"))
    assert skipped(table) == (3, messages)
    kept = [p != str(damaged) for p in whole["path"].to_pylist()]
    assert table.equals(whole.filter(pa.array(kept)))  # the other rows keep their numbers
    for path, message in zip((stray, outside, damaged), messages, strict=True):
        with pytest.raises(InputError, match=re.escape(f"{message}, or leave such rows out with --task.on_bad_row")):
            oct_c8.read(oct_copy, TaskOptions())
        path.unlink()


def test_an_image_that_is_cut_short_is_left_out(oct_copy):
    whole = oct_c8.read(oct_copy, TaskOptions())
    path = oct_copy / "train" / "CNV" / "cnv_train_1003.jpg"
    path.write_bytes(path.read_bytes()[:-200])  # its header is good
    assert oct_c8.read(oct_copy, TaskOptions()).equals(whole)  # encoding would stop at it
    table = oct_c8.read(oct_copy, TaskOptions(on_bad_row="skip"))
    count, (message,) = skipped(table)
    assert (count, table.num_rows) == (1, whole.num_rows - 1)
    assert message.startswith(f"{path}: the image cannot be read: image file is truncated")


def test_class_numbers_follow_the_given_order(oct_folder):
    order = ("NORMAL", *(name for name in oct_c8.FOLDERS if name != "NORMAL"))
    listing = list_folders(oct_folder / "val", order, BadRows(False))
    assert listing.class_N[-1] == 0
    assert [order[c] for c in listing.class_N] == [path.parent.name for path in listing.paths]


def test_no_folder_is_a_fault_of_the_caller():
    for read in (oct_c8.read, kvasir.read):
        with pytest.raises(ValueError, match="needs the folder of its images"):
            read(None, TaskOptions())
