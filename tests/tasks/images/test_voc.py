"""PASCAL VOC: its reader and its errors on synthetic files, its counts on the real lists."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows, skipped
from anchorfl.tasks.images import voc as module
from anchorfl.tasks.images.voc import (
    ABSENT,
    CLASSES,
    DIFFICULT,
    PRESENT,
    SETS,
    labels_of,
    voc2007,
    voc2007_difficult_unknown,
)
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.synthetic import voc as synthetic

LISTS = "VOC2007/ImageSets/Main"


@pytest.fixture
def folder(made_up, tmp_path):
    return shutil.copytree(made_up("voc2007", 80, 3), tmp_path, dirs_exist_ok=True)


def read(folder, task=None, **options):
    task = task or voc2007()
    return task.read(folder, TaskOptions(name=task.name, **options))


def written(folder, name, part):
    lines = (folder / LISTS / f"{name.replace(' ', '')}_{part}.txt").read_text().splitlines()
    return {int(line.split()[0]): int(line.split()[1]) for line in lines}


def change(folder, name, line, text):
    path = folder / LISTS / name
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [text] if text is not None else []
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_the_twin_wrote_comes_back(folder):
    table = read(folder)
    assert pc.value_counts(table["split"]).to_pylist() == [
        {"values": "train", "counts": 20},
        {"values": "validation", "counts": 20},
        {"values": "test", "counts": 40},
    ]
    y_NC = Labels.of_lists(table["labels"], 20).matrix()
    rows = table["row"].to_pylist()
    for part, split in SETS[2007, "train"].items():
        chosen = np.array(table["split"]) == split
        for c, name in enumerate(CLASSES):
            values = written(folder, name, part)
            assert {rows[i]: y_NC[i, c] for i in np.flatnonzero(chosen)} == {k: v != ABSENT for k, v in values.items()}
    assert [int(Path(path).stem) for path in table["path"].to_pylist()] == rows


def test_difficult_objects_are_unknown_if_asked(folder):
    plain, unknown = read(folder), read(folder, voc2007_difficult_unknown())
    difficult = [
        [c for c, name in enumerate(CLASSES) if written(folder, name, part)[row] == DIFFICULT]
        for part in ("train", "val", "test")
        for row in written(folder, "cow", part)
    ]
    assert any(difficult)
    for classes, every, labels, known in zip(
        difficult, plain["labels"].to_pylist(), unknown["labels"].to_pylist(), unknown["known"].to_pylist(), strict=True
    ):
        assert sorted([*labels, *classes]) == every
        assert known == ([c for c in range(20) if c not in classes] if classes else None)


def test_variants_and_rows(folder):
    table = read(folder, variant="trainval")
    assert set(table["split"].to_pylist()) == {"train", "test"}
    assert sorted(table["row"].to_pylist()) == sorted(read(folder)["row"].to_pylist())
    assert pc.sum(pc.equal(table["split"], "train")).as_py() == 40
    with pytest.raises(InputError, match="'val' is no variant of voc2007"):
        read(folder, variant="val")


def test_2012_is_tested_on_its_validation_images(tmp_path):
    synthetic.write_2012(tmp_path, 40, seed=1)
    table = read(tmp_path, module.voc2012())
    assert table["row"][0].as_py() == int(Path(table["path"][0].as_py()).stem.replace("_", ""))
    assert {v["values"]: v["counts"] for v in pc.value_counts(table["split"]).to_pylist()} == {"train": 20, "test": 20}
    unknown = read(tmp_path, module.voc2012_difficult_unknown())
    assert unknown["known"].null_count < unknown.num_rows


def test_images_are_decoded_and_scaled(folder):
    task, table = voc2007(), read(folder)
    spec = task.fit(table, TaskOptions(image_size=16))
    assert (spec.shape, spec.levels, len(spec.mean)) == ((3, 16, 16), 255, 3)
    assert task.fit(table, TaskOptions()).shape == (3, 224, 224)
    encoded = task.encode(table.slice(0, 4), spec)
    assert encoded["x"].type.list_size == 3 * 16 * 16
    assert np.ptp(np.stack(encoded["x"].to_numpy())) > 50
    assert task.encode(table.slice(0, 0), spec).num_rows == 0
    Path(table["path"][1].as_py()).write_bytes(b"no picture")
    with pytest.raises(InputError, match=re.escape(f"{table['path'][1].as_py()}: the image cannot be read")):
        task.encode(table.slice(0, 4), InputSpec("image", (3, 16, 16), levels=255))


def test_an_image_that_is_cut_short_is_named_or_left_out(folder):
    whole = read(folder)
    path = Path(whole["path"][3].as_py())
    path.write_bytes(path.read_bytes()[:-400])  # its header is good
    with pytest.raises(InputError, match=re.escape(f"{path}: the image cannot be read: image file is truncated")):
        voc2007().encode(read(folder), InputSpec("image", (3, 16, 16), levels=255))
    table = read(folder, on_bad_row="skip")
    count, (message,) = skipped(table)
    assert count == 1
    assert re.fullmatch(
        rf".*\.txt:\d+: image {re.escape(str(path))} cannot be read: .* truncated .*; get it again", message
    )
    assert table.equals(pa.concat_tables([whole.slice(0, 3), whole.slice(4)]))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("cow_val.txt", "{image}  2", "{path}:3: label '2' of image {image} is not 1, 0 or -1; correct it"),
        ("cow_val.txt", "{image}", "{path}:3: '{image}' is not '<image> <1, 0 or -1>'; correct the line"),
        ("cow_val.txt", "12a456 -1", "{path}:3: '12a456 -1' is not '<image> <1, 0 or -1>'; correct the line"),
        ("cow_val.txt", None, "{path}: no line for image {image}, which {first}:3 has; add it"),
        ("cow_val.txt", "{other} -1", "{path}:3: image {other} stands also in line 2; remove one"),
    ],
)
def test_a_bad_line_is_named_or_its_image_left_out(folder, name, text, message):
    other, image = [line.split()[0] for line in (folder / LISTS / name).read_text().splitlines()[1:3]]
    good = read(folder)["row"].to_pylist()
    path = change(folder, name, 3, text and text.format(image=image, other=other))
    message = message.format(path=path, image=image, other=other, first=folder / LISTS / "aeroplane_val.txt")
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder)
    table = read(folder, on_bad_row="skip")
    gone = {int(image), int(other)} if text == "{other} -1" else {int(image)}
    assert set(good) - set(table["row"].to_pylist()) == gone
    assert message in skipped(table)[1]


def test_missing_images_are_counted(folder):
    rows = read(folder)
    paths = [Path(path) for path in rows["path"].to_pylist()]
    for path in paths[5:8]:
        path.unlink()
    images, lists = folder / "VOC2007" / "JPEGImages", folder / LISTS
    message = f"{images}: 3 of 80 images are missing, the first is {paths[5].name} of {lists}/aeroplane_train.txt:6"
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder)
    table = read(folder, on_bad_row="skip")
    assert table["row"].to_pylist() == [*rows["row"].to_pylist()[:5], *rows["row"].to_pylist()[8:]]
    assert skipped(table) == (
        3,
        [f"{lists}/aeroplane_train.txt:{n}: no image {paths[n - 1]}; get it again" for n in (6, 7, 8)],
    )


def test_an_image_in_two_sets_and_an_empty_list_are_refused(folder):
    image = (folder / LISTS / "cow_train.txt").read_text().split()[0]
    for name in CLASSES:
        change(folder, f"{name.replace(' ', '')}_val.txt", 1, f"{image} -1")
    where = folder / LISTS
    message = f"{where}/aeroplane_val.txt:1: image {image} stands also at {where}/aeroplane_train.txt:1, in another set"
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder)
    for name in CLASSES:
        (where / f"{name.replace(' ', '')}_train.txt").write_text("")
    with pytest.raises(InputError, match=r"aeroplane_train\.txt: the file is empty; get it again"):
        read(folder)
    (where / "sofa_train.txt").unlink()
    with pytest.raises(InputError, match=r"no sofa_train\.txt or sofa_train\.txt\.gz there"):
        read(folder)


@pytest.fixture
def real_lists(tmp_path):
    """Return the lists of the development kit of 2007, without images."""
    data = Path(os.environ.get("ANCHORFL_DATA") or Path(__file__).parents[4] / "shared" / "data")
    archive = data / "voc2007_imagesets" / "VOC2007_ImageSets_Main.tar.gz"
    if not archive.is_file():
        pytest.skip(f"no {archive}; set ANCHORFL_DATA")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.data
def test_the_real_lists_have_the_counts_of_the_docstring(real_lists):
    text = " ".join(str(module.__doc__).split())
    table = labels_of(real_lists, SETS[2007, "train"], 2007, BadRows(False))
    value_NC, split_N = np.stack(table["value"].to_numpy()), np.array(table["split"])
    sizes = {split: int((split_N == split).sum()) for split in ("train", "validation", "test")}
    assert sizes == {"train": 2501, "validation": 2510, "test": 4952}
    assert "2501 training, 2510 validation and 4952 test images" in text
    for c, name in enumerate(CLASSES):
        values = [value_NC[split_N == split, c] for split in sizes]
        counts = "/".join(f"{(v == PRESENT).sum()}+{(v == DIFFICULT).sum()}" for v in values)
        assert f"{name} {counts}" in text
    assert (value_NC != ABSENT).any(1).all()
    both = labels_of(real_lists, SETS[2007, "trainval"], 2007, BadRows(False))
    assert sorted(both["image"].to_pylist()) == sorted(table["image"].to_pylist())


@pytest.mark.data
def test_the_real_lists_without_images_are_refused(real_lists):
    images = real_lists / "VOC2007" / "JPEGImages"
    first = f"000012.jpg of {real_lists / LISTS}/aeroplane_train.txt:1"
    for choice in ("error", "skip"):
        with pytest.raises(
            InputError, match=re.escape(f"{images}: none of 9963 images is there, the first is {first}")
        ):
            read(real_lists, on_bad_row=choice)
