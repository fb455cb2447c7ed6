"""Ingest: raw files to prepared data, with Ray Data or in the process. The only file of this room that imports ray.

The plan is an index made in the driver from the labels; Ray Data encodes the rows, counts the classes, brings the
rows of each client together. Both engines apply the same pure functions and give the same bytes; the driver writes
them, since the workers of a cluster have other disks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks import places, shared
from tasks.columns import Bools, Ints, list_parts, matrix_of
from tasks.contract import InputSpec, Plan, Task, TaskOptions
from tasks.disclose import card, disclosed_table, known_classes
from tasks.partition import digest, make_plan
from tasks.rows import checked, owners
from tasks.sources import file_names, find_file, raw_folder
from tasks.store import (
    Manifest,
    Prepared,
    cache_folder,
    client_file,
    data_digest,
    sync_folder,
    table_bytes,
    write_file,
    write_manifest,
)

Engine = Literal["ray", "local"]
Log = Callable[[str], None]
_File = tuple[int, bytes, str]
"""Owner, bytes of its file, digest of the content."""
BLOCK_ROWS = 4096
"""Rows of one Ray Data block: small enough to spread the encoding over the CPUs."""


@dataclass(frozen=True, slots=True)
class _Job:
    """All that a worker needs to encode: plain values, and functions of this repository."""

    task: Task
    spec: InputSpec
    classes: tuple[tuple[int, ...], ...]
    """Identified classes of every owner: the clients, then the server's test and validation rows (all classes)."""

    def name(self, owner: int) -> str:
        """File of an owner."""
        clients = len(self.classes) - 2
        return client_file(owner) if owner < clients else ("test.parquet", "validation.parquet")[owner - clients]

    def encode(self, table: Any) -> Any:
        """Columns row, labels and x, with x as a list of variable size, which all of Ray Data keeps as it is."""
        encoded = self.task.encode(table, self.spec)
        value = pa.int32() if self.spec.kind == "tokens" else pa.float32()
        return pa.table(
            {n: encoded[n] if n != "x" else encoded[n].cast(pa.list_(value)) for n in ("row", "labels", "x")}
        )

    def file(self, table: Any, owner: int) -> tuple[bytes, str]:
        """The rows of one owner, with the labels that it may see, as a file, and the digest of its content."""
        return table_bytes(disclosed_table(table, self.classes[owner], len(self.task.class_names), self.task.kind))


def prepare(
    task: Task,
    options: TaskOptions,
    seed: int,
    *,
    engine: Engine,
    log: Log = lambda _: None,
) -> Prepared:
    """The prepared data of a federation, from the cache or made now.

    engine: ``ray`` needs a running Ray (the caller starts it) if there is work to do; ``local`` works in this process.
    Where ``task.cache`` is an address, they are made in the cache folder of this machine and then copied there.
    Raises InputError on bad options or files, RuntimeError where Ray is needed and not running.
    """
    source = raw_folder(task, options)
    raw = raw_digest(task, options, source)
    folder = cache_folder(task.name, options, seed, raw)
    if not places.is_remote(options.cache):
        return _on_this_machine(task, options, seed, raw, source, folder, engine, log)
    places.check(options.cache, "task.cache")
    place = places.join(options.cache, folder.name)
    found = shared.find(place)
    if found is not None:
        log(f"{task.name}: prepared data found in {places.shown(place)}")
        return found
    shared.upload(_on_this_machine(task, options, seed, raw, source, folder, engine, log), place)
    log(f"{task.name}: prepared data copied to {places.shown(place)}")
    return Prepared.load(place)


def _on_this_machine(
    task: Task, options: TaskOptions, seed: int, raw: str, source: Path | None, folder: Path, engine: Engine, log: Log
) -> Prepared:
    """The prepared data in ``folder``, from the cache or made now."""
    if folder.exists():
        log(f"{task.name}: prepared data found in {folder}")
        return Prepared.load(folder)
    if engine != "local":
        _check_ray()
    log(f"{task.name}: reading raw data")
    table = checked(task.read(source, options), task)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)
    try:
        _build(task, options, seed, raw, table, building, engine, log)
        _publish(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)  # left over after an error or a lost race
    log(f"{task.name}: prepared data written to {folder}")
    return Prepared.load(folder)


def raw_digest(task: Task, options: TaskOptions, folder: Path | None) -> str:
    """sha256 over the names and bytes of the raw files that this variant needs."""
    digests = {}
    for name in file_names(task, options) if folder else ():
        with find_file(Path(folder or ""), name).open("rb") as stream:
            digests[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return data_digest(digests)


def _build(
    task: Task,
    options: TaskOptions,
    seed: int,
    raw: str,
    table: Any,
    building: str,
    engine: Engine,
    log: Log,
) -> None:
    """Fill a folder: plan, fit, encode, write."""
    row_N = table["row"].to_numpy()
    y_NC = matrix_of(table["labels"], len(task.class_names))
    train_N = pc.equal(table["split"], "train").to_numpy(zero_copy_only=False)
    plan = make_plan(y_NC[train_N], row_N[train_N], task.class_names, options, seed)
    spec = task.fit(table.filter(pa.array(train_N & ~np.isin(row_N, plan.validation))), options)
    every = tuple(range(len(task.class_names)))
    job = _Job(task, spec, (*(client.classes for client in plan.clients), every, every))
    owner_N = owners(plan, row_N)
    log(f"{task.name}: encoding {len(row_N)} rows for {len(plan.clients)} clients")
    payload = table.select(["row", "labels", task.payload])
    local = engine == "local"
    made = _run_local(job, payload, owner_N) if local else _run_ray(job, payload, row_N, owner_N, y_NC)
    content, files = dict[str, str](), dict[str, str]()
    for owner, data, content_digest in made:
        content[job.name(owner)] = content_digest
        files[job.name(owner)] = write_file(building, job.name(owner), data)
    files = dict(sorted(files.items()))  # Ray Data gives the owners in an order of its own
    manifest = _manifest(job, options, plan, row_N, y_NC)
    manifest = replace(manifest, raw_digest=raw, data_digest=data_digest(content), files=files)
    write_manifest(building, manifest, plan)


def _run_local(job: _Job, table: Any, owner_N: Ints) -> Iterator[_File]:
    """Encode in this process; the files one by one."""
    encoded = job.encode(table)
    for owner in range(len(job.classes)):
        yield owner, *job.file(encoded.take(np.flatnonzero(owner_N == owner)), owner)


def _run_ray(job: _Job, table: Any, row_N: Ints, owner_N: Ints, y_NC: Bools) -> Iterator[_File]:
    """Encode with Ray Data; the files one by one.

    Raises RuntimeError where rows or labels got lost on the way.
    """
    import ray  # only this engine needs it

    with _ray_data_settings():
        blocks = [table.slice(start, BLOCK_ROWS) for start in range(0, table.num_rows, BLOCK_ROWS)]
        encoded = ray.data.from_arrow(blocks).map_batches(job.encode, batch_format="pyarrow").materialize()
        counted = encoded.map_batches(_positive_classes, batch_format="pyarrow").groupby("class").count().take_all()
        count_C = np.zeros(y_NC.shape[1], dtype=np.int64)
        for line in counted:
            count_C[line["class"]] = line["count()"]
        if not np.array_equal(count_C, y_NC.sum(0)):
            msg = f"Ray Data counts {count_C.tolist()} positives per class, the driver {y_NC.sum(0).tolist()}"
            raise RuntimeError(msg)
        order_N = np.argsort(row_N)
        lookup = ray.put((row_N[order_N], owner_N[order_N]))
        owned = encoded.map_batches(_with_owner, batch_format="pyarrow", fn_kwargs={"lookup": lookup})
        grouped = owned.groupby("owner").map_groups(_group_file, batch_format="pyarrow", fn_kwargs={"job": job})
        rows = dict[int, int]()
        for line in grouped.iter_rows():
            rows[line["owner"]] = line["rows"]
            yield line["owner"], line["file"], line["digest"]
    size_O = np.bincount(owner_N, minlength=len(job.classes))
    if rows != {o: n for o, n in enumerate(size_O.tolist()) if n}:
        msg = f"Ray Data gave {sum(rows.values())} of {len(owner_N)} rows, or gave them to the wrong client"
        raise RuntimeError(msg)
    for owner in np.flatnonzero(size_O == 0).tolist():  # a group without rows does not exist for Ray: validation = 0
        yield owner, *job.file(job.encode(table.slice(0, 0)), owner)


def _positive_classes(table: Any) -> Any:
    """One row per positive label."""
    return pa.table({"class": list_parts(table["labels"])[0].astype(np.int64)})


def _with_owner(table: Any, lookup: Any) -> Any:
    """The table with the owner of every row."""
    import ray  # runs in a worker of the ray engine

    row_N, owner_N = ray.get(lookup)
    return table.append_column("owner", pa.array(owner_N[np.searchsorted(row_N, table["row"].to_numpy())]))


def _group_file(table: Any, job: _Job) -> Any:
    """One owner's rows as a file; one line about it."""
    owner = table["owner"][0].as_py()
    data, content = job.file(table.drop_columns(["owner"]), owner)
    file = pa.array([data], pa.large_binary())  # large: blocks of several files may be over 2 GB
    return pa.table({"owner": [owner], "rows": [table.num_rows], "digest": [content], "file": file})


def _manifest(job: _Job, options: TaskOptions, plan: Plan, row_N: Ints, y_NC: Bools) -> Manifest:
    """The manifest, its digests of raw files and data still empty."""
    order_N = np.argsort(row_N)
    cards = []
    for number, client in enumerate(plan.clients):
        own_NC = y_NC[order_N[np.searchsorted(row_N, client.rows, sorter=order_N)]]
        cards.append(card(number, own_NC, known_classes(own_NC, client.classes, job.task.kind), client.classes))
    examples = tuple(c.num_examples for c in cards)
    return Manifest(
        task=job.task.name,
        class_names=job.task.class_names,
        kind=job.task.kind,
        spec=job.spec,
        options=replace(options, root="", cache=""),
        seed=plan.seed,
        raw_digest="",
        partition_digest=digest(plan),
        data_digest="",
        examples=examples,
        counts=tuple(tuple(c.count_C.tolist()) for c in cards),
        classes=tuple(client.classes for client in plan.clients),
        test=len(row_N) - sum(examples) - len(plan.validation),
        validation=len(plan.validation),
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
        msg = "the engine 'ray' needs a running Ray: call ray.init first (anchorfl does so in pipeline/cluster.py)"
        raise RuntimeError(msg)


@contextmanager
def _ray_data_settings() -> Iterator[None]:
    """Ray Data without progress bars and chatter, and with the shuffle that suits small tables, in this block."""
    import ray  # only the ray engine needs it

    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    # the default works in 200 partitions, whatever the size of the table: fifty times slower on the toys
    context.shuffle_strategy = ray.data.context.ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    # the second one's only message is that there are no progress bars
    quiet = {"ray.data": logging.WARNING, "ray.data._internal.progress": logging.ERROR}
    before = {name: logging.getLogger(name).level for name in quiet}
    try:
        for name, level in quiet.items():
            logging.getLogger(name).setLevel(level)
        with ray.data.DataContext.current(context):
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
