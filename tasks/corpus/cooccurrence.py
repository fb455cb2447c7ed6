"""A corpus of any size: co-occurrence counts of class names in its files, with Ray Data or in the process.

Workers read shards of the files by themselves and send back nothing but counts, which the driver adds up, so the result
does not depend on the engine, the workers or the shards. A gzip stream can only be read from its beginning: one worker
unpacks it, others count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Table
from anchorfl.tasks.corpus.corpus_files import BLOCK, Reading, Shard, blocks, files, shards_of
from anchorfl.tasks.corpus.counting import PairCounts, Scanner
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import Engine, Log, ray_data_settings

SHARDS_PER_TASK = 8
"""A task of Ray costs as much as counting some hundred kilobytes, so it gets several shards."""
SAY_S = 10.0
"""Seconds between two lines of progress."""
_INTS = pa.list_(pa.int64())
_PART = pa.schema(dict(segments=pa.int64(), size=pa.int64(), at=_INTS, n=_INTS, error=pa.string()))
"""Counts of some text as a row: how often the pairs of names at the flat positions ``at`` of the upper triangle met."""


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """The counts of a corpus."""

    counts: PairCounts
    size: int
    """Bytes of text (UTF-8, unpacked)."""
    seconds: float
    """Seconds that the counting took."""


def count_names(
    corpus: Sequence[str], scanner: Scanner, field: str = "text", *, engine: Engine = "local", log: Log = lambda _: None
) -> CorpusCounts:
    """Return the counts of the scanner's names in files, folders (searched to any depth) and glob patterns.

    field: of JSON lines and Parquet. engine: ``ray`` needs a running Ray whose nodes see the same paths; ``local``
    works in this process. Raises InputError with file and line on what cannot be read.
    """
    reading = Reading(scanner.segment, scanner.layout, field)
    started = last_logged = time.monotonic()
    shards = [shard for path in files(corpus) for shard in shards_of(path, reading)]
    parts = _count_ray(shards, reading, scanner) if engine == "ray" else _count_here(shards, reading, scanner)
    total, size = PairCounts.none(len(scanner.names)), 0
    for counts, more in parts:
        total, size = total + counts, size + more
        if (now := time.monotonic()) - last_logged > SAY_S:
            last_logged = now
            log(f"{size / 1e6:.0f} MB, {total.segments} segments, {size / 1e6 / (now - started):.0f} MB/s")
    return CorpusCounts(total, size, time.monotonic() - started)


def _count_here(shards: Sequence[Shard], reading: Reading, scanner: Scanner) -> Iterator[tuple[PairCounts, int]]:
    for shard in shards:
        for text in blocks(shard, reading):
            yield scanner.count(text), len(text.encode("utf-8", "replace"))


def _count_ray(shards: Sequence[Shard], reading: Reading, scanner: Scanner) -> Iterator[tuple[PairCounts, int]]:
    """Count with Ray Data: files that can be cut in one step, streams in two, so that many workers count their text."""
    import ray  # only this engine needs it

    names, split = len(scanner.names), [shard.end >= 0 or shard.kind == "parquet" for shard in shards]
    with _settings():
        stored = ray.put(scanner)
        if ranges := [asdict(shard) for shard, is_range in zip(shards, split, strict=True) if is_range]:
            planned: Any = ray.data.from_items(ranges, override_num_blocks=_tasks(ranges))
            counted = planned.map_batches(_read_and_count, batch_format="pyarrow", fn_args=(stored, reading))
            yield from _parts(counted, names)
        if streams := [asdict(shard) for shard, is_range in zip(shards, split, strict=True) if not is_range]:
            planned = ray.data.from_items(streams, override_num_blocks=len(streams))
            # steps that ask for different resources stay apart; fused, one worker would unpack and count
            texts = planned.map_batches(_read, batch_format="pyarrow", num_cpus=0.5, fn_args=(reading,))
            counted = texts.map_batches(_count, batch_format="pyarrow", num_cpus=0.75, fn_args=(stored,))
            yield from _parts(counted, names)


def _tasks(shards: Sequence[dict[str, Any]]) -> int:
    """Return the number of tasks for shards: work for all CPUs, and few enough that starting them hardly matters."""
    import ray  # only this engine needs it

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # ray has no annotation here
    each = 1 if any(shard["kind"] == "parquet" for shard in shards) else SHARDS_PER_TASK  # a row group can be large
    return min(len(shards), max(math.ceil(len(shards) / each), int(2 * resources.get("CPU", 1))))


def _parts(counted: Any, names: int) -> Iterator[tuple[PairCounts, int]]:
    """Yield the counts as they come in. Raises the InputError that a worker met."""
    for row in counted.iter_rows():
        if row["error"]:
            raise InputError(row["error"])
        upper = np.zeros(names * names, np.int64)
        upper[np.asarray(row["at"], np.int64)] = row["n"]
        pair_KK = upper.reshape(names, names)
        yield PairCounts(row["segments"], pair_KK + np.triu(pair_KK, 1).T), row["size"]


def _read_and_count(batch: Table, scanner_ref: Any, reading: Reading) -> Table:
    """Return the counts of some shards, as one row."""
    import ray  # runs in a worker

    scanner: Scanner = ray.get(scanner_ref)
    total, size = PairCounts.none(len(scanner.names)), 0
    try:
        for row in batch.to_pylist():
            for counts, more in _count_here([Shard(**row)], reading, scanner):
                total, size = total + counts, size + more
    except InputError as error:  # as a value: a task that fails would be tried again, and its error wrapped in a trace
        return _row(PairCounts.none(0), 0, str(error))
    return _row(total, size, "")


def _read(batch: Any, reading: Reading) -> Iterator[Any]:
    """Yield the blocks of a stream, one row each."""
    try:
        for row in batch.to_pylist():
            for text in blocks(Shard(**row), reading):
                yield pa.table({"text": pa.array([text.encode("utf-8", "replace")], pa.large_binary()), "error": [""]})
    except InputError as error:  # as in ``_read_and_count``
        yield pa.table({"text": pa.array([b""], pa.large_binary()), "error": [str(error)]})


def _count(batch: Table, scanner_ref: Any) -> Table:
    """Return the counts of some blocks, as one row."""
    import ray  # runs in a worker

    scanner: Scanner = ray.get(scanner_ref)
    if error := next((error for error in batch["error"].to_pylist() if error), ""):
        return _row(PairCounts.none(0), 0, error)
    total, size = PairCounts.none(len(scanner.names)), 0
    for text in batch["text"]:
        data = text.as_py()
        total, size = total + scanner.count(data.decode()), size + len(data)
    return _row(total, size, "")


def _row(counts: PairCounts, size: int, error: str) -> Table:
    upper = np.triu(counts.pair_KK).ravel()
    at = np.flatnonzero(upper)
    values = [counts.segments], [size], [at], [upper[at]], [error]
    return pa.table([pa.array(value, kind.type) for value, kind in zip(values, _PART, strict=True)], schema=_PART)


@contextmanager
def _settings() -> Iterator[None]:
    """Set Ray Data up as ingest has it, with small blocks: what one worker unpacks, others are to get soon."""
    import ray  # only this engine needs it

    with ray_data_settings():
        ray.data.DataContext.get_current().target_max_block_size = 4 * BLOCK
        yield
