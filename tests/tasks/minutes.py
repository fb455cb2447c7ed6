"""Made-up ExtraSensory files for tests: to read, to compare, to spoil."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow.compute as pc

from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.signals.extrasensory_columns import COLUMNS


def options(**changed):
    return TaskOptions(name="extrasensory", **{"fold": 0, **changed})


def files(folder):
    return sorted(folder.glob("*.features_labels.csv.gz"))


def lines_of(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def same(one, other):
    """Return True for equal tables; a missing reading is equal to another."""
    readings = [table["readings"].combine_chunks().flatten().to_numpy() for table in (one, other)]
    lengths = [table.append_column("steps", pc.list_value_length(table["readings"])) for table in (one, other)]
    rest = [table.drop_columns(["readings"]) for table in lengths]
    return rest[0].equals(rest[1]) and np.array_equal(*readings, equal_nan=True)


def edit(path, line, change):
    """Change the fields of one line (from 1) of a file."""
    lines = lines_of(path)
    fields = lines[line - 1].split(",")
    change(fields)
    lines[line - 1] = ",".join(fields)
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))


def put(column, text, columns=COLUMNS):
    """Return a change of a line's fields: this text in a column."""

    def change(fields):
        fields[columns.index(column)] = text

    return change
