"""COCO 2014: its reader and its errors on synthetic files."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows, skipped
from anchorfl.tasks.images.coco import CLASSES, GROUPS, coco2014, images_of
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.synthetic import coco as synthetic
from tests.tasks.raw_tables import GONE, put

TRAIN = "annotations/instances_train2014.json"


@pytest.fixture
def folder(made_up, tmp_path):
    return shutil.copytree(made_up("coco2014", 120, 3), tmp_path, dirs_exist_ok=True)


def read(folder, **options):
    return coco2014().read(folder, TaskOptions(name="coco2014", **options))


def content_of(folder, part="train"):
    return json.loads((folder / f"annotations/instances_{part}2014.json").read_text())


def test_what_the_twin_wrote_comes_back(folder):
    table = read(folder)
    assert (table["split"].to_pylist().count("train"), table["split"].to_pylist().count("test")) == (80, 40)
    expected, crowds = dict[int, tuple[str, set[int]]](), 0
    for part in ("train", "val"):
        content = content_of(folder, part)
        name_of = {c["id"]: c["name"] for c in content["categories"]}
        names = {image["id"]: image["file_name"] for image in content["images"]}
        for annotation in content["annotations"]:
            crowds += annotation["iscrowd"]
            image = annotation["image_id"]
            expected.setdefault(image, (names[image], set()))[1].add(CLASSES.index(name_of[annotation["category_id"]]))
        assert len(names) > sum(image in expected for image in names)  # some are without annotation
    assert crowds
    assert set(table["row"].to_pylist()) == set(expected)
    for row, labels, path in zip(*(table[name].to_pylist() for name in ("row", "labels", "path")), strict=True):
        assert (Path(path).name, sorted(expected[row][1])) == (expected[row][0], labels)
        assert Path(path).is_file()


def test_the_names_are_cocos():
    assert len(CLASSES) == len(set(CLASSES)) == 80
    assert (CLASSES[0], CLASSES[39], CLASSES[79], len(GROUPS)) == ("person", "bottle", "toothbrush", 12)
    assert dict(zip(synthetic.CATEGORY_IDS, CLASSES, strict=True))[90] == "toothbrush"


def test_images_are_decoded_and_scaled(folder):
    task, table = coco2014(), read(folder)
    spec = task.fit(table, TaskOptions(image_size=12))
    assert spec.shape == (3, 12, 12)
    assert np.ptp(np.stack(task.encode(table.slice(0, 3), spec)["x"].to_numpy())) > 50
    assert task.fit(table, TaskOptions()).shape == (3, 112, 112)


def test_plain_and_gzip_are_one(folder):
    plain = read(folder)
    path = folder / TRAIN
    (folder / f"{TRAIN}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read(folder).equals(plain)
    (folder / f"{TRAIN}.gz").write_bytes(gzip.compress(b"[" * 4000)[:-9])
    with pytest.raises(InputError, match=r"train2014\.json\.gz: the gzip file is damaged or cut short"):
        read(folder)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("annotations", 4, "category_id"), 12,
         "annotations[4] (id {annotation}): category_id 12 of image {image} is no category of the file"),
        (("annotations", 4, "image_id"), "9",
         "annotations[4] (id {annotation}): image_id -1 is no image of the file; correct it"),
        (("images", 4, "id"), "second", "images[4]: id {second} is that of images[2]; correct one"),
        (("images", 4, "file_name"), "../up.jpg",
         "images[4] needs a whole number as id and a file_name without folder; correct it"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_named_or_left_out(folder, place, value, message):
    content = content_of(folder)
    annotation, second = content["annotations"][4], content["images"][2]["id"]
    message = message.format(annotation=annotation["id"], image=annotation["image_id"], second=second)
    put(content, place, second if value == "second" else value)
    (folder / TRAIN).write_text(json.dumps(content))
    with pytest.raises(InputError, match=re.escape(f"{folder / TRAIN}: {message}")):
        read(folder)
    table = read(folder, on_bad_row="skip")
    count, listed = skipped(table)
    assert listed[0].startswith(f"{folder / TRAIN}: {message}")
    assert count == len(listed)
    if place[-1] == "category_id":
        assert (count, table.num_rows) == (1, 119)
        assert annotation["image_id"] not in table["row"].to_pylist()


def test_missing_images_are_counted(folder):
    table = read(folder)
    paths = [Path(path) for path in table["path"].to_pylist()]
    paths[2].unlink()
    entry = [i["file_name"] for i in content_of(folder)["images"]].index(paths[2].name)
    place = f"{folder / TRAIN}: images[{entry}]"
    message = f"{folder / 'train2014'}: 1 of 80 images are missing, the first is {paths[2].name} of {place}"
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder)
    assert skipped(read(folder, on_bad_row="skip")) == (1, [f"{place}: no image {paths[2]}; get it again"])
    for path in paths[:80]:
        path.unlink(missing_ok=True)
    with pytest.raises(InputError, match="train2014: none of 80 images is there"):
        read(folder, on_bad_row="skip")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("categories", 5, "name"), "busk",
         ": categories[5]: 'busk' is no category of COCO 2014 (did you mean 'bus'?); correct the name"),
        (("categories", 5), GONE, ": 79 of 80 categories, 'bus' is missing; get the file again"),
        (("categories", 5), "before",
         ": categories[5]: 'airplane' has no id, or name or id stand twice; get the file again"),
        (("annotations",), GONE, ": no list 'annotations' in the file; get it again"),
        (("annotations", 7, "category_id"), GONE, ": annotations[7] has no category_id; get the file again"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_whatever_is_skipped(folder, place, value, message):
    content = content_of(folder)
    put(content, place, content["categories"][4] if value == "before" else value)
    (folder / TRAIN).write_text(json.dumps(content))
    with pytest.raises(InputError, match=re.escape(f"{folder / TRAIN}{message}")):
        read(folder, on_bad_row="skip")


def test_damaged_files_are_refused(folder):
    text = (folder / TRAIN).read_text()
    for damaged, message in [
        (text[:-40].encode(), r"train2014\.json:1: column \d+ is no JSON"),
        (b"", r"train2014\.json:1: column 1 is no JSON"),
        (b'{"images": "\xff"}', r"train2014\.json: byte 13 is no UTF-8"),
    ]:
        (folder / TRAIN).write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            read(folder)
    (folder / TRAIN).write_text((folder / "annotations/instances_val2014.json").read_text())
    (folder / "train2014").rename(folder / "old")
    (folder / "train2014").symlink_to(folder / "val2014")
    with pytest.raises(InputError, match=r"image \d+ stands in both annotation files; get them again"):
        read(folder)


def test_memory_is_the_text_and_little_more(folder):
    content = content_of(folder)
    polygon = [[n + 0.5 for n in range(200)]]
    content["annotations"] = [{**a, "segmentation": polygon} for a in content["annotations"] * 10]
    text = json.dumps(content)
    (folder / TRAIN).write_text(text)
    del content
    tracemalloc.start()
    images_of(folder / TRAIN, BadRows(False))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(text) > 2_000_000
    assert peak < 1.5 * len(text)
