"""FEMNIST: handwritten digits and letters of 28x28 grey pixels by writer, 62 classes, single-label (FedBM).

LEAF's files hold about 3,550 writers; FedBM takes 50 of those with fewer than 150 samples (396 it counts): 35 for
training, each a client (``task.partition = "subjects"``, ``task.clients = 35``), 5 for validation, 10 for testing.
Which 50 is published nowhere and drawn anew in each of its runs (``split_seed = "none"``); here they are drawn once, so
that every run is tested on the same writers. Pixels are stored as LEAF has them, 1 for the white paper and 0
for ink, as whole numbers 0..255.

Files: LEAF's ``data`` folder, or a part of it: ``all_data/all_data_*.json`` if they are there, else ``train`` and
``test`` together (a writer whose samples LEAF cut into both becomes one again), else the files beside each other.
Origin: Caldas et al., LEAF, 2018, made of NIST Special Database 19 (Cohen et al., EMNIST, 2017); terms: LEAF's code
BSD 2-clause, the NIST data are of the US government and free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Ints, Table
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError, has_controls
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import find_files
from anchorfl.tasks.images.json_file import listed, parsed, whole
from anchorfl.tasks.images.pixels import LEVELS, Pixels, encode_pixels, image_spec, pixel_column
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.prompts import Wording

CLASSES = (
    *(f"digit {n}" for n in ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")),
    *(f"capital letter {chr(code)}" for code in range(ord("A"), ord("Z") + 1)),
    *(f"small letter {chr(code)}" for code in range(ord("a"), ord("z") + 1)),
)
"""Classes in the order of LEAF's numbers 0..61."""
GROUPS = {"digit": CLASSES[:10], "capital letter": CLASSES[10:36], "small letter": CLASSES[36:]}
FILES = "**/all_data*.json"
SIDE = 28
BELOW = 150
"""Writers with fewer samples than this are drawn from (FedBM)."""
WRITERS = {"train": 35, "validation": 5, "test": 10}
WRITERS_SEED = 62


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one writer."""

    x_ND: Pixels
    """Levels 0..255, D = 784."""
    y_N: npt.NDArray[np.int32]
    """Classes, -1 where a sample is unusable."""
    faults: dict[int, str]
    """Number of an unusable sample -> its fault."""


@dataclass(frozen=True, slots=True)
class WriterSamples:
    """The samples of a writer in one file."""

    path: Path
    start: int
    """Row id of the first."""
    samples: Samples


def femnist() -> Task:
    """Return the FEMNIST task."""
    return Task(
        name="femnist",
        title="FEMNIST, handwritten digits and letters by writer (LEAF)",
        class_names=CLASSES,
        kind="single",
        payload="pixels",
        source=Source(
            files=(FILES,),
            url="https://github.com/TalwalkarLab/leaf/tree/master/data/femnist",
            licence="NIST Special Database 19, free; LEAF's code BSD 2-clause",
        ),
        folder="femnist",
        read=read,
        fit=fit,
        encode=encode_pixels,
        groups=GROUPS,
        subjects="writer",
        wording=Wording(("handwriting image", "handwriting sample", "handwriting scan")),
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the samples of the 50 writers, writer by writer in alphabetical order; ``row`` counts the samples of all
    writers in the order of the files.

    At its peak the text of one file, and the pixels of the writers with fewer than 150 samples, are in memory. Raises
    InputError with file, writer and sample.
    """
    if folder is None:
        raise ValueError("femnist needs the folder of its files")
    writers = dict[str, list[WriterSamples]]()
    files, start = _files(folder), 0
    for path in files:
        for name, samples in _read_writers(path):
            _note(writers, name, WriterSamples(path, start, samples))
            start += len(samples.y_N)
    few = {name: parts for name, parts in writers.items() if 0 < _size(parts) < BELOW}
    split_of = _draw_writers(sorted(few), folder, options.seed_of_split(WRITERS_SEED))
    bad = BadRows.of(options)
    tables = [_rows(name, few[name], split, bad) for name, split in sorted(split_of.items())]
    return bad.noted(pa.concat_tables(tables))


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: grey images of 28 x 28 or ``image_size``, scaled to [0, 1]; nothing is learnt from the rows."""
    return image_spec(options, SIDE, channels=1)


def _files(folder: Path) -> list[Path]:
    """Return the files with every sample once: LEAF's sampled_data and rem_user_data repeat those of all_data."""
    paths = find_files(folder, FILES)
    for parents in (("all_data",), ("train", "test")):
        chosen = [path for path in paths if path.parent.name in parents]
        if chosen:
            return sorted(chosen, key=lambda path: (parents.index(path.parent.name), path.parent, _numbers(path)))
    chosen = [path for path in paths if path.parent == folder]
    if not chosen:
        raise InputError(
            f"{folder}: its all_data*.json are in no folder all_data, train or test; set [task] root to LEAF's data"
        )
    return sorted(chosen, key=_numbers)


def _numbers(path: Path) -> list[tuple[int, str]]:
    """Return the key that puts all_data_10 behind all_data_9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.name.replace(".", "_").split("_")]


def _read_writers(path: Path) -> Iterator[tuple[str, Samples]]:
    """Yield the writers of one file with their samples, in the order of ``users``."""
    content = parsed(path, _kept)
    users, sizes = listed(content, "users", path), listed(content, "num_samples", path)
    data = content.get("user_data")
    if not isinstance(data, dict) or len(sizes) != len(users):
        msg = f"{path}: it needs user_data, and as many num_samples ({len(sizes)}) as users ({len(users)})"
        raise InputError(f"{msg}; get the file again")
    for user, samples in data.items():  # LEAF leaves writers of one sample in user_data, without samples
        if user not in users and not (isinstance(samples, Samples) and not len(samples.y_N)):
            raise InputError(f"{path}: user {user!r} of user_data is not in users; get the file again")
    for index, (user, size) in enumerate(zip(users, sizes, strict=True)):
        if isinstance(user, str) and has_controls(user):
            raise InputError(f"{path}: user {user!r} holds control characters; get the file again")
        samples = data.get(user) if isinstance(user, str) else None
        if user in users[:index]:
            raise InputError(f"{path}: user {user!r} is listed twice in users; get the file again")
        if not isinstance(samples, Samples):
            raise InputError(f"{path}: user {user!r} has no user_data with x and y of one length; get the file again")
        if whole(size) != len(samples.y_N):
            raise InputError(
                f"{path}: user {user!r}: num_samples is {size}, user_data has {len(samples.y_N)}; get the file again"
            )
        yield user, samples


def _kept(entry: dict[str, Any]) -> Any:
    """Return the part of a JSON object that stays: the samples of a writer as bytes, as soon as they are read."""
    x, y = entry.get("x"), entry.get("y")
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        return entry
    faults = dict[int, str]()
    for number, (pixels, label) in enumerate(zip(x, y, strict=True)):
        if not isinstance(pixels, list) or len(pixels) != SIDE * SIDE:
            values = len(pixels) if isinstance(pixels, list) else 0
            faults[number] = f"x has {values} values, not {SIDE * SIDE}; correct it"
        elif not 0 <= whole(label) < len(CLASSES):
            faults[number] = f"y is {label!r}, not a whole number 0..{len(CLASSES) - 1}; correct it"
    usable = [number for number in range(len(x)) if number not in faults]
    x_ND = np.zeros((len(x), SIDE * SIDE), dtype=np.uint8)
    y_N = np.full(len(x), -1, dtype=np.int32)
    for number, levels in zip(usable, _levels([x[number] for number in usable]), strict=True):
        if levels is None:
            faults[number] = "x has a value that is no number 0..1; correct it"
        else:
            x_ND[number], y_N[number] = levels, y[number]
    return Samples(x_ND, y_N, faults)


def _levels(x: list[Any]) -> list[Pixels | None]:
    """Return whole numbers 0..255 of images of equal length, None where a value is no number 0..1."""
    try:
        x_ND = np.array(x)
    except ValueError:  # a list among the values
        x_ND = np.empty(0, dtype=object)
    if x_ND.ndim != 2 or x_ND.dtype.kind not in "fiu":
        return [levels for pixels in x for levels in _levels([pixels])] if len(x) > 1 else [None] * len(x)
    good_N = np.all((x_ND >= 0) & (x_ND <= 1), axis=1).tolist()
    # what is out of range is cut only to be convertible: it is not used
    levels_ND = np.rint(np.nan_to_num(np.clip(x_ND, 0, 1)) * LEVELS).astype(np.uint8)
    return [levels if good else None for levels, good in zip(levels_ND, good_N, strict=True)]


def _note(writers: dict[str, list[WriterSamples]], name: str, part: WriterSamples) -> None:
    """Add what a file has of a writer; of those with too many samples only the number is kept.

    Raises InputError where another file of the same folder has the writer too.
    """
    parts = writers.setdefault(name, [])
    twice = next((other.path for other in parts if other.path.parent == part.path.parent), None)
    if twice is not None:
        raise InputError(f"{part.path}: user {name!r} is listed in {twice} too; get the files again")
    parts.append(part)
    if _size(parts) >= BELOW:
        for index, each in enumerate(parts):
            empty = Samples(np.zeros((0, 0), np.uint8), each.samples.y_N, {})
            parts[index] = WriterSamples(each.path, each.start, empty)


def _size(parts: list[WriterSamples]) -> int:
    return sum(len(part.samples.y_N) for part in parts)


def _draw_writers(names: list[str], folder: Path, seed: int) -> dict[str, str]:
    """Draw the 50 writers from the given ones, and return the split of each."""
    total = sum(WRITERS.values())
    if len(names) < total:
        raise InputError(
            f"{folder}: {len(names)} writers have fewer than {BELOW} samples, {total} are needed; get all files"
        )
    order: Ints = np.random.default_rng(seed).permutation(len(names))[:total]
    splits = [split for split, count in WRITERS.items() for _ in range(count)]
    return {names[index]: split for index, split in zip(order.tolist(), splits, strict=True)}


def _rows(name: str, parts: list[WriterSamples], split: str, bad: BadRows) -> Table:
    """Return the usable samples of one writer."""
    for part in parts:
        for number, fault in sorted(part.samples.faults.items()):
            bad.meet(f"{part.path}: user {name!r}, sample {number + 1}: {fault}")
    y_N = np.concatenate([part.samples.y_N for part in parts])
    x_ND = np.concatenate([part.samples.x_ND for part in parts])
    row_N = np.concatenate([part.start + np.arange(len(part.samples.y_N)) for part in parts])
    index = np.flatnonzero(y_N >= 0)
    columns = {
        "row": row_N[index].astype(np.int64),
        "split": pa.array([split] * len(index), pa.string()),
        "labels": pa.ListArray.from_arrays(np.arange(len(index) + 1, dtype=np.int32), pa.array(y_N[index])),
        "pixels": pixel_column(x_ND[index].reshape(-1, SIDE, SIDE)),
        "subject": pa.array([name] * len(index), pa.string()),
    }
    return pa.table(columns)
