"""Encoding of raw rows into files of rows: plain values and pure functions, which go to workers."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Column, Ints, Table, columns_digest, list_parts, table_digest
from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.arrays.disclosure import disclose_table, stored_type
from anchorfl.tasks.arrays.ragged import IntLists
from anchorfl.tasks.contract import InputKind, InputSpec, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.destination import Destination
from anchorfl.tasks.ingest.rows_files import EXTENTS, GROUP_BYTES, rows_file, rows_of_bytes, write_rows
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.scaling import IMAGENET_MEAN, IMAGENET_STD


def check_spec(spec: InputSpec, task: str) -> InputSpec:
    """Return a form of inputs. InputError where it is none, or is of no kind that there is, or has a fault."""
    if not isinstance(spec, InputSpec):
        raise InputError(f"task {task!r}: fit gives a {type(spec).__name__}, and has to give an InputSpec")
    if spec.kind not in get_args(InputKind):
        raise InputError(
            f"task {task!r}: fit gives an InputSpec of kind {spec.kind!r}: there are {', '.join(get_args(InputKind))}"
        )
    if fault := spec.fault():
        raise InputError(f"task {task!r}: the InputSpec that fit gives is wrong: {fault}")
    return spec


FULL = ("image", "series")
"""Kinds of inputs whose samples all have every value; steps that a series lacks are zeros."""


def _check_encoded(encoded: Table, table: Table, spec: InputSpec, task: str) -> None:
    """Raise InputError where a task's ``encode`` gives other rows than it was given, or an x that is no sample."""
    if not np.array_equal(encoded["row"].to_numpy(), table["row"].to_numpy()):
        raise InputError(f"task {task!r}: encode must give the rows that it is given, in their order (column row)")
    size, unit = math.prod(spec.shape), {"series": spec.shape[-1], "sparse": 2}.get(spec.kind, 1)
    length_N = pc.list_value_length(encoded["x"]).to_numpy()
    fits_N = length_N % unit == 0
    if spec.kind != "sparse":
        fits_N &= (length_N == size) if spec.kind in FULL else (length_N <= size)
    if not fits_N.all():
        raise InputError(
            f"task {task!r}: encode gives an x of {length_N[~fits_N][0]} numbers, and a sample of the shape"
            f" {spec.shape} in its InputSpec has {'' if spec.kind in FULL else 'at most '}{size}"
            f"{f', in steps of {unit}' if unit > 1 else ''}"
        )


@dataclass(frozen=True, slots=True)
class Encoding:
    """The part of a preparation that a worker needs to encode rows and to write them."""

    task: Task
    spec: InputSpec
    classes: IntLists
    """Identified classes of every client; of all other owners' rows, every class is known."""
    first_F1: Ints
    """First owner of every file of rows, and the number of owners last."""
    destination: Destination

    def encode(self, table: Table) -> Table:
        """Return columns row, labels, known and x; x is a list of variable size, which Ray Data keeps as it is."""
        encoded = self.task.encode(table, self.spec)
        _check_encoded(encoded, table, self.spec, self.task.name)
        x = encoded["x"].cast(pa.list_(stored_type(encoded["x"].type.value_type)))
        return pa.table({n: x if n == "x" else encoded[n] for n in (*kept_columns(encoded), "x")})

    def write(self, table: Table, file: int) -> Table:
        """Write a file of rows and return its owners as ``WRITTEN``, in their order.

        table: encoded rows with their owners in the column ``owner``, a row once for each.
        """
        owners = range(int(self.first_F1[file]), int(self.first_F1[file + 1]))
        owner_E = table["owner"].to_numpy()
        order_E = np.lexsort((table["row"].to_numpy(), owner_E))
        start_O1 = np.searchsorted(owner_E[order_E], [*owners, owners.stop])
        rows = _OwnersRows(self, Chunks.as_they_are(table.drop_columns(["owner"])), order_E, owners, start_O1.tolist())
        name, data = rows_file(file), None
        if self.destination.is_here():
            with self.destination.writing(name) as stream:
                extents, footer = write_rows(stream, rows, file)
        else:
            draft = io.BytesIO()
            extents, footer = write_rows(draft, rows, file)
            data = draft.getvalue()
        columns = {"owner": owners, "rows": np.diff(start_O1), "positives": rows.positives, "content": rows.contents}
        columns |= {"footer": [footer] * len(owners), "data": [data, *[None] * (len(owners) - 1)]}
        added = {name: pa.array(list(values), WRITTEN.field(name).type) for name, values in columns.items()}
        return pa.table({**added, **{name: extents[name] for name in extents.column_names}}, WRITTEN)

    def disclosed(self, table: Table, owner: int) -> Table:
        """Return rows with the labels that their owner may see."""
        names = self.task.class_names
        classes = self.classes[owner] if owner < len(self.classes) else range(len(names))
        return disclose_table(table, classes, len(names), self.task.kind)


class _OwnersRows:
    """The rows of the owners of a file, a group at a time: iterates over owners, and each over its groups.

    ``positives`` and ``contents`` are those of the owners that are done: the positives of their rows, and the
    ``table_digest`` of what was disclosed.
    """

    def __init__(self, job: Encoding, chunks: Chunks, order_E: Ints, owners: range, start_O1: list[int]) -> None:
        """order_E: positions of the rows of the first owner, ascending by number, then of the next. start_O1: where in
        ``order_E`` those of each owner begin.
        """
        self.job, self.chunks, self.order_E = job, chunks, order_E
        self.positives, self.contents = list[int](), list[str]()
        most = rows_of_bytes(GROUP_BYTES, job.spec)
        self.groups = [
            (owner, at, min(at + most, end))
            for owner, (start, end) in zip(owners, pairwise(start_O1), strict=True)
            for at in range(start, max(end, start + 1), most)
        ]
        self.most = most

    def __iter__(self) -> Iterator[Iterator[Table]]:
        for owner, groups in groupby(zip(self.groups, self._tables(), strict=True), key=lambda pair: pair[0][0]):
            yield self._of(owner, groups)

    def _of(self, owner: int, groups: Iterable[tuple[tuple[int, int, int], Table]]) -> Iterator[Table]:
        places, small, positives, digest = list[tuple[int, int]](), list[Table](), 0, ""
        for (_, start, end), table in groups:
            rows = self.job.disclosed(table, owner)
            positives += len(list_parts(table["labels"])[0])
            digest = "" if places else table_digest(rows)
            places.append((start, end))
            small.append(rows.drop_columns(["x"]))
            yield rows
        if len(places) > 1:  # too much to be held: the inputs are taken again
            others = pa.concat_tables(small)
            columns: dict[str, Callable[[], Iterable[Column]]] = {
                name: (lambda: self._inputs(places)) if name == "x" else partial(iter, [others[name]])
                for name in rows.column_names
            }
            digest = columns_digest(columns)
        self.positives.append(positives)
        self.contents.append(digest)

    def _inputs(self, places: list[tuple[int, int]]) -> Iterator[Column]:
        for start, end in places:
            yield self.chunks.take(self.order_E[start:end])["x"]

    def _tables(self) -> Iterator[Table]:
        """Yield the rows of every group; those of small groups are put in order together."""
        batch = list[tuple[int, int]]()
        for _, start, end in self.groups:
            if batch and end - batch[0][0] > self.most:
                yield from self._taken(batch)
                batch = []
            batch.append((start, end))
        yield from self._taken(batch)

    def _taken(self, places: list[tuple[int, int]]) -> Iterator[Table]:
        first = places[0][0]
        table = self.chunks.take(self.order_E[first : places[-1][1]])
        return (table.slice(start - first, end - start) for start, end in places)


WRITTEN = pa.schema(
    [
        ("owner", pa.int64()), ("rows", pa.int64()), ("positives", pa.int64()), ("content", pa.string()),
        ("footer", pa.string()), ("data", pa.large_binary()), *EXTENTS,
    ]
)  # fmt: skip
"""What there is to say of the owners of a file that was written: their rows, the positives of these before disclosure,
the digest of their content, that of the file's footer, and its bytes, in the first line, where the process that made it
does not see the destination; then where the rows are.
"""


def numbered(table: Table, number_B: Ints) -> Table:
    """Return encoded rows with these numbers in place of their ids."""
    return table.set_column(table.column_names.index("row"), "row", pa.array(number_B))


def with_owner(table: Table, owner_B: Ints) -> Table:
    """Return rows with their owners."""
    return table.append_column("owner", pa.array(owner_B, pa.int64()))


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
