"""Images in one folder per class: read as a table of their paths, classes and splits."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
from PIL import Image

from anchorfl.pipeline.cli.data import check
from anchorfl.pipeline.cli.main import main
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.ingest.raw_digest import raw_digest
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from tests.runs import SMALL
from tests.tasks.own_tables import table


def put_images(folder, count=10, shade=0):
    folder.mkdir(parents=True)
    for i in range(count):
        Image.fromarray(np.full((9, 9, 3), shade + i, np.uint8)).save(folder / f"{i}.png")


def read(folder, **options):
    return table(folder, label_columns="", **options)


@pytest.fixture
def cats(tmp_path):
    """Classes ``cats, big`` (12 images) and ``dogs``, with what no image is beside them."""
    put_images(tmp_path / "pets" / "cats, big", 12)
    put_images(tmp_path / "pets" / "dogs", 10, shade=100)
    (tmp_path / "pets" / "README.txt").write_text("Pets.")
    (tmp_path / "pets" / ".thumbs").mkdir()
    return tmp_path / "pets"


def test_a_folder_per_class(cats):
    task, raw, options = read(cats, image_size=4)
    assert (task.name, task.kind, task.class_names) == ("table-pets", "single", ("cats, big", "dogs"))
    assert raw["labels"].to_pylist() == [[0]] * 12 + [[1]] * 10
    assert raw["image"].to_pylist()[12] == str(cats / "dogs" / "0.png")
    assert raw["split"].to_pylist().count("test") == 4  # a fifth
    assert task.encode(raw, task.fit(raw, options))["x"].to_pylist()[13] == [101] * 48


def test_folders_of_splits_on_top(tmp_path):
    for split, count in (("Training", 6), ("val", 2), ("test", 3)):
        for name in ("train", "bus"):  # a class may be called as a split
            put_images(tmp_path / "traffic" / split / name, count)
    task, raw, _ = read(tmp_path / "traffic")
    assert task.class_names == ("bus", "train")
    split_of = {"Training": "train", "val": "validation", "test": "test"}
    for path, split, labels in zip(*(raw[name].to_pylist() for name in ("image", "split", "labels")), strict=True):
        on_top, name, _ = path.removeprefix(f"{tmp_path / 'traffic'}/").split("/")
        assert split == split_of[on_top]
        assert labels == [("bus", "train").index(name)]
    (tmp_path / "traffic" / "x.png").write_bytes(b"0")
    with pytest.raises(InputError, match=r"traffic/x\.png: an image beside the class folders"):
        read(tmp_path / "traffic")
    task, raw, _ = read(tmp_path / "traffic" / "val", on_bad_row="skip")
    assert raw.num_rows == 4


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "dogs" / "Thumbs.db").write_bytes(b"0"), r"dogs/Thumbs\.db: no image by its name; move it"),
        (lambda f: put_images(f / "dogs" / "old", 1), r"dogs/old: a folder inside of a class folder; move its images"),
        (lambda f: (f / "owls").mkdir(), r"owls: no image \(\.png, \.jpg, \.\.\.\) in this class folder; delete it"),
        (lambda f: (f / "dogs" / "3.png").rename(f / "3.png"), r"pets/3\.png: an image beside the class folders; move"),
        (lambda f: (f / "dogs" / "3.png").write_text("no"), r"row 16: image .*dogs/3\.png: it is no image of a known"),
        (lambda f: (f / "dogs" / "x.png").symlink_to("../../y.png"), r"x\.png lies outside of .*/pets, the folder of"),
    ],
)
def test_what_does_not_belong_there_is_named(cats, spoil, message):
    put_images(cats.parent / "elsewhere", 1)
    (cats.parent / "elsewhere" / "0.png").rename(cats.parent / "y.png")
    spoil(cats)
    with pytest.raises(InputError, match=message):
        read(cats)
    if "folder" in message.partition(";")[0] and "beside" not in message:
        return
    _, raw, _ = read(cats, on_bad_row="skip")
    assert (skipped(raw)[0], raw.num_rows) == (1, 22 if "Thumbs" in message or "outside" in message else 21)


def test_folders_that_are_none_of_classes(tmp_path):
    put_images(tmp_path / "flat")
    with pytest.raises(InputError, match=r"flat: no class folder in it; put its images into one folder per class"):
        read(tmp_path / "flat")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"none: no image \(\.png, \.jpg, \.\.\.\) in this folder, nor a folder per"):
        read(tmp_path / "none")
    put_images(tmp_path / "half" / "train" / "a")
    with pytest.raises(
        InputError, match=r"half: there is train, and no folder for test: add it, call .* or name .*half/train"
    ):
        read(tmp_path / "half")
    put_images(tmp_path / "half" / "test")
    with pytest.raises(InputError, match=r"half/test: no class folder in it|test/\d.png: an image beside the class"):
        read(tmp_path / "half")
    put_images(tmp_path / "a[1]" / "b")
    with pytest.raises(InputError, match=r"the name must not hold \[ or \]"):
        read(tmp_path / "a[1]")


def test_a_name_that_says_nothing_is_refused(cats, monkeypatch):
    monkeypatch.chdir(cats)
    with pytest.raises(
        InputError, match=rf"call the folder by its name, after which runs are named: {re.escape(str(cats))}"
    ):
        read(".")


def test_an_image_in_another_folder_is_another_digest(cats, tmp_path):
    options = TaskOptions(file=str(cats), cache=str(tmp_path / "cache"))
    before = raw_digest(task_of(options), options, tmp_path)
    (cats / "README.txt").write_text("Others.")
    assert raw_digest(task_of(options), options, tmp_path) == before
    (cats / "dogs" / "3.png").rename(cats / "cats, big" / "30.png")
    assert raw_digest(task_of(options), options, tmp_path) != before


def test_data_check_and_what_it_says_to_type(cats, capsys, monkeypatch):
    monkeypatch.chdir(cats.parent)
    assert check(["pets"]) == 0
    shown = capsys.readouterr().out
    assert "pets: 22 images, 2 columns" in shown
    assert re.search(r"cats, big +10 +2\n", shown)
    command = shlex.split(re.search(r"next: anchorfl (run --task\.file pets .*)", shown)[1])
    assert main([*command, *SMALL, "--output", "run"]) == 0
    capsys.readouterr()
    put_images(cats.parent / "new", 3)
    assert main(["predict", "run", "new"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4  # a header, and a line per image
    assert main(["predict", "run", "pets"]) == 0
    assert "22 samples with labels" in capsys.readouterr().err
