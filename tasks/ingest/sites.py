"""Preparation at sites: nodes of a cluster whose disks hold the rows of one client each. They are read, encoded and
written there; what leaves a site is its card, the digests of its files and where the rows lie in them.

The process that asks holds the server's rows, the plan and the manifest, which each site gets a copy of.
"""

from __future__ import annotations

import os
import secrets
import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Ints, Table
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import IntLists, offsets
from anchorfl.tasks.contract import InputSpec, Task
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.folders import cache_root
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.ingest.account import make_manifest, publish, write_account
from anchorfl.tasks.ingest.cache_folder import cache_folder, data_digest
from anchorfl.tasks.ingest.class_histogram import ClassHistogram
from anchorfl.tasks.ingest.destination import Destination
from anchorfl.tasks.ingest.encoding import Encoding, kept_columns, numbered, set_normalization, with_owner
from anchorfl.tasks.ingest.input_spec import WHERE, check_fits, given_spec
from anchorfl.tasks.ingest.manifest import CLIENTS, EXTENTS_FILE, MANIFEST, Summary
from anchorfl.tasks.ingest.prepared import CLASS_COUNTS, PARTITION, Prepared
from anchorfl.tasks.ingest.raw_digest import raw_digest
from anchorfl.tasks.ingest.raw_table import read_rows
from anchorfl.tasks.ingest.reader_digest import reader_digest
from anchorfl.tasks.ingest.row_numbers import in_order, renumber_plan, row_numbers
from anchorfl.tasks.ingest.rows_files import rows_file
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.identified import identified
from anchorfl.tasks.partition.plan import ClientPlan, PartitionPlan, plan_digest
from anchorfl.tasks.partition.stratify import TrainingRows

T = TypeVar("T")
Log = Callable[[str], None]
FAULTS = "site-faults.txt"
"""File in a site's cache folder, for its people alone, with what went wrong there: a message about a row may quote it,
and does not leave."""
SHARE = 0.001
"""Of a site's resource, for each thing that runs there."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a site says before anything is planned."""

    rows: int
    digest: str
    """Of its raw files."""
    held: tuple[int, ...]
    """Classes of its rows; () where nobody asks."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What a site needs to encode and write its rows."""

    task: Task
    options: TaskOptions
    spec: InputSpec
    classes: tuple[tuple[int, ...], ...]
    """Identified classes of every client."""
    client: int
    start: int
    """Rows of all that come before this site's."""
    raw: str
    rows: int
    """Rows of all."""
    look: _Look
    """What the site said before."""
    building: str
    """Folder to write into, at the site."""


def prepare_at_sites(task: Task, options: TaskOptions, seed: int, log: Log) -> Prepared:
    """Return the prepared data of a federation whose clients are sites, from their caches or made now.

    Raises InputError where a site is missing, or its data do not fit.
    """
    names, source = options.site_names, raw_folder(task, options)
    _check(options)
    sites = _Sites(options)
    options = replace(options, root=str(source.resolve()) if source else "", file=Path(options.file).name)
    table, task = read_rows(task, options, source, log)
    rule_asks = options.identified in ("partition", "held", "k_classes") and not options.client_classes
    looks = sites.ask(_look, [(task, options, rule_asks)] * len(names))
    digests = {f"site {name}": look.digest for name, look in zip(names, looks, strict=True)}
    raw = data_digest(digests | {"server": raw_digest(task, options, source)})
    folder = cache_folder(task.name, options, seed, raw, reader_digest(task))
    places = sites.ask(_is_prepared, [(str(folder), client) for client in range(len(names))])
    if folder.exists() and all(places):
        log(f"{task.name}: prepared data found in {folder}, and at {len(names)} sites")
        return Prepared.load(folder)
    spec = _spec(task, options, table)
    start_M1 = np.cumsum([table.num_rows, *(look.rows for look in looks)])
    plan = _plan(task, options, seed, table, looks, start_M1.tolist())
    number_N = row_numbers(raw, int(start_M1[-1]))
    plan = renumber_plan(plan, lambda place_B: number_N[place_B])
    classes = tuple(client.classes for client in plan.clients)
    log(f"{task.name}: {len(names)} sites encode their rows ({start_M1[-1] - start_M1[0]} in all)")
    token = f".{folder.name}-{secrets.token_hex(4)}"
    building = str(folder.parent / token)
    jobs = [
        (_Job(task, options, spec, classes, client, int(start_M1[client]), raw, int(start_M1[-1]), look, building),)
        for client, look in enumerate(looks)
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.mkdir(building, 0o700)
    try:
        parts = sites.ask(_write, jobs)
        destination = Destination.of(building)
        own = _encoding(jobs[0][0], destination)
        test_N = pc.equal(table["split"], "test").to_numpy(zero_copy_only=False)
        owner_N = np.where(test_N, len(names), len(names) + 1)
        server = own.write(
            _owned(own, table, in_order(table["row"].to_numpy(), number_N[: table.num_rows]), owner_N), len(names)
        )
        written = pa.concat_tables([*(part for part, _ in parts), server])
        summary = Summary(
            task=task.name, class_names=task.class_names, kind=task.kind, spec=spec,
            options=replace(options, root="", cache="", input_spec=""), seed=seed, raw_digest=raw,
            reader_digest=reader_digest(task), inputs_digest="", raw_rows=int(start_M1[-1]),
            partition_digest=plan_digest(plan), data_digest="", test=0, validation=0,
        )  # fmt: skip
        histogram = _histogram([known for _, known in parts])
        manifest = make_manifest(summary, own.classes, histogram, written.drop_columns(["data"]))
        write_account(destination, replace(manifest, client_names=names), plan, histogram, written)
        account = {
            name: (Path(building) / name).read_bytes()
            for name in (EXTENTS_FILE, CLIENTS, CLASS_COUNTS, PARTITION, MANIFEST)
        }
        sites.ask(_publish_there, [(building, str(folder), account)] * len(names))
        publish(building, folder)
    except Exception:
        sites.ask(_discard, [(building,)] * len(names))
        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    log(f"{task.name}: prepared data written to {folder}, the rows of each site there")
    return Prepared.load(folder)


def _check(options: TaskOptions) -> None:
    """Raise InputError where options need rows of several sites in one place."""
    names = options.site_names
    for bad, what in (
        ("" in names or len({*names}) < len(names), f"{options.sites!r}: give each a name of its own, with commas"),
        (not options.file, "name the table, which every site has under the same name: task.file"),
        (bool(options.client_column), "a site is a client: leave out task.client_column"),
        (bool(options.hidden_labels), "what a site's people did not label is not labeled: leave out hidden_labels"),
        (options.client_test != "none", "test rows are the server's: set task.client_test to 'none'"),
        (options.validation_from != "server", "validation rows are the server's: set task.validation_from to 'server'"),
        (options.min_positives > 0, "nobody counts the classes of all sites: set task.min_positives to 0"),
        ("://" in options.cache, "each site has a folder of its own: give task.cache as a folder"),
        (not options.split_column, "the server's own rows are validation and test: name task.split_column"),
    ):
        if bad:
            raise InputError(f"[task] sites: {what}")


def _spec(task: Task, options: TaskOptions, table: Table) -> InputSpec:
    """Return the form of inputs, which no site's rows decide. table: the server's, for their kind and columns."""
    if options.input_spec:
        return set_normalization(check_fits(given_spec(options), task.fit(table, options)), options)
    if task.payload == "image":
        return set_normalization(task.fit(table, options), options)
    raise InputError(
        f"{WHERE}: sites share no rows to fit a vocabulary or a scaling on: name the folder of a saved model, or of"
        " data that were prepared from other rows of this form"
    )


def _plan(
    task: Task, options: TaskOptions, seed: int, table: Table, looks: Sequence[_Look], start_M1: list[int]
) -> PartitionPlan:
    """Return the partition: a site's rows are its client's, by their places among all."""
    split = table["split"]
    if (found := {*pc.unique(split).to_pylist()}) - {"test", "validation"} or "test" not in found:
        raise InputError(f"[task] sites: the server's own rows must be test and validation, and are {sorted(found)}")
    # a row for each site with its classes: rules that draw need no more
    length_M = np.array([len(look.held) for look in looks])
    held = np.concatenate([np.zeros(0, np.int32), *(np.array(look.held, np.int32) for look in looks)])
    labels = Labels(held.astype(np.int32), offsets(length_M), len(task.class_names))
    names = np.asarray(options.site_names, dtype=np.str_)
    place_M = np.arange(len(looks))
    clients = tuple(ClientPlan(place_M[i : i + 1], looks[i].held) for i in range(len(looks)))
    rule = replace(options, identified="held") if options.identified == "partition" else options
    clients = identified(clients, TrainingRows(labels, place_M, names), task, rule, seed)
    rows = [np.arange(start, end) for start, end in pairwise(start_M1)]
    place_N = in_order(table["row"].to_numpy(), np.arange(table.num_rows))
    validation = np.sort(place_N[pc.equal(split, "validation").to_numpy(zero_copy_only=False)])
    return PartitionPlan(
        tuple(replace(client, rows=part) for client, part in zip(clients, rows, strict=True)), validation, seed
    )


def _encoding(job: _Job, destination: Destination) -> Encoding:
    """Return the encoding of a site, or of the server: a file for each site, and one more."""
    clients = len(job.classes)
    first_F1 = np.array([*range(clients + 1), clients + 2], np.int64)
    return Encoding(job.task, job.spec, IntLists.of(job.classes), first_F1, destination)


def _owned(encoding: Encoding, table: Table, number_N: Ints, owner_N: Ints) -> Table:
    """Return encoded rows with their numbers and owners."""
    encoded = encoding.encode(table.select([*kept_columns(table), encoding.task.payload]))
    return with_owner(numbered(encoded, number_N), owner_N)


def _histogram(known: Sequence[Table]) -> ClassHistogram:
    client_H = np.repeat(np.arange(len(known)), [len(table) for table in known])
    class_H, rows_H = (np.concatenate([table[name].to_numpy() for table in known]) for name in ("class", "rows"))
    return ClassHistogram(client_H, class_H.astype(np.int64), rows_H.astype(np.int64))


# ---- At a site.


def _rows_of_site(task: Task, options: TaskOptions) -> tuple[Table, Labels]:
    """Return a site's rows. Raises InputError where some are not for training."""
    table, _ = read_rows(task, options, raw_folder(task, options), lambda line: None)
    if (found := {*pc.unique(table["split"]).to_pylist()}) - {"train"}:
        raise InputError(f"[task] sites: a site's rows are for training, and these are {sorted(found)}")
    return table, Labels.of_lists(table["labels"], len(task.class_names))


def _look(task: Task, options: TaskOptions, asked: bool) -> _Look:
    table, labels = _rows_of_site(task, options)
    held = tuple(np.flatnonzero(labels.counts()).tolist()) if asked else ()
    return _Look(table.num_rows, raw_digest(task, options, raw_folder(task, options)), held)


def _is_prepared(folder: str, client: int) -> bool:
    return all((Path(folder) / name).is_file() for name in (MANIFEST, rows_file(client)))


def _write(job: _Job) -> tuple[Table, Table]:
    """Write a site's rows; return ``WRITTEN`` of it, and its rows of every class that it identifies."""
    table, labels = _rows_of_site(job.task, job.options)
    _discard(job.building)  # of a process that was lost midway
    os.makedirs(job.building, 0o700)
    encoding = _encoding(job, Destination.of(job.building))
    numbers = row_numbers(job.raw, job.rows)[job.start : job.start + table.num_rows]
    number_N = in_order(table["row"].to_numpy(), numbers)
    rows = _owned(encoding, table, number_N, np.full(table.num_rows, job.client))
    written = encoding.write(rows, job.client)
    digest = raw_digest(job.task, job.options, raw_folder(job.task, job.options))
    if (table.num_rows, digest) != (job.look.rows, job.look.digest):
        raise InputError("its files changed while they were read: prepare them again when they are whole")
    at = written.column_names.index("positives")
    written = written.set_column(
        at, "positives", pa.array([0], pa.int64())
    )  # of unknown classes, too: nobody's to know
    count_C, mine = labels.counts(), np.array(job.classes[job.client], np.int64)
    mine = mine[count_C[mine] > 0]
    return written, pa.table({"class": mine, "rows": count_C[mine].astype(np.int64)})


def _publish_there(building: str, folder: str, account: dict[str, bytes]) -> None:
    destination = Destination(building)
    for name, data in account.items():
        if name != MANIFEST:
            destination.write(name, data)
    destination.close(MANIFEST, account[MANIFEST])
    publish(building, Path(folder))
    _discard(building)  # left over after a lost race


def _discard(building: str) -> None:
    shutil.rmtree(building, ignore_errors=True)


class _Sites:
    """The sites of a cluster, which answer one call each at a time."""

    def __init__(self, options: TaskOptions) -> None:
        """Raise InputError where no node offers one of them."""
        import ray  # only data at sites need it

        self.names, self.resources, self.cache = options.site_names, options.site_resources, options.cache
        everywhere: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # ray has no annotation here
        there = {name for node in everywhere if node["Alive"] for name in node["Resources"]}
        for name, resource in zip(self.names, self.resources, strict=True):
            if resource not in there:
                raise InputError(
                    f"[task] sites: no node of the cluster is site {name!r}: start it with ray start --resources"
                    f" '{{\"{resource}\": 1}}'"
                )

    def ask(self, function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        """Return what each site answers. InputError where one cannot, which says no more than where."""
        import ray  # as above

        remote: Any = ray.remote(num_cpus=0, max_retries=2)(_at_site)
        refs = [
            remote.options(resources={resource: SHARE}).remote(self.cache, function, *given)
            for resource, given in zip(self.resources, arguments, strict=True)
        ]
        answers = []
        for name, ref in zip(self.names, refs, strict=True):
            fault, answer = ray.get(ref)
            if fault:
                raise InputError(f"site {name!r}: {fault}: {FAULTS} in its cache folder has the reason")
            answers.append(answer)
        return answers


def _at_site(cache: str, function: Callable[..., T], *arguments: Any) -> tuple[str, T | None]:
    """Return ("", answer); or (kind of error, None), and write the reason where the site's people find it."""
    try:
        return "", function(*arguments)
    except Exception as error:
        write_fault(cache, error)
        return f"its rows cannot be prepared ({type(error).__name__})", None


def write_fault(cache: str, error: Exception) -> None:
    """Add an error to the faults of this site. cache: ``task.cache``."""
    folder = cache_root(cache)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / FAULTS, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as stream:
        stream.write("".join(traceback.format_exception(error)))
