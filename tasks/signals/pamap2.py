"""PAMAP2: physical activities of 9 subjects by three motion sensors and a heart rate monitor, 100 Hz, single-label.

Files ``Protocol/subject101.dat`` to ``subject109.dat`` (or in the folder itself): 54 fields by blanks: timestamp (s),
activity id, heart rate (about 9 Hz), then 17 measures each of the sensors at hand, chest and ankle. 52 features remain.
``pamap2``: the 12 activities of the protocol; ``pamap2-optional``: also the 6 of ``Optional``, recorded by some of the
subjects. Activity ids and layout are those of the data set's own readme; id 0 is what lies between two activities.

As in FedAlign (KDD 2023): windows of 100 steps (one second) within one activity, without overlap; a fifth of the
windows is the test split, drawn over all subjects and not by subject. Chosen by us: the draw is stratified by class,
with a seed of the task's own; missing values, the heart rate between its samples among them, are interpolated linearly
over time inside a recording, before and after its first and last value with that value; the rest of less than 100 steps
at the end of an activity is left out; a feature without any value in a recording becomes the mean of the training rows.
Origin: Reiss and Stricker, ISWC 2012; UCI Machine Learning Repository, CC BY 4.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Ints, Table, fixed_lists
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import find_files
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.stratify import TEST, stratified_holdout
from anchorfl.tasks.signals.recordings import Recording, read_bytes, recording
from anchorfl.tasks.signals.series import PAYLOAD, encode_series, fit_series

PROTOCOL = {
    **{1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling", 7: "Nordic walking"},
    **{12: "ascending stairs", 13: "descending stairs", 16: "vacuum cleaning", 17: "ironing", 24: "rope jumping"},
}
OPTIONAL = {
    **{9: "watching TV", 10: "computer work", 11: "car driving", 18: "folding laundry", 19: "house cleaning"},
    20: "playing soccer",
}
TRANSIENT = 0
CLASSES = tuple(PROTOCOL.values())
TABLE_NAMES = {name: name.lower().replace(" ", "-") for name in CLASSES}
"""Class -> its row in the co-occurrence table of FedAlign's authors."""

_SENSOR = (
    "temperature",
    *(f"{measure} {axis}" for measure in ("acc16g", "acc6g", "gyroscope", "magnetometer") for axis in "xyz"),
    *(f"orientation {number}" for number in range(1, 5)),
)
FEATURES = ("heart rate", *(f"{site} {name}" for site in ("hand", "chest", "ankle") for name in _SENSOR))
COLUMNS = ("timestamp", "activity id", *FEATURES)
STEPS = 100
TEST_SHARE = 0.2
TEST_SEED = 8
THREADS = 2
"""Files read at once; the largest takes about half a gigabyte."""


def pamap2() -> Task:
    """Return the PAMAP2 task with the 12 activities of the protocol."""
    return Task(
        name="pamap2",
        title="PAMAP2, physical activities, protocol",
        class_names=CLASSES,
        kind="single",
        payload=PAYLOAD,
        source=Source(
            files=("**/subject10*.dat",),
            url="https://archive.ics.uci.edu/dataset/231/pamap2+physical+activity+monitoring",
            licence="CC BY 4.0",
        ),
        folder="pamap2",
        read=read,
        fit=fit,
        encode=encode_series,
        subjects="subject",
        table_names=TABLE_NAMES,
    )


def pamap2_optional() -> Task:
    """Return the PAMAP2 task with all 18 activities."""
    task = pamap2()
    return replace(
        task,
        name="pamap2-optional",
        title="PAMAP2, physical activities, protocol and optional",
        class_names=(*PROTOCOL.values(), *OPTIONAL.values()),
        source=replace(task.source, files=("**/Protocol/subject10*.dat", "**/Optional/subject10*.dat")),
        read=read_optional,
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the windows by subject and time: 100 steps of 52 features. Raises InputError with file, line and field."""
    paths = _files(folder, "**/subject10*.dat")
    protocol = [path for path in paths if path.parent.name == "Protocol"]
    protocol = protocol or [path for path in paths if path.parent.name != "Optional"]
    if not protocol:
        raise InputError(
            f"{folder}: only recordings of Optional are here; put subject101.dat and its like of Protocol there too"
        )
    return _read(protocol, PROTOCOL, options)


def read_optional(folder: Path | None, options: TaskOptions) -> Table:
    """Do what ``read`` does, the protocol first, then the optional activities."""
    parts = [_files(folder, f"**/{name}/subject10*.dat") for name in ("Protocol", "Optional")]
    return _read([path for part in parts for path in part], PROTOCOL | OPTIONAL, options)


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: 100 steps of 52 features; mean and deviation of the training windows."""
    return fit_series(train, STEPS, len(FEATURES))


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of one recording."""

    subject: str
    reading: Any
    """List array of 100 x 52 floats."""
    label_N: Ints
    """Classes."""
    faults: list[str]
    """Rows that were left out."""


def _files(folder: Path | None, pattern: str) -> list[Path]:
    if folder is None:
        raise ValueError("pamap2 needs the folder of its files")
    return find_files(folder, pattern)


def _read(paths: Sequence[Path], activities: Mapping[int, str], options: TaskOptions) -> Table:
    """Return the table of some recordings. activities: id -> name, in the order of the classes."""
    seen = dict[tuple[str, str], Path]()
    for path in paths:
        key = (path.parent.name if path.parent.name == "Optional" else "", _subject(path))
        if key in seen:
            raise InputError(
                f"{path}: a recording of subject {key[1]} is in {seen[key]} already; keep one of the two files"
            )
        seen[key] = path
    bad = BadRows.of(options)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(partial(_windows, activities=activities), paths))
    for part in parts:
        for message in part.faults:
            bad.meet(message)
    label_N = np.concatenate([part.label_N for part in parts])
    if not len(label_N):
        raise InputError(
            f"{paths[0].parent}: no recording has {STEPS} steps of one activity in a row; get the files again"
        )
    row_N = np.arange(len(label_N), dtype=np.int64)
    test_N = stratified_holdout(
        label_N, row_N, TEST_SHARE, np.random.default_rng(options.seed_of_split(TEST_SEED)), option=TEST
    )
    columns = {
        "row": row_N,
        "split": pa.array(np.where(np.isin(row_N, test_N), "test", "train")),
        "labels": pa.ListArray.from_arrays(
            np.arange(len(label_N) + 1, dtype=np.int32), pa.array(label_N.astype(np.int32))
        ),
        "subject": pa.array(np.repeat([part.subject for part in parts], [len(part.label_N) for part in parts])),
        PAYLOAD: pa.chunked_array([part.reading for part in parts]),
    }
    return bad.noted(pa.table(columns))


def _windows(path: Path, activities: Mapping[int, str]) -> _Windows:
    """Return the windows of one recording."""
    data = read_bytes(path)
    if not data:
        raise InputError(f"{path}: the file is empty; get it again")
    steps = recording(path, data, COLUMNS, " ", header=False)
    del data  # as large as all that is made of it
    id_N = steps.value_DN[0]
    known = ", ".join(f"{number} {name}" for number, name in activities.items())
    steps = steps.without(
        ~np.isin(id_N, [TRANSIENT, *activities]),
        lambda n: (
            f"{id_N[n]:g} in column 'activity id' is no activity of {path.parent.name}: there are {known}, and "
            f"{TRANSIENT} in between; correct or remove the line"
        ),
    ).in_order("this subject")
    _interpolate(steps)
    first_N, class_N = _cut(steps.value_DN[0].astype(np.int64), activities)
    reading_NLF = steps.value_DN[1:].T[first_N[:, None] + np.arange(STEPS)]
    reading = fixed_lists(reading_NLF.reshape(len(first_N), STEPS * len(FEATURES)))
    return _Windows(_subject(path), reading, class_N, steps.messages())


def _cut(id_S: Ints, activities: Mapping[int, str]) -> tuple[Ints, Ints]:
    """Return the first step and the class of every window. id_S: activity of every step."""
    start = np.flatnonzero(np.append(True, id_S[1:] != id_S[:-1])[: len(id_S)])
    length = np.diff(np.append(start, len(id_S)))
    windows = np.where(id_S[start] == TRANSIENT, 0, length // STEPS)
    within_N = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)
    first_N: Ints = np.repeat(start, windows) + within_N * STEPS
    class_of = np.full(max(activities) + 1, -1, dtype=np.int64)
    class_of[[*activities]] = np.arange(len(activities))
    return first_N, class_of[id_S[first_N]]


def _interpolate(steps: Recording) -> None:
    """Fill the missing values of every feature from its neighbours in time, in place."""
    for value_N in steps.value_DN[1:]:
        missing_N = np.isnan(value_N)
        if missing_N.any() and not missing_N.all():
            there_N = ~missing_N
            value_N[missing_N] = np.interp(steps.time_N[missing_N], steps.time_N[there_N], value_N[there_N])


def _subject(path: Path) -> str:
    """Return 101 of ``subject101.dat``."""
    number = re.match(r"subject(\d+)\.", path.name)
    if number is None:
        raise InputError(f"{path}: no recording of a subject; name it subject101.dat and so on, or remove it")
    return number[1]
