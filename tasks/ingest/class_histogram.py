"""Number of rows per client and class, also of classes that the client does not identify. For plots and checks only; a
method never sees it.

Of ten thousand clients that share rows these are millions of pairs, so they are a file beside the manifest, which
every process of a run reads.

Shape suffixes: C classes, M clients, H pairs of a client and a class that it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Column, Ints, Table
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import IntLists, offsets
from anchorfl.tasks.ingest.manifest import ClientCounts, Manifest


@dataclass(frozen=True, slots=True)
class ClassHistogram:
    """Number of rows per client and class, as the pairs that occur, in ascending order."""

    client_H: Ints
    """Client of every pair, int64."""
    class_H: Ints
    """Class of every pair, int64."""
    rows_H: Ints
    """Rows of the class that the client holds, at least 1, int64."""

    @classmethod
    def of(cls, labels: Iterable[Labels]) -> ClassHistogram:
        """Return the histogram of the labels of every client's rows."""
        pairs = [np.unique(client_labels.class_P, return_counts=True) for client_labels in labels]
        client_H = np.repeat(np.arange(len(pairs)), [len(class_) for class_, _ in pairs])
        none = np.zeros(0, dtype=np.int64)
        class_H, rows_H = (np.concatenate([none, *(pair[i] for pair in pairs)]).astype(np.int64) for i in (0, 1))
        return cls(client_H, class_H, rows_H)

    @classmethod
    def from_table(cls, table: Table, clients: int, classes: int) -> ClassHistogram:
        """Return the histogram of a stored table.

        Raises KeyError where a column lacks, ValueError on values that no file of so many clients and classes holds.
        """
        columns = (("client", 0, clients - 1), ("class", 0, classes - 1), ("rows", 1, math.inf))
        return cls(*(_whole(table[name], name, *bounds) for name, *bounds in columns))

    def table(self) -> Table:
        """Return the table that is stored."""
        return pa.table({"client": self.client_H, "class": self.class_H, "rows": self.rows_H})

    def counts(self, classes: int) -> Ints:
        """Return the rows of every class over all clients, int64 [C]; a row that several hold counts for each."""
        count_C = np.zeros(classes, dtype=np.int64)
        np.add.at(count_C, self.class_H, self.rows_H)
        return count_C

    def known_to(self, identified: IntLists, classes: int) -> ClientCounts:
        """Return the pairs of the classes that each client identifies. classes: C."""
        key_H, client_P = (
            self.client_H * classes + self.class_H,
            np.repeat(np.arange(len(identified)), np.diff(identified.offset_N1)),
        )
        known_H = np.isin(key_H, client_P * classes + identified.value_P)
        offset_N1 = offsets(np.bincount(self.client_H[known_H], minlength=len(identified)))
        parts = (IntLists(values[known_H], offset_N1) for values in (self.class_H, self.rows_H))
        return ClientCounts(*parts)

    def matrix(self, clients: int, classes: int) -> Ints:
        """Return the histogram as a matrix, int64 [M, C]."""
        rows_MC = np.zeros((clients, classes), dtype=np.int64)
        rows_MC[self.client_H, self.class_H] = self.rows_H
        return rows_MC


def class_counts(manifest: Manifest, histogram: ClassHistogram) -> Ints:
    """Return the different rows of all clients that have each class, int64 [C].

    With ``one_class`` a row is with the client of each of its classes; a class is counted with its own client.
    """
    if manifest.options.partition != "one_class":
        return histogram.counts(len(manifest.class_names))
    count_C = np.zeros(len(manifest.class_names), dtype=np.int64)
    for class_, number in chain.from_iterable(manifest.counts):
        count_C[class_] += number
    return count_C


def _whole(column: Column, name: str, least: int, most: float) -> Ints:
    if column.null_count or not pa.types.is_int64(column.type):
        raise ValueError(f"{column.null_count} nulls in the column {name} of {column.type}, which needs int64")
    value_H = np.asarray(column.to_numpy(), dtype=np.int64)
    if len(value_H) and not least <= value_H.min() <= value_H.max() <= most:
        raise ValueError(
            f"{name} from {value_H.min()} to {value_H.max()}, where {least} is the least and {most} the most"
        )
    return value_H
