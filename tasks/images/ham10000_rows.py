"""The files of HAM10000: the metadata, and the images of its three variants, matched with it row by row.

Shape suffixes: N good rows of the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorfl.tasks.arrays.arrow import Column, Ints
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import open_text
from anchorfl.tasks.images.arrays import load_arrays
from anchorfl.tasks.images.pixels import LEVELS, faults, path_column, pixel_column

DIAGNOSES = {
    "akiec": "actinic keratosis or intraepithelial carcinoma",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis-like lesion",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevus",
    "vasc": "vascular lesion",
}
CODES = tuple(DIAGNOSES)
KAGGLE = ("akiec", "bcc", "bkl", "df", "nv", "vasc", "mel")
"""Class numbers of ``hmnist_8_8_L.csv``."""
SIDE = 8


@dataclass(frozen=True, slots=True)
class MetadataRows:
    """The good rows of the metadata."""

    path: Path
    row_N: Ints
    """Number of the row from 0, bad ones included."""
    line_N: Ints
    """Line in the file."""
    class_N: Ints
    lesions: tuple[str, ...]
    images: tuple[str, ...]


def read_metadata(path: Path, bad: BadRows) -> MetadataRows:
    """Return the good rows of the metadata file.

    Raises InputError with the line, or meets it as a bad row: wrong number of fields, unknown diagnosis, no id, an
    image twice.
    """
    lines = open_text(path)
    header = next(lines, (0, ""))[1].split(",")
    lacking = [name for name in ("lesion_id", "image_id", "dx") if name not in header]
    if lacking:
        raise InputError(f"{path}:1: no column {', '.join(lacking)} in the header; get the file again")
    columns = [header.index(name) for name in ("lesion_id", "image_id", "dx")]
    first_line = dict[str, int]()
    good = list[tuple[int, str, str, int]]()
    for number, line in lines:
        fields = line.split(",")
        if len(fields) != len(header):
            bad.meet(f"{path}:{number}: {len(fields)} fields, the header has {len(header)}; correct the line")
            continue
        lesion, image, code = (fields[i] for i in columns)
        fault = ""
        if not lesion or not image:
            fault = "lesion_id or image_id is empty"
        elif code not in DIAGNOSES:
            fault = f"unknown dx {code!r}{nearest(code, DIAGNOSES)}, known are {', '.join(DIAGNOSES)}"
        elif first_line.setdefault(image, number) != number:
            fault = f"image_id {image} stands in line {first_line[image]} already"
        if fault:
            bad.meet(f"{path}:{number}: {fault}; correct the line")
        else:
            good.append((number, lesion, image, CODES.index(code)))
    if not good:
        raise InputError(f"{path}: the file has no rows; get it again")
    numbers, lesions, images, classes = zip(*good, strict=True)
    line_N = np.array(numbers, dtype=np.int64)
    return MetadataRows(path, line_N - 2, line_N, np.array(classes, dtype=np.int64), lesions, images)


def photographs(paths: Sequence[Path], rows: MetadataRows, bad: BadRows) -> tuple[Ints, Column]:
    """Return the indices in ``rows`` of the images that are there, ascending, and the column of their paths."""
    files = dict[str, Path]()
    for path in paths:
        if files.setdefault(path.stem, path) != path:
            bad.meet(f"{path}: image {path.stem} is at {files[path.stem]} already; delete one of the two")
    known = set(rows.images)
    strangers = [f"{files[image]}: image {image} has no row in {rows.path}" for image in files if image not in known]
    _meet_all(bad, strangers, "add its row or delete the image")
    lost = [
        f"{rows.path}:{line}: image {image} is not among the {len(files)} image files"
        for line, image in zip(rows.line_N.tolist(), rows.images, strict=True)
        if image not in files
    ]
    _meet_all(bad, lost, "get the image")
    rows_there = [index for index, image in enumerate(rows.images) if image in files]
    paths = [files[rows.images[index]] for index in rows_there]
    image_faults = faults(paths, bad.skip)
    for path, fault in zip(paths, image_faults, strict=True):
        if fault:
            bad.meet(f"{path}: the image cannot be read: {fault}; get the file again, or delete it")
    good = [number for number, fault in enumerate(image_faults) if not fault]
    return np.array(rows_there, dtype=np.int64)[good], path_column([paths[number] for number in good])


def read_pixels(path: Path, rows: MetadataRows, bad: BadRows) -> tuple[Ints, Column]:
    """Return the indices in ``rows`` of the lines of a table of 8 x 8 grey pixels, in the same order, and the pixels.

    A line belongs to the line of the metadata with the same number, and must have its diagnosis.
    """
    lines = open_text(path)
    expected = [*(f"pixel{i:04d}" for i in range(SIDE * SIDE)), "label"]
    if next(lines, (0, ""))[1].split(",") != expected:
        raise InputError(f"{path}:1: the header is not pixel0000..pixel{SIDE * SIDE - 1:04d},label; get the file again")
    index_of = {line: index for index, line in enumerate(rows.line_N.tolist())}
    last = max(index_of)
    indices, values, surplus, seen = list[int](), list[list[int]](), list[str](), set[int]()
    for number, line in lines:
        seen.add(number)
        if number > last:
            surplus.append(f"{path}:{number}: {rows.path} has no such line")
        elif number in index_of:  # else its row of the metadata is bad, and was met as such
            row, fault = _pixels(line, CODES[rows.class_N[index_of[number]]])
            if fault:
                bad.meet(f"{path}:{number}: {fault}; correct the line")
            else:
                indices.append(index_of[number])
                values.append(row)
    _meet_all(bad, surplus, "get both files again")
    lost = [f"{rows.path}:{line}: {path} has no such line" for line in index_of if line not in seen]
    _meet_all(bad, lost, "get both files again")
    images = np.array(values, dtype=np.uint8).reshape(-1, SIDE, SIDE)
    return np.array(indices, dtype=np.int64), pixel_column(images)


def thumbnails(path: Path, rows: MetadataRows, bad: BadRows) -> tuple[Ints, Column]:
    """Return the indices in ``rows`` of the images of an .npz file, ascending, and the column of their pixels."""
    arrays = load_arrays(path, {"images": 4, "labels": 1, "image_ids": 1, "class_names": 1})
    images, names = arrays["images"], arrays["class_names"].tolist()
    if images.dtype != np.uint8 or images.shape[1] != images.shape[2] or images.shape[3] != 3:
        msg = f"{path}: images has shape {images.shape} of {images.dtype}, not (rows, side, side, 3) of uint8"
        raise InputError(f"{msg}; get the file again")
    index_of = {image: index for index, image in enumerate(rows.images)}
    source = dict[int, int]()
    for row, (image, code) in enumerate(zip(arrays["image_ids"].tolist(), arrays["labels"].tolist(), strict=True)):
        index = index_of.get(image, -1)
        named = names[code] if 0 <= code < len(names) else f"number {code}"
        fault = ""
        if index < 0:
            fault = f"image {image} has no row in {rows.path}"
        elif source.get(index, row) != row:
            fault = f"image {image} stands in row {source[index]} already"
        elif named != CODES[rows.class_N[index]]:
            fault = f"image {image} is {named}, but {CODES[rows.class_N[index]]} in {rows.path}:{rows.line_N[index]}"
        if fault:
            bad.meet(f"{path}: row {row}: {fault}; get the file again")
        else:
            source[index] = row
    indices = sorted(source)
    return np.array(indices, dtype=np.int64), pixel_column(images[[source[index] for index in indices]])


def _pixels(line: str, code: str) -> tuple[list[int], str]:
    """Return the values of one line, and what is wrong with it."""
    fields = line.split(",")
    if len(fields) != SIDE * SIDE + 1:
        return [], f"{len(fields)} fields, not {SIDE * SIDE} pixels and a label"
    wrong = [i for i, field in enumerate(fields) if not re.fullmatch("0{,9}[0-9]{1,3}", field) or int(field) > LEVELS]
    if wrong:
        name = "label" if wrong[0] == SIDE * SIDE else f"pixel{wrong[0]:04d}"
        return [], f"{name} is {fields[wrong[0]]!r}, not a whole number 0..{LEVELS}"
    label = int(fields[-1])
    named = KAGGLE[label] if label < len(KAGGLE) else "no diagnosis"
    if named != code:
        return [], f"label {label} is {named}, but the same line of the metadata says {code}"
    return [int(field) for field in fields[:-1]], ""


def _meet_all(bad: BadRows, faults: Sequence[str], hint: str) -> None:
    """Meet bad rows of one kind; the first message counts and names them."""
    for number, fault in enumerate(faults):
        more = f" (the first of {len(faults)} like it)" if number == 0 and len(faults) > 1 else ""
        bad.meet(f"{fault}{more}; {hint}")
