"""The table that a task's ``read`` gave: check of the contract, choice of the classes, owners of the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Column, Ints, Table
from anchorfl.tasks.arrays.disclosure import known_matrix
from anchorfl.tasks.arrays.labels import Labels, without_classes
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.contract import CLASS_NAMES, LONGEST_CLIENT, InputSpec, LabelKind, Task
from anchorfl.tasks.errors import InputError, has_controls
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.files.split_leaks import leaked_rows
from anchorfl.tasks.ingest.row_numbers import positions_of
from anchorfl.tasks.options import JsonText, TaskOptions, json_text
from anchorfl.tasks.partition.client_classes import sets_of_seed
from anchorfl.tasks.partition.plan import PartitionPlan
from anchorfl.tasks.partition.stratify import generator

SPLITS = ("train", "validation", "test")
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "validate", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Words for the splits in a user's data, in lower case."""
SHOWN = 5


def canonicalize_options(task: Task, options: TaskOptions, seed: int) -> TaskOptions:
    """Return the options with ``fold`` and ``split_seed`` as numbers, with the class sets of this seed alone, and
    without a number of clients where it follows from the data.

    So data are prepared once. Raises InputError where the task has no such fold, the class sets have no known form, or
    labels cannot be hidden so.
    """
    sets = sets_of_seed(options.client_classes, seed)
    options = replace(options, client_classes=JsonText("") if sets is None else json_text(sets))
    if options.partition == "one_class":
        options = replace(options, clients=0)
    if not -1 <= options.fold < task.folds and options.fold != -1:
        folds = f"folds 0..{task.folds - 1}" if task.folds else "no folds; leave it at -1"
        raise InputError(f"[task] fold = {options.fold}: {task.name} has {folds}")
    if not 0 <= options.hidden_labels < 1:
        raise InputError(f"[task] hidden_labels = {options.hidden_labels} must lie in [0, 1)")
    if options.hidden_labels and options.partition == "one_class":
        raise InputError(
            f"[task] hidden_labels = {options.hidden_labels}: a client of 'one_class' has the rows of its class and no"
            " others, so it knows their label: set it to 0, or partition otherwise"
        )
    split_seed = seed if options.split_seed is None else options.split_seed
    if split_seed < -1:
        raise InputError(
            f"[task] split_seed = {split_seed}: must be at least 0, -1 for the data set's own, or none for the run's"
        )
    fold = seed % task.folds if task.folds and options.fold == -1 else options.fold
    return replace(options, fold=fold, split_seed=split_seed)


def read_rows(task: Task, options: TaskOptions, folder: Path | None, log: Callable[[str], None]) -> tuple[Table, Task]:
    """Return the raw rows, and the task with the classes that count. Log what was left out and what looks wrong.

    Raises InputError on bad files, ValueError on a fault of the task.
    """
    table = task.read(folder, options)
    task = _with_class_names(task, table)
    table = validate_table(table, task, bool(options.sites))
    count, listed = skipped(table)
    for line in listed[:SHOWN]:
        log(f"{task.name}: left out: {line}")
    if count:
        log(f"{task.name}: {count} bad rows were left out{f', {SHOWN} of them shown' if count > SHOWN else ''}")
    twice = leaked_rows(table, task.payload)
    if len(twice):
        test, train = twice[0]
        log(f"{task.name}: {len(twice)} test rows are identical to a training row (ids {test} and {train}, ...)")
    table, task = drop_rare_classes(table, task, options.min_positives)
    if task.kind == "single" and len(task.class_names) < 2:
        raise InputError(
            f"[task] min_positives = {options.min_positives}: only class {task.class_names[0]!r} of {task.name} has so"
            " many rows, and a task needs two; lower it"
        )
    return table, task


def class_names_of(task: Task, options: TaskOptions) -> tuple[str, ...]:
    """Return a task's class names, from its files where only they have them. Raises InputError: these are missing."""
    if task.class_names:
        return task.class_names
    return _with_class_names(task, task.read(raw_folder(task, options), options)).class_names


def _with_class_names(task: Task, table: Table) -> Task:
    """Return the task with the class names that stand in the files, if they do."""
    names = (table.schema.metadata or {}).get(CLASS_NAMES)
    return task if names is None else replace(task, class_names=tuple(json.loads(names)))


def validate_table(table: Table, task: Task, at_sites: bool = False) -> Table:
    """Return the table that ``read`` gave, if it keeps the contract. at_sites: it holds the rows of one site.

    Raises ValueError on a fault of the task, InputError on a fault of the data.
    """
    _check_names(task.class_names, task.name)
    needed = {"row", "split", "labels", task.payload} | ({"subject"} if task.subjects else set())
    lacking = needed - set(table.column_names)
    if lacking or not (np.diff(np.sort(table["row"].to_numpy())) > 0).all():
        raise ValueError(f"{task.name}: read must give unique rows and {task.payload}; it lacks {sorted(lacking)}")
    splits = set(pc.unique(table["split"]).to_pylist())
    needed_splits = set() if at_sites else {"train", "test"}
    if not needed_splits <= splits <= {*SPLITS}:
        raise InputError(
            f"{task.name}: the rows need the splits train and test, found {sorted(splits)}; correct the raw data"
        )
    if task.subjects and (pc.max(pc.utf8_length(table["subject"])).as_py() or 0) > LONGEST_CLIENT:
        raise InputError(
            f"{task.name}: a client's name has more than {LONGEST_CLIENT} characters; correct the raw data"
        )
    labels = Labels.of_lists(table["labels"], len(task.class_names))
    labeled = given_labels(table, labels.classes)
    if labeled is not None:
        _check_given(labels, labeled, task.name)
    if task.kind == "single":
        unlabeled_N = (labeled.length_N == 0) if labeled is not None else np.zeros(len(labels), dtype=np.bool_)
        wrong = np.flatnonzero((labels.length_N != 1) & ~unlabeled_N)
        if len(wrong):
            row = table["row"][int(wrong[0])].as_py()
            raise InputError(
                f"{task.name}: row {row} has not exactly one class, as a single-label task needs; correct the raw data"
            )
    return table


def given_labels(table: Table, classes: int) -> Labels | None:
    """Return the classes of every row whose label the raw data give; None where they give all."""
    if "known" not in table.column_names or not (table["known"].null_count < table.num_rows):
        return None
    every = pa.scalar(list(range(classes)), pa.list_(pa.int32()))
    return Labels.of_lists(table["known"].fill_null(every), classes)


def drop_rare_classes(table: Table, task: Task, least: int) -> tuple[Table, Task]:
    """Return table and task without the classes of fewer than ``least`` rows. Raises InputError where none is left."""
    labels = Labels.of_lists(table["labels"], len(task.class_names))
    kept_C = labels.counts() >= least
    if kept_C.all():
        return table, task
    if not kept_C.any():
        most = labels.counts().max(initial=0)
        raise InputError(
            f"[task] min_positives = {least}: no class of {task.name} has so many rows; the largest has {most}"
        )
    names = tuple(name for name, kept in zip(task.class_names, kept_C, strict=True) if kept)
    kept = set(names)
    groups = {group: tuple(n for n in members if n in kept) for group, members in task.groups.items()}
    groups = {group: members for group, members in groups.items() if members}

    for name in {"labels", "known"} & set(table.column_names):
        table = table.set_column(table.column_names.index(name), name, without_classes(table[name], kept_C))
    dropped = tuple(name for name in task.class_names if name not in kept)
    places = tuple(np.flatnonzero(~kept_C).tolist())
    fit = partial(_fit_without, task.fit, places)
    return table, replace(task, class_names=names, groups=groups, dropped=dropped, fit=fit)


def _fit_without(
    fit: Callable[[Table, TaskOptions], InputSpec], dropped: tuple[int, ...], train: Table, options: TaskOptions
) -> InputSpec:
    """Return the spec of the input, which says which of the table's classes are not the model's."""
    spec = fit(train, options)
    return spec if spec.columns is None else replace(spec, columns=replace(spec.columns, dropped=dropped))


def restrict_validation_labels(
    table: Table, labels: Labels, plan: PartitionPlan, kind: LabelKind
) -> tuple[Table, Labels]:
    """Return table and labels; a validation row shows only what the client knows that it was held out from."""
    if not len(plan.validation_client):
        return table, labels
    row_N, order_V = table["row"].to_numpy(), np.argsort(plan.validation)
    index_N = np.searchsorted(plan.validation, row_N, sorter=order_V)
    index_N = order_V[np.minimum(index_N, len(order_V) - 1)]
    validation_N = plan.validation[index_N] == row_N
    aware_MC = np.zeros((len(plan.clients) + 1, labels.classes), dtype=np.bool_)
    aware_MC[-1] = True  # rows that are no validation rows
    for client, client_plan in enumerate(plan.clients):
        aware_MC[client, list(client_plan.classes)] = True
    client_N = np.where(validation_N, plan.validation_client[index_N], len(plan.clients))
    seen = labels.where(aware_MC[client_N[labels.row_P], labels.class_P])
    raw_known = table["known"] if "known" in table.column_names else pa.nulls(len(row_N), pa.list_(pa.int32()))
    known_NC = known_matrix(pa.chunked_array(raw_known), range(labels.classes), labels.classes) & aware_MC[client_N]
    if kind == "single":
        known_NC &= (seen.length_N > 0)[:, None] | ~validation_N[:, None]
    known = pc.if_else(pa.array(validation_N), Labels.of_matrix(known_NC).lists(), raw_known)
    return with_labels(table, seen, known), seen


def hide_labels(
    table: Table, labels: Labels, plan: PartitionPlan, kind: LabelKind, share: float, seed: int
) -> tuple[Table, Labels]:
    """Return table and labels without a random share of the labels of the clients' training rows: of the rows, or
    multi-label of the classes of every row. What is drawn depends on the seed and the ids of the rows, not their order.
    """
    if not share:
        return table, labels
    row_N, classes = table["row"].to_numpy(), labels.classes
    training_N = np.isin(row_N, np.concatenate([client.rows for client in plan.clients]))
    drawn_NC = np.empty((len(row_N), classes if kind == "multi" else 1))
    drawn_NC[np.argsort(row_N)] = generator(seed, "hidden labels").random(drawn_NC.shape)
    shown_NC = np.broadcast_to((drawn_NC >= share) | ~training_N[:, None], (len(row_N), classes))
    seen = labels.where(shown_NC[labels.row_P, labels.class_P])
    raw_known = table["known"] if "known" in table.column_names else pa.nulls(len(row_N), pa.list_(pa.int32()))
    known_NC = known_matrix(pa.chunked_array(raw_known), range(classes), classes) & shown_NC
    known = pc.if_else(pa.array(training_N), Labels.of_matrix(known_NC).lists(), raw_known)
    return with_labels(table, seen, known), seen


def with_labels(table: Table, labels: Labels, known: Column) -> Table:
    """Return a table with these labels, and these classes whose labels are known."""
    for name, column in {"labels": labels.lists(), "known": known}.items():
        table = table.drop_columns([name]) if name in table.column_names else table
        table = table.append_column(name, column)
    return table


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of every row, row after row: the clients, then the server's test rows, then its validation rows,
    then every client's own test rows.
    """

    owner_E: Ints
    """The owner of every entry."""
    offset_N1: Ints
    """First entry of every row."""
    count: int
    """Number of owners."""

    def parts(self) -> list[Ints]:
        """Return the positions of every owner's rows, ascending."""
        row_E = np.repeat(np.arange(len(self.offset_N1) - 1), np.diff(self.offset_N1))
        order_E = np.argsort(self.owner_E, kind="stable")
        return np.split(row_E[order_E], np.cumsum(self.sizes())[:-1])

    def sizes(self) -> Ints:
        """Return the number of rows of every owner."""
        return np.bincount(self.owner_E, minlength=self.count)


def assign_owners(plan: PartitionPlan, row_N: Ints, test_N: Ints) -> Owners:
    """Return the owners of every row. row_N: ids; test_N: ids of the test rows."""
    parts = [*(client.rows for client in plan.clients), test_N, plan.validation, *plan.client_test]
    row_E = positions_of(row_N)(np.concatenate(parts))
    owner_E = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    sorted_E = np.argsort(row_E, kind="stable")  # the owners of a row ascend as they do in the parts
    offset_N1 = offsets(np.bincount(row_E, minlength=len(row_N)))
    return Owners(owner_E[sorted_E], offset_N1, len(parts))


def _check_names(names: Sequence[str], task: str) -> None:
    """Raise InputError where two classes have one name, or names that differ by case, spaces or underscores only."""
    first = dict[str, str]()
    for name in names:
        if has_controls(name):
            raise InputError(f"{task}: class name {name!r} holds control characters or a line end; rename it")
        key = re.sub(r"[\s_]+", " ", name).strip().casefold()
        if key in first:
            raise InputError(
                f"{task}: the classes {first[key]!r} and {name!r} have one name; give each a name of its own"
            )
        first[key] = name


def _check_given(labels: Labels, labeled: Labels, name: str) -> None:
    """Raise ValueError where a positive label is not given."""
    key = np.int64(labels.classes)
    lost = np.setdiff1d(labels.row_P * key + labels.class_P, labeled.row_P * key + labeled.class_P)
    if len(lost):
        row, class_ = divmod(int(lost[0]), int(key))
        raise ValueError(
            f"{name}: read says that the label of class {class_} in row number {row} is not known, and gives it"
        )
