"""ExtraSensory: what 60 people did, minute by minute, from phone and watch; 225 features, 51 labels, multi-label.

One file per user, ``<UUID>.features_labels.csv.gz``: timestamp (s), 225 features, 51 labels 0, 1 or missing, and
``label_source``. A missing label is unknown (``known``), a missing feature becomes the mean of the training rows. As in
FedAlign (KDD 2023): consecutive minutes of one user with the same labels and the same labels missing are one sequence,
cut into pieces of 10 (``piece_of``), all on the same side of every split; minutes without a positive label are left
out; shorter sequences are padded with zeros.
Chosen by us: two minutes are consecutive where less than 110 s lie between them. The gaps of the real files have their
valley at 106 to 114 s, between jittered minutes (27 to 105 s) and a minute that was missed (120 s). The authors' code
looks at no timestamps, so that it joins minutes that are hours apart.

The test split is one of five folds. ``users``, the default variant: the data set's own folds of whole users
(``cv_5_folds``); without that folder, folds of whole users are drawn with a seed of the task's own. ``sequences``:
folds of sequences before they are cut, whoever's they are; drawn once, so that five runs test every sequence once.
The same users are then on both sides, and scores are higher. With a ``split_seed`` they are scikit-learn's
``KFold(5, shuffle=True, random_state=split_seed)``, as FedAlign's authors have it (dataset/dataset_extrasensory.py),
who draw with the run's seed (``none``) and test fold 0 at their first seed, 1 at the second, and so on (``fold``).
Counts of 16 of the 60 users (the files that tests read where they are present): 58988 minutes, 50559 with a positive
label, 9754 sequences of 5.2 minutes on average. Origin: Vaizman, Ellis and Lanckriet, IEEE Pervasive Computing 16(4),
2017; terms: publicly available, publications must cite that paper; no licence to redistribute is stated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Bools, Column, Ints, Table
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.contract import InputSpec, Source, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.raw_files import find_files, open_text, variant
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.signals.extrasensory_columns import CLASSES, COLUMNS, FEATURES, GROUPS, LABELS, TABLE_NAMES
from anchorfl.tasks.signals.recordings import Recording, read_bytes, recording
from anchorfl.tasks.signals.series import PAYLOAD, encode_series, fit_series

FILES = "*.features_labels.csv"
USERS, SEQUENCES = "users", "sequences"
STEPS = 10
"""Minutes of a sequence at most."""
GAP = 110
"""Seconds from which on two minutes are not consecutive."""
FOLDS = 5
FOLDS_FOLDER = "cv_5_folds"
SPLIT_SEED = 8
THREADS = 8
"""Files read at once at most; one takes about 15 MB."""


def extrasensory() -> Task:
    """Return the ExtraSensory task."""
    return Task(
        name="extrasensory",
        title="ExtraSensory, minutes of daily life from phone and watch",
        class_names=CLASSES,
        kind="multi",
        payload=PAYLOAD,
        source=Source(
            files=(FILES.replace(".csv", f"{{{USERS}=|{SEQUENCES}=}}.csv"),),
            url="http://extrasensory.ucsd.edu",
            licence="public; publications must cite Vaizman et al. 2017; no licence to redistribute",
            optional=(f"{FOLDS_FOLDER}/fold_*_test_*_uuids.txt",),
        ),
        folder="extrasensory",
        read=read,
        fit=fit,
        encode=encode_series,
        groups=GROUPS,
        subjects="user",
        folds=FOLDS,
        table_names=TABLE_NAMES,
    )


def read(folder: Path | None, options: TaskOptions) -> Table:
    """Return the sequences by user and time; ``readings`` are their minutes of 225 features, one after the other.

    Raises InputError with file, line and field.
    """
    if folder is None:
        raise ValueError("extrasensory needs the folder of its files")
    if not 0 <= options.fold < FOLDS:
        raise InputError(f"[task] fold = {options.fold} must be one of 0..{FOLDS - 1}: extrasensory has {FOLDS} folds")
    paths = _users(find_files(folder, FILES))
    whole_users = variant(extrasensory(), options) == USERS
    fold_U = _folds(folder, tuple(paths), options.seed_of_split(SPLIT_SEED)) if whole_users else []
    if whole_users and options.fold not in fold_U:
        present = ", ".join(map(str, sorted(set(fold_U))))
        raise InputError(
            f"{folder}: no user of fold {options.fold} is here, only of {present}; choose one of those as [task] fold"
        )
    bad = BadRows.of(options)
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        users = list(pool.map(_user, paths.values()))
    for user in users:
        for message in user.faults:
            bad.meet(message)
    sequence_N = _all_sequences(users)
    if whole_users:
        fold_N = np.repeat(fold_U, [len(u.length_N) for u in users])
    else:
        fold_N = _folds_of_sequences(sequence_N, options)
    return bad.noted(_table(tuple(paths), users, sequence_N, fold_N == options.fold))


def fit(train: Table, options: TaskOptions) -> InputSpec:
    """Return the spec: 10 steps of 225 features; mean and deviation of the training minutes."""
    return fit_series(train, STEPS, len(FEATURES))


@dataclass(frozen=True, slots=True)
class _User:
    """N pieces of the sequences of one user, of S minutes in all."""

    reading_SF: npt.NDArray[np.float32]
    """Features of every minute, float32."""
    length_N: Ints
    """Minutes of every piece."""
    sequence_N: Ints
    """Number of the user's sequence that a piece is of."""
    label_NC: npt.NDArray[np.int8]
    """0, 1, or 2 where it is missing."""
    faults: list[str]
    """Rows that were left out."""


def _all_sequences(users: Sequence[_User]) -> Ints:
    """Return the sequence of every piece, numbered over all users."""
    count_U = [int(user.sequence_N.max(initial=-1)) + 1 for user in users]
    start_U = np.cumsum([0, *count_U])
    return np.concatenate([start + u.sequence_N for start, u in zip(start_U, users, strict=False)])


def _folds_of_sequences(sequence_N: Ints, options: TaskOptions) -> Ints:
    """Return the fold of every piece: that of its whole sequence."""
    fold_Q = np.empty(int(sequence_N.max(initial=-1)) + 1, dtype=np.int64)
    seed = options.seed_of_split(SPLIT_SEED)
    if options.split_seed == -1:
        order_Q = np.random.default_rng(seed).permutation(len(fold_Q))
        fold_Q[order_Q] = np.arange(len(fold_Q)) % FOLDS
    elif seed >= 1 << 32:
        raise InputError(f"[task] split_seed = {seed}: KFold's seeds lie below 2^32; take one of them")
    elif len(fold_Q) < FOLDS:
        raise InputError(f"extrasensory: {len(fold_Q)} sequences are too few for {FOLDS} folds; get more of the files")
    else:
        from sklearn.model_selection import KFold  # slow to import, and nothing else needs it

        drawn = KFold(FOLDS, shuffle=True, random_state=seed)
        for fold, (_, tested_Q) in enumerate(drawn.split(fold_Q)):
            fold_Q[tested_Q] = fold
    return np.asarray(fold_Q[sequence_N])


def _table(names: Sequence[str], users: Sequence[_User], sequence_N: Ints, test_N: Bools) -> Table:
    """Return the table of all users."""
    sizes = [len(user.length_N) for user in users]
    if not sum(sizes):
        raise InputError("extrasensory: no minute of any file has a positive label; get the files again")
    label_NC = np.concatenate([user.label_NC for user in users])
    columns = {
        "row": np.arange(len(label_NC), dtype=np.int64),
        "split": pa.array(["train", "test"]).take(test_N.astype(np.int64)),
        "labels": _lists(np.nonzero(label_NC == 1)[1].astype(np.int32), (label_NC == 1).sum(1)),
        "known": _lists(np.nonzero(label_NC != 2)[1].astype(np.int32), (label_NC != 2).sum(1)),
        "subject": pa.array(names).take(np.repeat(np.arange(len(names)), sizes)),
        "piece_of": sequence_N,
        PAYLOAD: pa.chunked_array([_lists(user.reading_SF.ravel(), user.length_N * len(FEATURES)) for user in users]),
    }
    return pa.table(columns)


def _lists(values: npt.NDArray[Any], length_N: Ints) -> Column:
    """Return a list column of all values and the length of every row."""
    return pa.ListArray.from_arrays(pa.array(offsets(length_N).astype(np.int32)), pa.array(values))


def _user(path: Path) -> _User:
    """Return the sequences of one file. Raises InputError where the file as a whole is wrong."""
    data = read_bytes(path)
    _check_header(path, data)
    minutes = recording(path, data, COLUMNS, ",", header=True)
    label_CN = minutes.value_DN[len(FEATURES) : -1]
    wrong_CN = ~((label_CN == 0) | (label_CN == 1) | np.isnan(label_CN))

    def fault(n: int) -> str:
        c = int(wrong_CN[:, n].argmax())
        return f"{label_CN[c, n]:g} in column 'label:{LABELS[c]}'; a label is 0, 1 or nan: correct or remove the line"

    minutes = minutes.without(wrong_CN.any(0), fault).in_order("this user")
    return _sequences(minutes)


def _sequences(minutes: Recording) -> _User:
    """Cut runs of consecutive minutes with the same labels into pieces of at most 10."""
    label_NC = np.nan_to_num(minutes.value_DN[len(FEATURES) : -1], nan=2).astype(np.int8).T
    kept_N: Bools = (label_NC == 1).any(1)
    joined_N = np.zeros(len(kept_N), dtype=np.bool_)
    joined_N[1:] = (
        kept_N[1:]
        & (np.diff(minutes.time_N) < GAP)
        & (label_NC[1:] == label_NC[:-1]).all(1)  # so the one before is kept too
    )
    index = np.flatnonzero(kept_N)
    start = np.flatnonzero(~joined_N[index])
    within = np.arange(len(index)) - np.repeat(start, np.diff(np.append(start, len(index))))
    begin = np.flatnonzero(within % STEPS == 0)
    reading_SF = np.ascontiguousarray(minutes.value_DN[: len(FEATURES), index].T)
    length_N = np.diff(np.append(begin, len(index)))
    sequence_N = np.searchsorted(start, begin, side="right") - 1
    return _User(reading_SF, length_N, sequence_N, label_NC[index[begin]], minutes.messages())


def _check_header(path: Path, data: bytes) -> None:
    """Raise InputError where the columns are not those of the data set."""
    if not data:
        raise InputError(f"{path}: the file is empty; get it again")
    names = data.partition(b"\n")[0].rstrip(b"\r").decode(errors="replace").split(",")
    hint = "get the file of features and labels as the data set has it"
    for number, (name, expected) in enumerate(zip(names, COLUMNS, strict=False), 1):
        if name != expected:
            raise InputError(f"{path}:1: column {number} is {name!r} instead of {expected!r}; {hint}")
    if len(names) != len(COLUMNS):
        raise InputError(f"{path}:1: {len(names)} columns instead of {len(COLUMNS)}; {hint}")


def _users(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the file of every user, by name."""
    users = dict[str, Path]()
    for path in paths:
        user = path.name.partition(".")[0]
        if user in users:
            raise InputError(f"{path}: {users[user].name} is of the same user; keep one of the two files")
        users[user] = path
    return dict(sorted(users.items()))


def _folds(folder: Path, users: Sequence[str], seed: int) -> list[int]:
    """Return the fold in which every user is tested: as published, else drawn."""
    if not (folder / FOLDS_FOLDER).is_dir():
        order = np.random.default_rng(seed).permutation(len(users))
        fold_U = np.empty(len(users), dtype=np.int64)
        fold_U[order] = np.arange(len(users)) % FOLDS
        return [int(fold) for fold in fold_U]
    fold_of = dict[str, int]()
    for fold in range(FOLDS):
        for path in find_files(folder, f"{FOLDS_FOLDER}/fold_{fold}_test_*_uuids.txt"):
            for number, line in open_text(path):
                if (user := line.strip()) and fold_of.setdefault(user, fold) != fold:
                    raise InputError(
                        f"{path}:{number}: user {user} is tested in fold {fold_of[user]} already; get the folds again"
                    )
    for user in users:
        if user not in fold_of:
            raise InputError(
                f"{folder / FOLDS_FOLDER}: no test fold has user {user}; add the user to one, or remove the folder"
            )
    return [fold_of[user] for user in users]
