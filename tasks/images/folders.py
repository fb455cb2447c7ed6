"""Images in folders that are named after their class, and a split for data sets that publish none.

Shape suffixes: N rows (images), C classes, U units: rows that belong together, as the images of one lesion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Ints, Table
from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.images.pixels import faults, path_column

SUFFIX = ".jpg"
VALIDATION_SHARE, TEST_SHARE = 0.1, 0.2
"""The papers split 7:1:2."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Image files in the order of their class folders and names, and the class of each."""

    paths: tuple[Path, ...]
    class_N: Ints


def list_folders(base: Path, folders: Sequence[str], bad: BadRows) -> Listing:
    """Return the images of the class folders in ``base``; class numbers are indices in ``folders``.

    Names that begin with a dot are left alone; any other file is an image or a bad row. Raises InputError on a folder
    that is missing, unknown (with the nearest name), empty, or holds folders.
    """
    if not base.is_dir():
        raise InputError(f"{base}: no such folder; it must hold the folders {', '.join(folders)}")
    for entry in _visible(base):
        if entry.is_dir() and entry.name not in folders:
            hint = nearest(entry.name, folders)
            raise InputError(
                f"{entry}: unknown class folder {entry.name!r}{hint}; the folders are {', '.join(folders)}"
            )
        if entry.suffix == SUFFIX and not entry.is_dir():
            bad.meet(f"{entry}: an image outside the class folders; move it into one of them or delete it")
    paths, counts = [], []
    for name in sorted(folders):
        images = _images(base / name, bad)
        paths.extend(images)
        counts.append(len(images))
    number = [folders.index(name) for name in sorted(folders)]
    return Listing(tuple(paths), np.repeat(np.array(number, dtype=np.int64), counts))


def image_table(listing: Listing, split_N: npt.NDArray[np.str_], payload: str, bad: BadRows) -> Table:
    """Return the table that ``read`` gives: one row per file, numbered in the order of the listing, without those that
    are no image (bad rows; see ``faults``).
    """
    index = []
    for row, (path, fault) in enumerate(zip(listing.paths, faults(listing.paths, bad.skip), strict=True)):
        if fault:
            bad.meet(f"{path}: the image cannot be read: {fault}; get the file again, or delete it")
        else:
            index.append(row)
    rows = np.array(index, dtype=np.int64)
    paths = path_column([listing.paths[row] for row in index])
    return bad.noted(table_of(rows, listing.class_N[rows], split_N[rows], {payload: paths}))


def table_of(row_N: Ints, class_N: Ints, split_N: npt.NDArray[np.str_], columns: Mapping[str, Any]) -> Table:
    """Return the table of single-label rows, with further columns."""
    label_N = pa.ListArray.from_arrays(np.arange(len(row_N) + 1, dtype=np.int32), pa.array(class_N.astype(np.int32)))
    return pa.table({"row": row_N, "split": pa.array(split_N.tolist(), pa.string()), "labels": label_N, **columns})


def split_7_1_2(class_N: Ints, unit_N: Ints, seed: int) -> npt.NDArray[np.str_]:
    """Return train, validation or test of every row, 7:1:2 in every class, drawn with ``seed``; all rows of a unit fall
    on the same side.

    class_N: class of every row (a unit counts for the class of its first row); unit_N: number of its unit. A class of
    units of one row is cut exactly (rounded); else a unit goes where its middle falls.
    """
    _, first_U, code_N, size_U = np.unique(unit_N, return_index=True, return_inverse=True, return_counts=True)
    drawn_U = np.argsort(first_U)  # in the order of their first rows: how the units are numbered does not matter
    drawn_U = drawn_U[np.random.default_rng(seed).permutation(len(drawn_U))]
    class_U = class_N[first_U]
    drawn_U = drawn_U[np.argsort(class_U[drawn_U], kind="stable")]
    class_U, size_U = class_U[drawn_U], size_U[drawn_U]
    total_C = np.bincount(class_U, weights=size_U)
    left_U = np.cumsum(total_C)[class_U] - np.cumsum(size_U) + size_U / 2  # rows from its middle to the class's end
    test_C, validation_C = np.rint(TEST_SHARE * total_C), np.rint(VALIDATION_SHARE * total_C)
    side_U = np.where(left_U < (test_C + validation_C)[class_U], "validation", "train")
    side_U = np.where(left_U < test_C[class_U], "test", side_U)
    of_U = np.empty_like(drawn_U)
    of_U[drawn_U] = np.arange(len(drawn_U))
    return side_U[of_U[code_N]]


def same_content(contents: Sequence[Path] | npt.NDArray[np.uint8]) -> Ints:
    """Return a number per file (or row of an array) that two share exactly if they are equal byte for byte."""
    digests = [
        hashlib.sha256(each.read_bytes() if isinstance(each, Path) else each.tobytes()).digest() for each in contents
    ]
    return np.unique(np.array(digests, dtype="S32"), return_inverse=True)[1].astype(np.int64)


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _images(folder: Path, bad: BadRows) -> list[Path]:
    """Return the images of one class."""
    if not folder.is_dir():
        raise InputError(f"{folder}: this class folder is missing; get the data again")
    images = []
    for entry in _visible(folder):
        if entry.is_dir():
            raise InputError(f"{entry}: a folder inside a class folder; move its images up or delete it")
        if entry.suffix == SUFFIX:
            images.append(entry)
        else:
            bad.meet(f"{entry}: no {SUFFIX} file; convert or delete it")
    if not images:
        raise InputError(f"{folder}: no {SUFFIX} file in this class folder; get the data again")
    return images
