"""FLAIR: photographs of 51,414 flickr users with fine-grained labels, multi-label (FedALC).

345,879 training images of 41,131 users, 39,239 validation images of 5,141 and 43,960 test images of 5,142: the
published partition, no user on two sides. 1,628 fine-grained labels, 4.61 per image on average. Their names are
listed nowhere but in the annotations, so they are taken from there, in alphabetical order, as they are written
(``wood_processed``), and stand in the metadata of the table. The 17 coarse labels are not used.

Chosen by us: images, 256 pixels as published in ``small_images``, are resized to 64, as 43,960 test images of 256
would take 35 GB as numbers (``task.image_size`` where there is the memory). Origin: Song et al., NeurIPS 2022 Datasets
and Benchmarks; terms: annotations CC BY-NC 4.0, each image under its owner's licence.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.contract import CLASS_NAMES, InputSpec, Source, Task
from anchorfl.tasks.errors import InputError, has_controls, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import find_file
from anchorfl.tasks.images.json_file import parsed
from anchorfl.tasks.images.listed import present
from anchorfl.tasks.images.pixels import encode_paths, image_spec, path_column
from anchorfl.tasks.options import TaskOptions

ANNOTATIONS = "labels_and_metadata.json"
IMAGES = "small_images"
SPLIT_OF = {"train": "train", "val": "validation", "dev": "validation", "test": "test"}
"""Partition as written -> split; its authors write both ``val`` and ``dev``."""
SIZE = 64
_PHOTO_ID = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(slots=True)
class Records:
    """The columns of the usable records."""

    image: list[str] = field(default_factory=list)
    user: list[str] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    labels: list[tuple[int, ...]] = field(default_factory=list)
    locations: list[str] = field(default_factory=list)
    """Location of each record in the file."""
    code: dict[str, int] = field(default_factory=dict)
    """Number of a label name, in the order of appearance."""


def flair() -> Task:
    """Return the FLAIR task; its class names come with the data."""
    return Task(
        name="flair",
        title="FLAIR, fine-grained labels of flickr users' photographs",
        class_names=(),
        kind="multi",
        payload="path",
        source=Source(
            files=(ANNOTATIONS, f"{IMAGES}/*.jpg"),
            url="https://github.com/apple/ml-flair",
            licence="annotations CC BY-NC 4.0; each image under its owner's licence",
        ),
        folder="flair",
        read=read,
        fit=fit,
        encode=encode_paths,
        subjects="user",
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the raw rows in file order; ``row`` is flickr's photo id, the names of the classes are in the metadata.

    Raises InputError with file and record, and where images are missing.
    """
    if folder is None:
        raise ValueError("flair needs the folder of its files")
    bad = BadRows.of(options)
    rows = records_of(find_file(folder, ANNOTATIONS), bad)
    names = [f"{image}.jpg" for image in rows.image]
    found_N = present(folder / IMAGES, names, rows.locations, bad)
    class_names = sorted(rows.code)
    columns = {
        "row": pa.array([int(image) for image in rows.image], pa.int64()),
        "split": pa.array(rows.split, pa.string()),
        "labels": _labels(rows, class_names).lists(),
        "path": path_column([folder / IMAGES / name for name in names]),
        "subject": pa.array(rows.user, pa.string()),
    }
    table = pa.table(columns).replace_schema_metadata({CLASS_NAMES: json.dumps(class_names).encode()})
    return bad.noted(table.filter(pa.array(found_N)))


def records_of(path: Path, bad: BadRows) -> Records:
    """Return the usable records of the annotation file, without a look at the images.

    The peak of memory is twice the text of the file (measured on a made-up one of this size, 152 MB and 429,078
    records: 290 MB). Raises InputError with the record that is wrong, counted from 1, and on a user in two partitions.
    """
    rows, entries = Records(), _entries(path)
    first, side = dict[str, int](), dict[str, tuple[str, int]]()
    for number, entry in enumerate(entries, start=1):
        location = f"{path}: record {number}"
        fault = _fault(entry, first)
        if fault:
            bad.meet(f"{location}: {fault}")
            continue
        image, user, partition, labels = entry
        first[image] = number
        split = SPLIT_OF[partition]
        if side.setdefault(user, (split, number))[0] != split:
            other, record = side[user]
            raise InputError(
                f"{location}: user {user!r} is in {split}, but in record {record} in {other}; get the file again"
            )
        rows.image.append(image)
        rows.user.append(user)
        rows.split.append(split)
        rows.labels.append(tuple({rows.code.setdefault(label, len(rows.code)) for label in labels}))
        rows.locations.append(location)
    if not rows.image:
        raise InputError(f"{path}: no record in the file; get it again")
    return rows


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: RGB images of 64 x 64 or ``image_size``, scaled with ImageNet's mean and deviation."""
    return image_spec(options, SIZE)


def _entries(path: Path) -> list[Any]:
    """Return image, user, partition and fine-grained labels of every record, each None where it is missing."""
    seen = dict[str, str]()

    def kept(entry: dict[str, Any]) -> tuple[Any, ...]:
        """Return the four fields, users and labels as one string object each however often they occur."""
        labels, user = entry.get("fine_grained_labels"), entry.get("user_id")
        if isinstance(labels, list):
            labels = tuple(seen.setdefault(name, name) if isinstance(name, str) else name for name in labels)
        user = seen.setdefault(user, user) if isinstance(user, str) else user
        return entry.get("image_id"), user, entry.get("partition"), labels

    content = parsed(path, kept)
    if not isinstance(content, list):
        raise InputError(f"{path}: the file is no JSON list of records; get it again")
    return content


def _fault(entry: Any, first: dict[str, int]) -> str:
    """Return the fault of a record and how to mend it; empty if there is none."""
    if not isinstance(entry, tuple):
        return "it is no JSON object; correct it"
    image, user, partition, labels = entry
    if not isinstance(image, str) or not _PHOTO_ID.fullmatch(image):
        return f"image_id {image!r} is no text of digits; correct it"
    if image in first:
        return f"image_id {image!r} is that of record {first[image]}; remove one"
    if not isinstance(user, str) or not user:
        return f"user_id {user!r} is no text; correct it"
    if has_controls(user):
        return f"user_id {user!r} holds control characters; correct it"
    if not isinstance(partition, str) or partition not in SPLIT_OF:
        hint = nearest(str(partition), SPLIT_OF)
        return f"partition {partition!r} is not one of {', '.join(SPLIT_OF)}{hint}; correct it"
    if not labels or not isinstance(labels, tuple) or not all(isinstance(name, str) and name for name in labels):
        return "fine_grained_labels is no list of names, one at least; correct it"
    return ""


def _labels(rows: Records, class_names: list[str]) -> Labels:
    """Return the labels with the classes in alphabetical order."""
    number = np.empty(len(class_names), dtype=np.int32)
    number[[rows.code[name] for name in class_names]] = np.arange(len(class_names))
    length_N = np.fromiter((len(labels) for labels in rows.labels), dtype=np.int64, count=len(rows.labels))
    code_P = np.fromiter((code for labels in rows.labels for code in labels), dtype=np.int64, count=length_N.sum())
    return Labels(number[code_P], offsets(length_N), len(class_names))
