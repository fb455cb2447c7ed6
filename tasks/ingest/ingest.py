"""Ingest: raw files to prepared data, with Ray Data or in the process. The only file of this room that imports ray.

The plan is an index made in the driver from the labels; Ray Data encodes the rows, counts the classes, brings the
rows of each client together. Both engines apply the same pure functions and give the same bytes; the driver writes
them, since the workers of a cluster have other disks.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Ints, Table, list_parts
from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import ragged_take
from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.folders import sync_folder
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.files.split_leaks import is_path
from anchorfl.tasks.ingest import remote_cache
from anchorfl.tasks.ingest.cache_folder import cache_folder, data_digest
from anchorfl.tasks.ingest.class_histogram import ClassHistogram
from anchorfl.tasks.ingest.encoding import Encoding, kept_columns, set_normalization
from anchorfl.tasks.ingest.manifest import Manifest, nonzero_counts
from anchorfl.tasks.ingest.prepared import Prepared, write_file, write_manifest
from anchorfl.tasks.ingest.raw_digest import raw_digest
from anchorfl.tasks.ingest.raw_table import (
    Owners,
    assign_owners,
    canonicalize_options,
    read_rows,
    restrict_validation_labels,
)
from anchorfl.tasks.ingest.reader_digest import reader_digest
from anchorfl.tasks.ingest.row_numbers import renumber_plan, row_numbers
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.client_test import SPLIT, client_test_of_split
from anchorfl.tasks.partition.one_class import wrong_number
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import PartitionPlan, plan_digest
from anchorfl.tasks.partition.stratify import TrainingRows, describe_classes

Engine = Literal["ray", "local"]
Log = Callable[[str], None]
_File = tuple[int, bytes, str]
"""Owner, bytes of its file, digest of the content."""
PROGRESS_S = 5.0
"""Seconds between two lines of progress."""
BLOCK_ROWS = 4096
"""Rows of one Ray Data block: small enough to spread the encoding over the CPUs."""


def prepare(task: Task, options: TaskOptions, seed: int, *, engine: Engine, log: Log = lambda _: None) -> Prepared:
    """Return the prepared data of a federation, from the cache or made now.

    engine: ``ray`` needs a running Ray (the caller starts it) if there is work to do; ``local`` works in this process.
    Where ``task.cache`` is an address, they are made in the cache folder of this machine and then copied there.
    Raises InputError on bad options or files, RuntimeError where Ray is needed and not running.
    """
    clients, options = options.clients, canonicalize_options(task, options, seed)
    prepared = _find_or_prepare(task, options, seed, engine, log)
    number, classes = len(prepared.manifest.examples), len(prepared.manifest.class_names)
    if options.partition == "one_class" and clients not in (0, number):
        raise InputError(wrong_number(task.name, clients, number, classes))
    if options.cover == "any" and (uncovered_C := prepared.manifest.uncovered_C()).any():
        names = describe_classes(uncovered_C, prepared.manifest.class_names)
        log(f"{task.name}: identified by no client, and scored apart as f1_uncovered: {names}")
    return prepared


def prepared_at(task: Task, options: TaskOptions, seed: int) -> tuple[str, bool]:
    """Return where the prepared data of a federation lie, or will, and whether they do. Errors as ``prepare``."""
    options = canonicalize_options(task, options, seed)
    source = raw_folder(task, options)
    folder = cache_folder(task.name, options, seed, raw_digest(task, options, source), reader_digest(task))
    if not object_store.is_remote(options.cache):
        return str(folder), folder.exists()
    object_store.check_location(options.cache, "task.cache")
    location = object_store.join(options.cache, folder.name)
    return object_store.shown(location), remote_cache.find(location) is not None


def _find_or_prepare(task: Task, options: TaskOptions, seed: int, engine: Engine, log: Log) -> Prepared:
    """Do what ``prepare`` does, for canonical options."""
    source = raw_folder(task, options)
    raw = raw_digest(task, options, source)
    folder = cache_folder(task.name, options, seed, raw, reader_digest(task))
    if not object_store.is_remote(options.cache):
        return _prepare_locally(task, options, seed, raw, source, folder, engine, log)
    object_store.check_location(options.cache, "task.cache")
    location = object_store.join(options.cache, folder.name)
    prepared = remote_cache.find(location)
    if prepared is not None:
        log(f"{task.name}: prepared data found in {object_store.shown(location)}")
        return prepared
    remote_cache.upload(_prepare_locally(task, options, seed, raw, source, folder, engine, log), location)
    log(f"{task.name}: prepared data copied to {object_store.shown(location)}")
    return Prepared.load(location)


def _prepare_locally(
    task: Task, options: TaskOptions, seed: int, raw: str, source: Path | None, folder: Path, engine: Engine, log: Log
) -> Prepared:
    """Return the prepared data in ``folder``, from the cache or made now."""
    if folder.exists():
        log(f"{task.name}: prepared data found in {folder}")
        return Prepared.load(folder)
    if engine != "local":
        _check_ray()
    log(f"{task.name}: reading raw data")
    table, task = read_rows(task, options, source, log)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)
    try:
        _build(task, options, seed, raw, table, building, engine, log)
        _publish(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)  # left over after an error or a lost race
    log(f"{task.name}: prepared data written to {folder}")
    return Prepared.load(folder)


def _build(
    task: Task, options: TaskOptions, seed: int, raw: str, table: Table, building: str, engine: Engine, log: Log
) -> None:
    """Fill a folder: plan, fit, encode, write."""
    row_N = table["row"].to_numpy()
    labels = Labels.of_lists(table["labels"], len(task.class_names))
    plan, owned = plan_rows(task, options, seed, table, labels)
    table, labels = restrict_validation_labels(table, labels, plan, task.kind)
    used_N = np.isin(row_N, np.concatenate([row_N[:0], *(client.rows for client in plan.clients)]))
    spec = set_normalization(task.fit(table.filter(pa.array(used_N)), options), options)
    owners = [tuple(range(labels.classes))] * (2 + len(plan.client_test))  # of the splits, then clients' own test rows
    job = Encoding(task, spec, (*(client.classes for client in plan.clients), *owners), len(plan.clients))
    log(f"{task.name}: encoding {len(row_N)} rows for {len(plan.clients)} clients")
    payload = table.select([*kept_columns(table), task.payload])
    id_N, place_N = np.unique(row_N, return_inverse=True)
    by_place_N = row_numbers(raw, len(row_N))
    number_N = by_place_N[place_N]
    plan = renumber_plan(plan, lambda row_B: by_place_N[np.searchsorted(id_N, row_B)])
    local = engine == "local" or _files_are_here_alone(task, table, log)
    encoded_files = (
        _run_local(job, payload, number_N, owned) if local else _run_ray(job, payload, row_N, number_N, owned, labels)
    )
    content, files = dict[str, str](), dict[str, str]()
    last_logged = time.monotonic()
    for owner, data, content_digest in encoded_files:
        content[job.name(owner)] = content_digest
        files[job.name(owner)] = write_file(building, job.name(owner), data)
        if time.monotonic() - last_logged > PROGRESS_S:
            last_logged = time.monotonic()
            log(f"{task.name}: {len(files)} of {len(job.classes)} files written")
    files = dict(sorted(files.items()))  # Ray Data gives the owners in an order of its own
    manifest = _make_manifest(job, options, plan, owned, labels)
    manifest = replace(manifest, raw_digest=raw, raw_rows=len(row_N), data_digest=data_digest(content), files=files)
    if options.client_column:
        manifest = replace(manifest, client_names=_client_names(table, owned, len(plan.clients)))
    histogram = ClassHistogram.of(labels.take(rows) for rows in owned.parts()[: len(plan.clients)])
    write_manifest(building, manifest, plan, histogram)


def plan_rows(
    task: Task, options: TaskOptions, seed: int, table: Table, labels: Labels
) -> tuple[PartitionPlan, Owners]:
    """Return the partition, and the owners of every row."""
    row_N, split = table["row"].to_numpy(), table["split"]
    test_N, published_N = (
        row_N[pc.equal(split, name).to_numpy(zero_copy_only=False)] for name in ("test", "validation")
    )
    subject_N = np.asarray(table["subject"].to_pylist(), dtype=np.str_) if task.subjects else None
    training = np.flatnonzero(~np.isin(row_N, test_N))
    whole_N = table["piece_of"].to_numpy() if "piece_of" in table.column_names else None
    rows = TrainingRows(labels, row_N, subject_N, whole_N).take(training)
    plan = make_plan(rows, task, options, seed, published_N if len(published_N) else None)
    if options.client_test == SPLIT:
        plan = client_test_of_split(plan, options, row_N, test_N, subject_N)
    return plan, assign_owners(plan, row_N, test_N)


def _client_names(table: Table, owned: Owners, clients: int) -> tuple[str, ...]:
    """Return the subject of every client, where each is one subject."""
    first_M = pa.array([rows[0] for rows in owned.parts()[:clients]])
    return tuple(table["subject"].take(first_M).to_pylist())


def _run_local(job: Encoding, table: Table, number_N: Ints, owned: Owners) -> Iterator[_File]:
    """Encode in this process, owner by owner, so that no more than one owner's rows are held twice.

    number_N: the numbers under which the rows are stored.
    """
    chunks = Chunks.of(table)
    for owner, rows in enumerate(owned.parts()):
        yield owner, *job.file(_numbered(job.encode(chunks.take(rows)), number_N[rows]), owner)


def _run_ray(
    job: Encoding, table: Table, row_N: Ints, number_N: Ints, owned: Owners, labels: Labels
) -> Iterator[_File]:
    """Encode with Ray Data; the files one by one. Raises RuntimeError where rows or labels got lost on the way."""
    import ray  # only this engine needs it

    with ray_data_settings():
        blocks = [table.slice(start, BLOCK_ROWS) for start in range(0, table.num_rows, BLOCK_ROWS)]
        encoded = ray.data.from_arrow(blocks).map_batches(job.encode, batch_format="pyarrow").materialize()
        counted = encoded.map_batches(_positive_classes, batch_format="pyarrow").groupby("class").count().take_all()
        count_C = np.zeros(labels.classes, dtype=np.int64)
        for line in counted:
            count_C[line["class"]] = line["count()"]
        if not np.array_equal(count_C, labels.counts()):
            raise RuntimeError(
                f"Ray Data counts {count_C.tolist()} positives per class, the driver {labels.counts().tolist()}"
            )
        lookup = ray.put((row_N, np.argsort(row_N), number_N, owned))
        with_owners = encoded.map_batches(_add_owners, batch_format="pyarrow", fn_kwargs={"lookup": lookup})
        grouped = with_owners.groupby("owner").map_groups(_group_file, batch_format="pyarrow", fn_kwargs={"job": job})
        rows = dict[int, int]()
        for line in grouped.iter_rows():
            rows[line["owner"]] = line["rows"]
            yield line["owner"], line["file"], line["digest"]
    size_O = owned.sizes()
    if rows != {o: n for o, n in enumerate(size_O.tolist()) if n}:
        raise RuntimeError(
            f"Ray Data gave {sum(rows.values())} of {size_O.sum()} rows, or gave them to the wrong client"
        )
    for owner in np.flatnonzero(size_O == 0).tolist():  # a group without rows does not exist for Ray: validation = 0
        yield owner, *job.file(job.encode(table.slice(0, 0)), owner)


def _files_are_here_alone(task: Task, table: Table, log: Log) -> bool:
    """Return whether the rows are files of which a node of the cluster sees none, so that this process encodes them."""
    if not is_path(table, task.payload) or not table.num_rows:
        return False
    import ray  # only this engine needs it
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    file, here = table[task.payload][0].as_py(), ray.get_runtime_context().get_node_id()
    others = [
        node["NodeID"]
        for node in ray.nodes()  # type: ignore[no-untyped-call]  # ray has no annotation here
        if node["Alive"] and node["Resources"].get("CPU") and node["NodeID"] != here
    ]
    look: Any = ray.remote(num_cpus=0, max_retries=2)(os.path.exists)
    there = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n, soft=True)).remote(file) for n in others
    ]
    blind = len(others) - sum(ray.get(there))
    if blind:
        log(
            f"{task.name}: {blind} of {len(others)} other nodes do not see {file}: this node alone encodes; a disk that"
            " all nodes share is faster"
        )
    return bool(blind)


def _numbered(table: Table, number_B: Ints) -> Table:
    """Return encoded rows with these numbers in place of their ids."""
    return table.set_column(table.column_names.index("row"), "row", pa.array(number_B))


def _positive_classes(table: Table) -> Table:
    """Return one row per positive label."""
    return pa.table({"class": list_parts(table["labels"])[0].astype(np.int64)})


def _add_owners(table: Table, lookup: Any) -> Table:
    """Return one row for every owner of every row, with the column ``owner``, and with numbers in place of ids."""
    import ray  # runs in a worker of the ray engine

    row_N, order_N, number_N, owned = ray.get(lookup)
    index_B = order_N[np.searchsorted(row_N, table["row"].to_numpy(), sorter=order_N)]
    entry, offset_B1 = ragged_take(owned.offset_N1, index_B)
    index = np.repeat(np.arange(len(index_B)), np.diff(offset_B1))
    table = _numbered(table, number_N[index_B]).take(index)
    return table.append_column("owner", pa.array(owned.owner_E[entry]))


def _group_file(table: Table, job: Encoding) -> Table:
    """Return one row: an owner, the file of its rows, and their number and digest."""
    owner = table["owner"][0].as_py()
    data, content = job.file(table.drop_columns(["owner"]), owner)
    file = pa.array([data], pa.large_binary())  # large: blocks of several files may be over 2 GB
    return pa.table({"owner": [owner], "rows": [table.num_rows], "digest": [content], "file": file})


def _make_manifest(job: Encoding, options: TaskOptions, plan: PartitionPlan, owned: Owners, labels: Labels) -> Manifest:
    """Return the manifest, what it says of raw files and data still empty."""
    count_MC = (labels.take(rows).counts() for rows in owned.parts()[: len(plan.clients)])
    identified = [set(client.classes) for client in plan.clients]
    return Manifest(
        task=job.task.name,
        class_names=job.task.class_names,
        kind=job.task.kind,
        spec=job.spec,
        options=replace(options, root="", cache=""),
        seed=plan.seed,
        raw_digest="",
        raw_rows=0,
        partition_digest=plan_digest(plan),
        data_digest="",
        examples=tuple(owned.sizes()[: len(plan.clients)].tolist()),
        counts=tuple(nonzero_counts(count_C, known) for count_C, known in zip(count_MC, identified, strict=True)),
        classes=tuple(client.classes for client in plan.clients),
        test=int(owned.sizes()[len(plan.clients)]),
        validation=len(plan.validation),
        client_test=tuple(map(len, plan.client_test)),
    )


def _publish(building: str, folder: Path) -> None:
    """Give the finished folder its name at once; if another process was faster, its equal folder stays."""
    try:
        os.replace(building, folder)
    except OSError:
        if not (folder / "manifest.json").is_file():
            raise
        return
    sync_folder(str(folder.parent))


def _check_ray() -> None:
    import ray  # only this engine needs it

    if not ray.is_initialized():
        raise RuntimeError(
            "the engine 'ray' needs a running Ray: call ray.init first (as pipeline/cluster/ray_cluster.py does)"
        )


@contextmanager
def ray_data_settings() -> Iterator[None]:
    """Run Ray Data without progress bars and chatter, and with the shuffle that suits small tables, in this block."""
    import ray  # only the ray engine needs it

    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True  # bad input is found in workers; the wrapper would drop it
    # the default works in 200 partitions, whatever the size of the table: fifty times slower on the toys
    context.shuffle_strategy = ray.data.context.ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    # the second one's only message is that there are no progress bars; the others show an error that is raised as well
    quiet = {"ray.data": logging.WARNING, "ray.data._internal.progress": logging.ERROR}
    quiet |= dict.fromkeys(("ray.data.exceptions", "ray.data._internal.execution"), logging.CRITICAL)
    before = {name: logging.getLogger(name).level for name in quiet}
    try:
        for name, level in quiet.items():
            logging.getLogger(name).setLevel(level)
        with ray.data.DataContext.current(context):
            yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause.args[0]).partition("\n")[0]) from error  # Ray adds lines of its own
        raise
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
