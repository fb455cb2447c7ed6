"""Ingest: raw files to prepared data, with Ray Data or in the process. Beside it only ``sites.py`` imports ray here.

The plan is an index made in the driver from the labels; Ray Data encodes the rows in the workers, brings those of a
file together and writes it there. Both engines apply the same pure functions and give the same bytes.
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
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Ints, Table
from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import IntLists, ragged_take
from anchorfl.tasks.contract import InputSpec, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.folders import cache_root
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.files.split_leaks import is_path
from anchorfl.tasks.ingest import remote_cache
from anchorfl.tasks.ingest.account import make_manifest, publish, write_account
from anchorfl.tasks.ingest.cache_folder import cache_folder
from anchorfl.tasks.ingest.class_histogram import ClassHistogram
from anchorfl.tasks.ingest.destination import Destination
from anchorfl.tasks.ingest.encoded_before import encoded_before, inputs_digest
from anchorfl.tasks.ingest.encoding import Encoding, check_spec, kept_columns, numbered, set_normalization, with_owner
from anchorfl.tasks.ingest.input_spec import check_fits, given_spec
from anchorfl.tasks.ingest.manifest import Summary
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.ingest.raw_digest import raw_digest
from anchorfl.tasks.ingest.raw_table import (
    Owners,
    assign_owners,
    canonicalize_options,
    given_labels,
    hide_labels,
    read_rows,
    restrict_validation_labels,
)
from anchorfl.tasks.ingest.reader_digest import reader_digest
from anchorfl.tasks.ingest.row_numbers import in_order, positions_of, renumber_plan, row_numbers
from anchorfl.tasks.ingest.rows_files import first_owners, rows_file
from anchorfl.tasks.ingest.sites import prepare_at_sites
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.client_test import SPLIT, client_test_of_split
from anchorfl.tasks.partition.one_class import wrong_number
from anchorfl.tasks.partition.partition import make_plan
from anchorfl.tasks.partition.plan import PartitionPlan, plan_digest
from anchorfl.tasks.partition.stratify import TrainingRows, describe_classes

Engine = Literal["ray", "local"]
Log = Callable[[str], None]
PROGRESS_S = 5.0
"""Seconds between two lines of progress."""
BLOCK_ROWS, BLOCKS = 4096, 256
"""Rows of one Ray Data block: small enough to spread the encoding over the CPUs. Of more rows there are so many blocks
at most: each is split by the files that its rows belong to."""


def prepare(task: Task, options: TaskOptions, seed: int, *, engine: Engine, log: Log = lambda _: None) -> Prepared:
    """Return the prepared data of a federation, from the cache or made now.

    engine: ``ray`` needs a running Ray (the caller starts it) if there is work to do; ``local`` works in this process.
    Where ``task.cache`` is an address, they are written there.
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
    if options.sites:
        raise InputError(f"at the sites ({', '.join(options.site_names)}): a run says whether they are prepared")
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
    if options.sites:
        _check_ray()
        return prepare_at_sites(task, options, seed, log)
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
    if engine != "local":
        _check_ray()
    _build(task, options, seed, raw, source, location, engine, log)
    log(f"{task.name}: prepared data written to {object_store.shown(location)}")
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
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)
    try:
        _build(task, options, seed, raw, source, building, engine, log)
        publish(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)  # left over after an error or a lost race
    log(f"{task.name}: prepared data written to {folder}")
    return Prepared.load(folder)


def _build(
    task: Task, options: TaskOptions, seed: int, raw: str, source: Path | None, place: str, engine: Engine, log: Log
) -> None:
    """Fill a folder or a place on object storage: read, plan, fit, encode, write."""
    log(f"{task.name}: reading raw data")
    table, task = read_rows(task, options, source, log)
    row_N = table["row"].to_numpy()
    labels = Labels.of_lists(table["labels"], len(task.class_names))
    plan, owned = plan_rows(task, options, seed, table, labels)
    table, labels = restrict_validation_labels(table, labels, plan, task.kind)
    table, labels = hide_labels(table, labels, plan, task.kind, options.hidden_labels, seed)
    used_N = np.isin(row_N, np.concatenate([row_N[:0], *(client.rows for client in plan.clients)]))
    spec = check_spec(task.fit(table.filter(pa.array(used_N)), options), task.name)
    spec = set_normalization(check_fits(given_spec(options), spec) if options.input_spec else spec, options)
    rows_O = owned.parts()
    names = _client_names(table, rows_O, len(plan.clients)) if options.client_column else ()
    histogram = ClassHistogram.of(labels.take(rows) for rows in rows_O[: len(plan.clients)])
    payload = table.select([*kept_columns(table), task.payload])
    del table
    number_N = in_order(row_N, row_numbers(raw, len(row_N)))
    position_of = positions_of(row_N)
    plan = renumber_plan(plan, lambda row_B: number_N[position_of(row_B)])
    summary = Summary(
        task=task.name, class_names=task.class_names, kind=task.kind, spec=spec,
        options=replace(options, root="", cache="", input_spec=""), seed=seed, raw_digest=raw,
        reader_digest=reader_digest(task), inputs_digest=inputs_digest(payload, task.payload), raw_rows=len(row_N),
        partition_digest=plan_digest(plan), data_digest="", test=0, validation=0,
    )  # fmt: skip
    classes, destination = IntLists.of(client.classes for client in plan.clients), Destination.of(place)
    job = Encoding(task, spec, classes, first_owners(owned.sizes(), spec), destination)
    local = engine == "local" or _files_are_here_alone(task, payload, log)
    if before := encoded_before(cache_root(options.cache), summary, number_N, np.diff(owned.offset_N1) > 0):
        x, folder = before
        log(f"{task.name}: {len(row_N)} encoded rows found in {folder}")
        payload = payload.drop_columns([task.payload]).append_column("x", x)
        job = replace(job, task=replace(task, encode=_as_it_is))
    else:
        log(f"{task.name}: encoding {len(row_N)} rows for {len(plan.clients)} clients")
    parts = _run_local(job, payload, number_N, rows_O) if local else _run_ray(job, payload, row_N, number_N, owned)
    written = _collect(parts, job, owned, labels, log)
    # before the account, which makes the folder whole: its name is the digest of the files as they were
    if raw_digest(task, options, source) != raw:
        raise InputError(f"{source}: its files changed while they were read: prepare them again when they are whole")
    manifest = make_manifest(summary, classes, histogram, written)
    write_account(destination, replace(manifest, client_names=names), plan, histogram, written)


def _as_it_is(table: Table, spec: InputSpec) -> Table:
    """Return rows that are encoded already."""
    return table


def _collect(parts: Iterator[Table], job: Encoding, owned: Owners, labels: Labels, log: Log) -> Table:
    """Return ``WRITTEN`` of all owners, in their order, without ``data``: those are written here.

    parts: of some files each. Raises RuntimeError where rows or labels got lost on the way.
    """
    found, last_logged, files = list[Table](), time.monotonic(), 0
    for part in parts:
        for file, data in zip(part["file"].to_pylist(), part["data"], strict=True):
            if data.is_valid:
                job.destination.write(rows_file(file), data.as_py())
        found.append(part.drop_columns(["data"]))
        files += len(pc.unique(part["file"]))
        if time.monotonic() - last_logged > PROGRESS_S:
            last_logged = time.monotonic()
            log(f"{job.task.name}: {files} of {len(job.first_F1) - 1} files written")
    written = pa.concat_tables(found).sort_by("owner").combine_chunks()
    if not np.array_equal(written["rows"].to_numpy(), owned.sizes()):
        given = pc.sum(written["rows"]).as_py()
        raise RuntimeError(f"{given} of {owned.sizes().sum()} rows were written, or rows of the wrong client")
    positive_O = np.bincount(owned.owner_E, np.repeat(labels.length_N, np.diff(owned.offset_N1)), owned.count)
    if not np.array_equal(written["positives"].to_numpy(), positive_O):
        given = pc.sum(written["positives"]).as_py()
        raise RuntimeError(f"{given} positives were written, and the driver counts {positive_O.sum():.0f}")
    return written


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
    given = given_labels(table, labels.classes)
    given_N = None if given is None else given.length_N > 0
    rows = TrainingRows(labels, row_N, subject_N, whole_N, given_N).take(training)
    plan = make_plan(rows, task, options, seed, published_N if len(published_N) else None)
    if options.client_test == SPLIT:
        plan = client_test_of_split(plan, options, row_N, test_N, subject_N)
    return plan, assign_owners(plan, row_N, test_N)


def _client_names(table: Table, rows_O: list[Ints], clients: int) -> tuple[str, ...]:
    """Return the subject of every client, where each is one subject."""
    first_M = pa.array([rows[0] for rows in rows_O[:clients]])
    return tuple(table["subject"].take(first_M).to_pylist())


def _run_local(job: Encoding, table: Table, number_N: Ints, rows_O: list[Ints]) -> Iterator[Table]:
    """Encode in this process, file by file, so that no more than the rows of one are held twice.

    number_N: the numbers under which the rows are stored. rows_O: positions of every owner's rows.
    """
    chunks = Chunks.of(table)
    for file, (start, end) in enumerate(pairwise(job.first_F1.tolist())):
        index_B = np.concatenate(rows_O[start:end])
        encoded = numbered(job.encode(chunks.take(index_B)), number_N[index_B])
        owner_B = np.repeat(np.arange(start, end), [len(rows) for rows in rows_O[start:end]])
        yield job.write(with_owner(encoded, owner_B), file)


def _run_ray(job: Encoding, table: Table, row_N: Ints, number_N: Ints, owned: Owners) -> Iterator[Table]:
    """Encode and write in the workers: Ray Data encodes block by block, each block is taken apart by the files that its
    rows belong to, and each file is written where its parts come together.

    Ray Data's own grouping would sort: all encoded rows would wait until the last has been looked at.
    """
    import ray  # only this engine needs it

    size, files = max(BLOCK_ROWS, -(-table.num_rows // BLOCKS)), len(job.first_F1) - 1
    blocks = [table.slice(start, size) for start in range(0, table.num_rows, size)]
    nothing = job.encode(table.slice(0, 0))
    with ray_data_settings():
        encoded = ray.data.from_arrow(blocks).map_batches(job.encode, batch_format="pyarrow")
        del table, blocks
        job_ref, lookup = ray.put(job), ray.put((row_N, np.argsort(row_N), number_N, owned))
        take_apart: Any = ray.remote(_parts_by_file).options(num_returns=files)
        write: Any = ray.remote(_write_file)
        parts, running = list[list[Any]](), list[Any]()
        for bundle in encoded.iter_internal_ref_bundles():
            for block in bundle.block_refs:
                refs = take_apart.remote(block, lookup, job_ref)
                parts.append([refs] if files == 1 else refs)
                running, _ = _wait_for_some([*running, parts[-1][0]])
        del refs, bundle, block
        running = []
        for file in range(files):
            running.append(write.remote(file, job_ref, nothing, *(of_block[file] for of_block in parts)))
            for of_block in parts:
                of_block[file] = None  # the store forgets what has been written
            running, done = _wait_for_some(running)
            yield from ray.get(done)
        yield from ray.get(running)


def _wait_for_some(refs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return tasks that run and tasks that have ended, once no more run than two for a CPU of the cluster."""
    import ray  # only this engine needs it

    cpus = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]  # ray has no annotation here
    excess = len(refs) - 2 * max(1, int(cpus))
    if excess <= 0:
        return refs, []
    done, running = ray.wait(refs, num_returns=excess, fetch_local=False)
    return running, done


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


def _parts_by_file(table: Table, lookup: Any, job: Encoding) -> list[Table] | Table:
    """Return for every file a table with one row for every owner there of every row, with numbers in place of ids."""
    row_N, order_N, number_N, owned = lookup
    index_B = order_N[np.searchsorted(row_N, table["row"].to_numpy(), sorter=order_N)]
    entry, offset_B1 = ragged_take(owned.offset_N1, index_B)
    index, owner = np.repeat(np.arange(len(index_B)), np.diff(offset_B1)), owned.owner_E[entry]
    by_owner = np.argsort(owner, kind="stable")
    table = with_owner(numbered(table, number_N[index_B]).take(index[by_owner]), owner[by_owner])
    start_F1 = np.searchsorted(owner[by_owner], job.first_F1).tolist()
    parts = [table.slice(start, end - start) for start, end in pairwise(start_F1)]
    return parts if len(parts) > 1 else parts[0]


def _write_file(file: int, job: Encoding, nothing: Table, *parts: Table) -> Table:
    """Write the rows of a file, and return what there is to say of them. nothing: no encoded rows, for their schema."""
    return job.write(pa.concat_tables([with_owner(nothing, np.zeros(0, np.int64)), *parts]), file)


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
