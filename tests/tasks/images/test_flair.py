"""FLAIR: its reader and its errors on synthetic files."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from anchorfl.tasks.contract import CLASS_NAMES
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.images.flair import ANNOTATIONS, flair
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.synthetic import flair as synthetic
from tests.tasks.raw_tables import left_out


@pytest.fixture
def folder(made_up, tmp_path):
    return shutil.copytree(made_up("flair", 100, 3), tmp_path, dirs_exist_ok=True)


def read(folder, **options):
    return flair().read(folder, TaskOptions(name="flair", **options))


def records(folder):
    return json.loads((folder / ANNOTATIONS).read_text())


def names(table):
    return json.loads(table.schema.metadata[CLASS_NAMES])


def test_what_the_twin_wrote_comes_back(folder):
    table, written = read(folder), records(folder)
    class_names = names(table)
    assert class_names == sorted({name for record in written for name in record["fine_grained_labels"]})
    assert len(class_names) == 36
    for row, record in zip(table.to_pylist(), written, strict=True):
        assert row["row"] == int(record["image_id"])
        assert row["subject"] == record["user_id"]
        assert row["split"] == {"train": "train", "val": "validation", "test": "test"}[record["partition"]]
        assert [class_names[c] for c in row["labels"]] == sorted(record["fine_grained_labels"])
        assert Path(row["path"]) == folder / "small_images" / f"{record['image_id']}.jpg"
        assert Path(row["path"]).is_file()
    assert set(table["split"].to_pylist()) == {"train", "validation", "test"}


def test_dev_is_validation_and_labels_count_once(folder):
    written = records(folder)
    for record in written:
        record["partition"] = record["partition"].replace("val", "dev")
        record["fine_grained_labels"] += record["fine_grained_labels"][:1]
    before = read(folder)
    (folder / ANNOTATIONS).write_text(json.dumps(written))
    assert read(folder).equals(before)


def test_images_are_decoded_and_scaled(folder):
    task, table = flair(), read(folder)
    assert task.fit(table, TaskOptions()).shape == (3, 64, 64)
    spec = task.fit(table, TaskOptions(image_size=8))
    assert task.encode(table.slice(0, 2), spec)["x"].type.list_size == 3 * 8 * 8
    assert (task.class_names, task.subjects) == ((), "user")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("image_id", 14, "image_id 14 is no text of digits; correct it"),
        ("image_id", "../up", "image_id '../up' is no text of digits; correct it"),
        ("image_id", "first", "image_id '{first}' is that of record 1; remove one"),
        ("user_id", None, "user_id None is no text; correct it"),
        ("partition", "tset", "partition 'tset' is not one of train, val, dev, test (did you mean 'test'?)"),
        ("partition", ["test"], "partition ['test'] is not one of train, val, dev, test"),
        ("fine_grained_labels", [], "fine_grained_labels is no list of names, one at least; correct it"),
        ("fine_grained_labels", ["cat", 3], "fine_grained_labels is no list of names, one at least; correct it"),
        ("fine_grained_labels", "cat", "fine_grained_labels is no list of names, one at least; correct it"),
    ],
)
def test_a_bad_record_is_named_or_left_out(folder, field, value, message):
    written = records(folder)
    first = written[0]["image_id"]
    gone = int(written[4]["image_id"])
    written[4][field] = first if value == "first" else value
    (folder / ANNOTATIONS).write_text(json.dumps(written))
    message = f"{folder / ANNOTATIONS}: record 5: {message.format(first=first)}"
    table = left_out(partial(read, folder), message)
    assert table.num_rows == 99
    assert gone not in table["row"].to_pylist()
    assert len(names(table)) == 36


def test_missing_images_are_counted(folder):
    path = Path(read(folder)["path"][3].as_py())
    path.unlink()
    place = f"{folder / ANNOTATIONS}: record 4"
    message = f"{path.parent}: 1 of 100 images are missing, the first is {path.name} of {place}"
    with pytest.raises(InputError, match=re.escape(message)):
        read(folder)
    table = read(folder, on_bad_row="skip")
    assert skipped(table) == (1, [f"{place}: no image {path}; get it again"])
    assert len(names(table)) == 36


def test_a_wrong_file_is_refused(folder):
    written = records(folder)
    user = written[0]["user_id"]
    side = {"train": "train", "val": "validation", "test": "test"}[written[0]["partition"]]
    other = "test" if side == "train" else "train"
    again = {**written[1], "user_id": user, "partition": other}
    for content, message in [
        ([written[0], again], f"record 2: user '{user}' is in {other}, but in record 1 in {side}; get the file again"),
        ({"images": written}, "the file is no JSON list of records; get it again"),
        ([], "no record in the file; get it again"),
        ([written[0], "text"], "record 2: it is no JSON object; correct it"),
    ]:
        (folder / ANNOTATIONS).write_text(json.dumps(content))
        with pytest.raises(InputError, match=re.escape(f"{folder / ANNOTATIONS}: {message}")):
            read(folder)
    (folder / ANNOTATIONS).write_text(json.dumps(written, indent=1)[:-30])
    with pytest.raises(InputError, match=r"labels_and_metadata\.json:\d+: column \d+ is no JSON"):
        read(folder)


def test_too_small_a_twin_is_refused(tmp_path):
    with pytest.raises(ValueError, match="29 rows are too few for users in every partition, ask for 30 or more"):
        synthetic.write(tmp_path, 29, seed=0)
