"""Images in one folder per class as a table: a row per image, with its path, class and split.

``FOLDER/cat/1.png``; or ``FOLDER/train/cat/1.png`` beside ``FOLDER/test/...``, where all folders on top are called as
a split column may say; or ``FOLDER/1.png``, rows without a class, for predictions. What begins with a dot is left
alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.ingest.raw_table import SPLIT_WORDS
from anchorfl.tasks.tabular.cell_types import IMAGE
from anchorfl.tasks.tabular.reading import TableFile, listed, open_file

PATH, CLASS, SPLIT = "image", "class", "split"
"""Names of the columns; paths start at the folder."""


def open_file_or_folder(path: Path, bad: BadRows, texts: Collection[str] = ()) -> TableFile:
    """Return a table as ``open_file`` does, or a folder of images as one. Raises InputError also on folders elsewhere.

    Bad rows: an image beside the class folders, and what no image is by its name in one of them.
    """
    if not path.is_dir():
        return open_file(path, bad, texts)
    folders, images, _ = _content(path)
    columns = _of_classes(path, folders, bad) if folders else {PATH: images}
    if not columns[PATH]:
        raise InputError(f"{path}: no image (.png, .jpg, ...) in this folder, nor a folder per class")
    content = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    return TableFile(path, dict.fromkeys(columns, pa.string()), np.arange(len(content)), content)


def _of_classes(path: Path, folders: list[str], bad: BadRows) -> dict[str, list[str]]:
    """Return the columns of the images in class folders, or in class folders below folders of splits."""
    splits = folders if all(name.lower() in SPLIT_WORDS for name in folders) else []
    lacking = {"train", "test"} - {SPLIT_WORDS[name.lower()] for name in splits}
    if splits and lacking:
        msg = f"{path}: there is {listed(splits)}, and no folder for {' and '.join(sorted(lacking))}"
        alone = f"name {path / splits[0]}, of whose images a fifth is then the test split"
        raise InputError(f"{msg}: add it, call another one so, or {alone}")
    columns: dict[str, list[str]] = {PATH: [], CLASS: [], **({SPLIT: []} if splits else {})}
    for base in ["", *splits]:
        classes, beside, _ = _content(path / base)
        for name in beside:
            bad.meet(f"{path / base / name}: an image beside the class folders; move it into one of them")
        if splits and not base:
            continue  # these are the splits
        if not classes:
            raise InputError(f"{path / base}: no class folder in it; put its images into one folder per class")
        for name in classes:
            below, images, others = _content(path / base / name)
            if below:
                where = path / base / name / below[0]
                raise InputError(f"{where}: a folder inside of a class folder; move its images up or delete it")
            for other in others:
                bad.meet(f"{path / base / name / other}: no image by its name; move it away")
            if not images:
                raise InputError(f"{path / base / name}: no image (.png, .jpg, ...) in this class folder; delete it")
            columns[PATH] += [(Path(base) / name / image).as_posix() for image in images]
            columns[CLASS] += [name] * len(images)
            if splits:
                columns[SPLIT] += [base] * len(images)
    return columns


def _content(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the folders, images and other files in a folder, each in order. Raises InputError on a name
    that is no UTF-8.
    """
    folders, images, others = list[str](), list[str](), list[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                image = images if re.search(IMAGE, entry.name) else others
                (folders if entry.is_dir() else image).append(entry.name)
    for name in (*folders, *images):
        readable = name.encode("utf-8", "backslashreplace").decode()
        if readable != name:
            raise InputError(f"{folder / readable}: the name is no UTF-8; rename it")
    return sorted(folders), sorted(images), sorted(others)
