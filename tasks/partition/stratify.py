"""The parts that partitions share: primary classes, whole-number shares, stratified hold-out, named generators.

Shape suffixes: N rows, C classes, K strata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.errors import InputError

TEST = "the share of the test split"
"""Name in messages of the share of a drawn test split."""


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The rows that a partition cuts."""

    labels: Labels
    """Labels of N rows."""
    row_N: Ints
    """Ids of the rows."""
    subject_N: npt.NDArray[np.str_] | None = None
    """Subject of each; None where the data set has no subjects."""
    whole_N: Ints | None = None
    """The whole that each is a piece of; None where every row is one by itself."""
    given_N: Bools | None = None
    """Whether the raw data give any label of each; None: of all."""

    def take(self, index: Ints) -> TrainingRows:
        """Return some of the rows."""
        subject_N = None if self.subject_N is None else self.subject_N[index]
        whole_N = None if self.whole_N is None else self.whole_N[index]
        given_N = None if self.given_N is None else self.given_N[index]
        return TrainingRows(self.labels.take(index), self.row_N[index], subject_N, whole_N, given_N)

    def held_out(self, share: float, rng: np.random.Generator, rarest_N: Ints | None = None) -> Ints:
        """Return the ascending ids of a share of the wholes, stratified by the class of their first row.

        rarest_N: the class of every row; None: its rarest. Wholes stay together, as a model that has seen a piece of a
        sequence is not asked for its neighbour. Raises InputError where so many cannot be taken.
        """
        rarest_N = self.labels.rarest() if rarest_N is None else rarest_N
        if self.whole_N is None:
            return stratified_holdout(rarest_N, self.row_N, share, rng)
        _, first_W, code_N = np.unique(self.whole_N, return_index=True, return_inverse=True)
        taken = stratified_holdout(rarest_N[first_W], np.arange(len(first_W)), share, rng, "sequences")
        return np.sort(self.row_N[np.isin(code_N, taken)])


def generator(seed: int, *purpose: str) -> np.random.Generator:
    """Return the random generator of one purpose within a partition."""
    name = hashlib.sha256(repr((seed, "partition", *purpose)).encode()).digest()
    return np.random.default_rng(int.from_bytes(name[:8], "big"))


def stratified_holdout(
    labels_N: Ints,
    row_ids: Ints,
    share: float,
    rng: np.random.Generator,
    rows: str = "rows",
    option: str = "[task] validation",
) -> Ints:
    """Return the ascending ids of ``round(share * N)`` rows, each class in proportion, each class keeping at least one
    row.

    labels_N: (primary) class of every row; rows: what they are, and option: what asks for it, in words. Raises
    InputError where so many cannot be taken.
    """
    if not 0 <= share < 1:
        raise InputError(f"{option} = {share} must lie in [0, 1)")
    _, code_N, count_K = np.unique(labels_N, return_inverse=True, return_counts=True)
    total = round(share * len(labels_N))
    if total > (count_K - 1).sum():
        raise InputError(
            f"{option} = {share} takes {total} of {len(labels_N)} {rows}, but each of {len(count_K)} classes must keep "
            f"one for training; use at most {(count_K - 1).sum() / len(labels_N):.3f}, or more data"
        )
    take_K = largest_remainder(share * count_K, total, count_K - 1)
    order_N = rng.permutation(len(labels_N))
    order_N = order_N[np.argsort(code_N[order_N], kind="stable")]
    rank_N = np.arange(len(order_N)) - np.repeat(np.cumsum(count_K) - count_K, count_K)
    return np.sort(np.asarray(row_ids, dtype=np.int64)[order_N[rank_N < np.repeat(take_K, count_K)]])


def largest_remainder(share_K: npt.NDArray[np.floating[Any]], total: int, room_K: Ints | None = None) -> Ints:
    """Return whole numbers that add to ``total``, near ``share_K``, at most ``room_K``: floors, then the largest
    remainders.

    Of equal remainders the smaller share's comes first, then the lower index. Raises ValueError where the room is too
    small.
    """
    room_K = np.full(len(share_K), total) if room_K is None else room_K
    if room_K.sum() < total:
        raise ValueError(f"{total} do not fit into a room of {room_K.sum()}")
    share_K = share_K * (1 - 1e-12)  # rounding must not lift the floors above the total
    count_K: Ints = np.minimum(np.floor(share_K).astype(np.int64), room_K)
    order_K = np.argsort(-(share_K - np.floor(share_K)), kind="stable")
    while (missing := total - int(count_K.sum())) > 0:
        count_K[order_K[count_K[order_K] < room_K[order_K]][:missing]] += 1
    return count_K


def classes_in(labels: Labels) -> tuple[int, ...]:
    """Return the classes that occur, ascending."""
    return tuple(np.flatnonzero(labels.counts()).tolist())


def group_rows(group_N: Ints, groups: int) -> list[Ints]:
    """Return the rows of every group, ascending; group_N: the group of every row, in 0..groups-1."""
    order_N = np.argsort(group_N, kind="stable")
    return np.split(order_N, np.cumsum(np.bincount(group_N, minlength=groups))[:-1])


def check_present(labels: Labels, class_names: Sequence[str]) -> None:
    """Raise InputError where a class has no row."""
    absent_C = labels.counts() == 0
    if absent_C.any():
        absent = describe_classes(absent_C, class_names)
        raise InputError(
            f"{absent} has no training row; use a smaller [task] validation, leave out rare classes with"
            " --task.min_positives, or give more data"
        )


def describe_classes(chosen_C: Bools, class_names: Sequence[str]) -> str:
    """Return the names of classes for a message, the first ten of them."""
    chosen = np.flatnonzero(chosen_C).tolist()
    more = f" and {len(chosen) - 10} more" if len(chosen) > 10 else ""
    return "class " + ", ".join(repr(class_names[c]) for c in chosen[:10]) + more
