"""Encoding of raw rows into the files of their owners: plain values and pure functions, which go to workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.arrays.disclosure import disclose_table, stored_type
from anchorfl.tasks.contract import InputSpec, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.prepared import client_file, client_test_file, table_bytes
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.scaling import IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True, slots=True)
class Encoding:
    """The part of a preparation that a worker needs to encode rows."""

    task: Task
    spec: InputSpec
    classes: tuple[tuple[int, ...], ...]
    """Identified classes of every owner: the clients, then the server's test and validation rows, and the test rows of
    every client (all classes).
    """
    clients: int
    """Number of clients."""

    def name(self, owner: int) -> str:
        """Return the name of an owner's file."""
        if owner < self.clients:
            return client_file(owner)
        beyond = owner - self.clients
        return ("test.parquet", "validation.parquet")[beyond] if beyond < 2 else client_test_file(beyond - 2)

    def encode(self, table: Table) -> Table:
        """Return columns row, labels, known and x; x is a list of variable size, which Ray Data keeps as it is."""
        encoded = self.task.encode(table, self.spec)
        x = encoded["x"].cast(pa.list_(stored_type(encoded["x"].type.value_type)))
        return pa.table({n: x if n == "x" else encoded[n] for n in (*kept_columns(encoded), "x")})

    def file(self, table: Table, owner: int) -> tuple[bytes, str]:
        """Return the rows of one owner, with the labels that it may see, as a file, and the digest of its content."""
        return table_bytes(disclose_table(table, self.classes[owner], len(self.task.class_names), self.task.kind))


def kept_columns(table: Table) -> list[str]:
    """Return the columns that encoding leaves as they are."""
    return [name for name in ("row", "labels", "known") if name in table.column_names]


def set_normalization(spec: InputSpec, options: TaskOptions) -> InputSpec:
    """Return the spec with the mean and deviation that ``options.normalize`` asks for.

    Raises InputError on words it does not know, numbers that do not fit the channels, or inputs that are not stored as
    pixels.
    """
    scaling = options.normalize
    if scaling == "auto":
        return spec
    if not spec.levels:
        msg = f"task.normalize = {scaling!r} is for images that are stored as pixels, which those of this task are not"
        raise InputError(f"{msg}: set it to 'auto'")
    if scaling == "none":
        return replace(spec, mean=(), std=())
    channels = spec.shape[0]
    mean, std = (IMAGENET_MEAN, IMAGENET_STD) if scaling == "imagenet" else _constants(scaling, channels)
    if len(mean) != channels:
        msg = f"task.normalize = {scaling!r} is for color images, and these have {channels} channel"
        raise InputError(f"{msg}; give numbers, such as 0.5/0.5")
    return replace(spec, mean=mean, std=std)


def _constants(text: str, channels: int) -> tuple[tuple[float, ...], ...]:
    """Return mean and deviation of every channel out of ``mean/deviation``. Raises InputError on anything else."""
    try:
        parts = [tuple(float(number) for number in part.split(",")) for part in text.split("/")]
    except ValueError:
        parts = []
    fitting = len(parts) == 2 and all(len(part) in (1, channels) for part in parts)
    if not fitting or not np.isfinite(parts[0]).all() or not all(0 < number < np.inf for number in parts[1]):
        msg = f"task.normalize = {text!r}: give auto, imagenet, none, or mean/deviation in [0, 1], one number or"
        raise InputError(f"{msg} {channels} with commas, deviations above 0: 0.5/0.5")
    return tuple(part * channels if len(part) == 1 else part for part in parts)
