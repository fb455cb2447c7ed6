"""Synthetic ExtraSensory: made-up days of 10 people. What they do, where, and with whom go together, and every label
leaves its pattern in the features; with missing labels, missing sensors, jittered minutes and holes as in the real
files.
"""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.tasks.signals.extrasensory_columns import CLASSES, COLUMNS, FEATURES

USERS = 10
FOLDS = 5
SITUATIONS = (
    ("lying down", "sleeping", "home", "indoors", "phone on table"),
    ("sitting", "watching TV", "home", "indoors", "eating", "surfing the internet"),
    ("standing", "cooking", "home", "indoors", "washing dishes", "cleaning", "doing laundry", "singing"),
    ("standing", "toilet", "grooming", "dressing", "bathing or shower", "home"),
    ("sitting", "computer work", "main workplace", "indoors", "with co-workers", "in a meeting", "lab work"),
    ("sitting", "in class", "at school", "indoors", "phone in bag", "with friends", "talking"),
    ("sitting", "in a car", "driving as the driver", "driving as a passenger", "phone in pocket", "on a bus"),
    ("walking", "outside", "strolling", "phone in hand", "stairs going up", "stairs going down", "beach", "elevator"),
    ("running", "bicycling", "exercise", "at the gym", "phone in pocket", "outside"),
    ("restaurant", "eating", "with friends", "drinking alcohol", "at a bar", "at a party", "talking", "shopping"),
)
"""Classes that go together; the first of each is the most likely. Every class is in one."""
SENSORS = (0, 26, 52, 83, 129, 138, 155, 183)
"""First feature of every sensor; the last has the phone's state, which is always there."""


def write(folder: Path, rows: int, seed: int) -> None:
    """Write ``<UUID>.features_labels.csv.gz`` of 10 users with ``rows`` minutes in all, and ``cv_5_folds``."""
    rng = np.random.default_rng([seed, 60])
    folder.mkdir(parents=True, exist_ok=True)
    pattern_CF = rng.normal(0, 1, (len(CLASSES), len(FEATURES)))
    scale_F, base_F = rng.uniform(0.1, 20, len(FEATURES)), rng.normal(0, 50, len(FEATURES))
    users = [_uuid(rng) for _ in range(USERS)]
    runs = 0
    for number, user in enumerate(users):
        label_NC, run_N = _days(max(60, rows // USERS), runs, rng)
        runs = int(run_N[-1]) + 1
        value_NF = (label_NC == 1) @ pattern_CF + rng.normal(0, 0.2, len(FEATURES))
        value_NF = base_F + scale_F * (value_NF + rng.normal(0, 0.5, value_NF.shape))
        _lose_sensors(value_NF, run_N, rng)
        missing = "nan" if number % 2 else ""  # the real files come with either
        _write(folder / f"{user}.features_labels.csv.gz", _times(run_N, rng), value_NF, label_NC, missing)
    _write_folds(folder / "cv_5_folds", users)


def _days(minutes: int, first: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return the labels 0, 1 or nan of every minute, and the number of the stretch that it is in: 1 to 40 minutes
    alike. first: number of the first; ten in a row are in all situations, and each in turn has one of its labels for
    certain.
    """
    label_NC, run_N = np.zeros((minutes, len(CLASSES))), np.zeros(minutes, dtype=np.int64)
    start, run = 0, first
    while start < minutes:
        end = start + int(rng.integers(20, 41) if rng.random() < 0.2 else rng.geometric(0.2))
        members = [CLASSES.index(name) for name in SITUATIONS[run % len(SITUATIONS)]]
        label_C = np.zeros(len(CLASSES))
        label_C[members] = rng.random(len(members)) < np.linspace(0.95, 0.35, len(members))
        label_C[members[run // len(SITUATIONS) % len(members)]] = 1
        label_NC[start:end] = label_C
        label_NC[start:end, (rng.random(len(CLASSES)) < 0.3) & (label_C == 0)] = np.nan
        if rng.random() < 0.1:  # then some minutes without any positive label
            end += int(rng.integers(1, 5))
        run_N[start:end] = run
        start, run = end, run + 1
    return label_NC, run_N


def _times(run_N: Any, rng: np.random.Generator) -> Any:
    """Return seconds: 60 apart, most of them jittered, with a hole now and then, also within a stretch."""
    gap_N = np.where(rng.random(len(run_N)) < 0.5, 60, rng.integers(27, 106, len(run_N)))
    hole_N = rng.random(len(run_N)) < 0.03
    gap_N[hole_N] = rng.integers(115, 4000, int(hole_N.sum()))
    return 1_440_000_000 + np.cumsum(gap_N)


def _lose_sensors(value_NF: Any, run_N: Any, rng: np.random.Generator) -> None:
    """Remove all features of a sensor in some stretches, and single ones in some minutes. In place."""
    for begin, end in pairwise(SENSORS):
        lost = np.flatnonzero(rng.random(run_N[-1] + 1) < 0.15)
        value_NF[np.isin(run_N, lost), begin:end] = np.nan
    value_NF[:, : SENSORS[-1]][rng.random((len(value_NF), SENSORS[-1])) < 0.01] = np.nan


def _write(path: Path, time_N: Any, value_NF: Any, label_NC: Any, missing: str) -> None:
    features, labels = np.char.mod("%.6f", value_NF), np.char.mod("%.1f", label_NC)
    lines = [",".join(COLUMNS)]
    for time, row, label in zip(time_N, features, labels, strict=True):
        source = "2.0" if (label == "1.0").any() else "-1.0"
        fields = (missing if field == "nan" else field for field in (*row, *label))
        lines.append(f"{time},{','.join(fields)},{source}")
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode("ascii"), mtime=0))  # no time of writing: the same bytes every time


def _write_folds(folder: Path, users: list[str]) -> None:
    """Write the folds: two users are tested in each, one with an iPhone, the other with an Android phone."""
    folder.mkdir(exist_ok=True)
    for fold in range(FOLDS):
        tested = users[fold::FOLDS]
        for phone, half in (("iphone", users[:FOLDS]), ("android", users[FOLDS:])):
            for split, members in (("test", tested), ("train", [user for user in users if user not in tested])):
                path = folder / f"fold_{fold}_{split}_{phone}_uuids.txt"
                path.write_text("".join(f"{user}\n" for user in members if user in half), encoding="ascii")


def _uuid(rng: np.random.Generator) -> str:
    digits = rng.bytes(16).hex().upper()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
