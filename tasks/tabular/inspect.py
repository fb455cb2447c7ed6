"""Inspection of a user's table before anything trains: columns, classes, clients, splits, and likely problems.

Shape suffixes: N rows, C classes, F features.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Bools, Column, Ints, Table, list_parts
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Task
from anchorfl.tasks.errors import InputError, escaped
from anchorfl.tasks.files.bad_rows import BadRows, skipped
from anchorfl.tasks.files.remote_table import table_path
from anchorfl.tasks.files.split_leaks import leaked_rows
from anchorfl.tasks.ingest.ingest import plan_rows
from anchorfl.tasks.ingest.raw_table import SPLITS, drop_rare_classes, given_labels, validate_table
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.tabular.cell_types import odd_cell
from anchorfl.tasks.tabular.image_folder import open_file_or_folder
from anchorfl.tasks.tabular.questions import questions
from anchorfl.tasks.tabular.reading import TableFile, listed
from anchorfl.tasks.tabular.schema import IDS, OWN_OPTIONS, Schema, schema_of, unused
from anchorfl.tasks.tabular.table import task_of_schema
from anchorfl.tasks.tabular.targets import MANY, signed

TRIED = 50
"""So many values of ``min_positives`` are tried."""
FEW = 5
"""A class with fewer positive training rows is named."""
SHOWN = 200
"""So many classes, clients and columns are shown one by one."""


@dataclass(slots=True)
class Inspection:
    """The findings about a table."""

    lines: list[str] = field(default_factory=list)
    """Lines for the reader."""
    problems: list[str] = field(default_factory=list)
    """Lines about what will hurt."""
    stops: list[str] = field(default_factory=list)
    """Lines about what keeps a run from starting."""
    bad_rows: int = 0
    """Number of the stops about bad rows, which ``on_bad_row = "skip"`` leaves out."""
    run: TaskOptions | None = None
    """Options with which a run starts, near those that were asked about; None: none were found."""
    rare: bool = False
    """True where a stop is about classes without a training row, which ``min_positives`` leaves out."""
    ready: bool = False
    """True where it is said which columns hold the labels; a folder of images says so itself."""

    @property
    def mended(self) -> bool:
        """True where the options of ``run`` do away with all that stops a run."""
        return self.run is not None and len(self.stops) == self.bad_rows + self.rare

    def text(self) -> str:
        """Return all of it as text."""
        items = [f"  - {line}" for line in (*self.stops, *self.problems)]
        head = "stops a run, and other problems" if self.stops else "problems"
        lines = [*self.lines, "", f"{head}: {'none found' if not items else ''}".rstrip(), *items]
        return "\n".join(map(escaped, lines))


@dataclass(frozen=True, slots=True)
class _UsableRows:
    """The rows that can be used."""

    table: Table
    labels: Labels
    given: Labels | None
    """The classes whose label is given; None where all are."""
    split_N: Any

    def of(self, split: str) -> Bools:
        """Return true at the rows of a split."""
        here: Bools = self.split_N == split
        return here

    @property
    def labeled_N(self) -> Bools:
        """True where a row has any label that is given."""
        return np.ones(len(self.labels), dtype=np.bool_) if self.given is None else self.given.length_N > 0


def inspect_table(options: TaskOptions) -> Inspection:
    """Return the findings about ``options.file``. Raises InputError where it can be no task."""
    path = table_path(options)
    file, inspection = open_file_or_folder(path, BadRows(skip=True)), Inspection()
    what = "images" if path.is_dir() else "rows"
    inspection.lines.append(f"{path}: {len(file.row_N)} {what}, {len(file.types)} columns")
    inspection.ready = bool(options.label_columns) or path.is_dir()
    if not inspection.ready:
        inspection.lines += _columns(file)
        inspection.lines += ["", "say which columns hold the labels, and what is found in them is shown"]
        return inspection
    schema = schema_of(file, options)
    task = task_of_schema(path, schema, options)
    try:
        table = validate_table(task.read(path.parent, replace(options, on_bad_row="skip")), task)
    except InputError as left:  # perhaps for want of the bad rows, of which no list is made then
        try:
            task.read(path.parent, replace(options, on_bad_row="error"))
        except InputError as error:
            if options.on_bad_row != "skip":
                raise InputError(f"{error}; what is left without bad rows: {left}") from left
        raise
    inspection.run = _runnable(table, task, options)
    raw, task = drop_rare_classes(table, task, options.min_positives)
    schema = replace(schema, class_names=task.class_names)
    labels = Labels.of_lists(raw["labels"], len(task.class_names))
    rows = _UsableRows(raw, labels, given_labels(raw, labels.classes), np.array(raw["split"].to_pylist()))
    inspection.lines += ["", *_roles(file, schema)]
    _bad_rows(table, options, inspection)
    _splits(rows, schema, inspection)
    _classes(rows, schema, inspection, needed=bool(schema.client) or options.partition not in ("iid", "one_class"))
    if schema.client:
        _clients(rows, schema, inspection)
    _inputs(rows, task, schema, inspection)
    inspection.stops += questions(file, schema, options)
    if inspection.run is None and not inspection.stops:
        inspection.stops.append("no number of clients and classes was found that the rows can be dealt to")
    elif inspection.run is not None and not options.client_column:
        asked, found = (
            (o.clients, min(o.classes_per_client, len(task.class_names))) for o in (options, inspection.run)
        )
        if asked != found:
            inspection.problems.append(
                f"the rows cannot be dealt to {asked[0]} clients that know {asked[1]} classes each, as a run does if"
                f" nothing else is said: the command below has {found[0]} clients and {found[1]} classes"
            )
    return inspection


def _runnable(table: Table, task: Task, options: TaskOptions) -> TaskOptions | None:
    """Return the options with which the rows can be dealt to clients, as near to ``options`` as they can be.

    Rare classes leave where a class has no training row; then there are fewer classes per client, or more, and fewer
    clients.
    """
    if options.client_column:
        clients = len(pc.unique(table["subject"].filter(pc.equal(table["split"], "train"))))
        options = replace(options, partition="subjects", clients=clients)
    counts = Labels.of_lists(table["labels"], len(task.class_names)).counts()
    train = table.filter(pc.equal(table["split"], "train"))
    train_C = Labels.of_lists(train["labels"], len(task.class_names)).counts()
    rarest = sorted({options.min_positives, *(int(count) + 1 for count in counts if count >= options.min_positives)})
    for least in rarest[:TRIED]:
        tried = replace(options, min_positives=least)
        kept, part = drop_rare_classes(table, task, least) if (counts >= least).any() else (table, task)
        if len(part.class_names) < 2 or not (counts >= least).any():
            return None
        if (train_C[(counts >= options.min_positives) & (counts < least)] >= FEW).any():
            return None  # a class of the test split alone: nobody would give up good classes for it
        if not options.client_column and not _plan(kept, part, replace(tried, partition="dirichlet", clients=1)):
            continue  # a class has no training row
        each, choices = options.classes_per_client, [(options.clients, options.classes_per_client)]
        if options.partition == "k_classes":
            more = [2**power * each for power in range(1, 12) if 2**power * each <= len(part.class_names)]
            numbers = [*range(min(each, len(part.class_names)), 0, -1), *more]
            choices += [(m, k) for m in (options.clients, 5, 3, 2) for k in numbers if m <= options.clients]
        for clients, number in choices:
            found = replace(tried, clients=clients, classes_per_client=number)
            if _plan(kept, part, found):
                return found
    return None


def _plan(table: Table, task: Task, options: TaskOptions) -> bool:
    """Return whether the rows can be dealt to clients so."""
    try:
        plan_rows(task, options, 0, table, Labels.of_lists(table["labels"], len(task.class_names)))
    except InputError:
        return False
    return True


def next_command(options: TaskOptions, inspection: Inspection) -> str:
    """Return the command to type next."""
    words = ["anchorfl", "run"] if inspection.ready else ["anchorfl", "data", "check", options.file]
    prefix = "--task." if inspection.ready else "--"
    if not inspection.ready:
        words += ["--label_columns", "COLUMNS"]
    for name in (*OWN_OPTIONS, "root"):
        if (value := getattr(options, name)) and (inspection.ready or name != "file"):
            words += [f"{prefix}{name}", value]
    if inspection.ready and (inspection.bad_rows or options.on_bad_row == "skip"):
        words += ["--task.on_bad_row", "skip"]
    if inspection.run is None:
        return shlex.join(words)
    for name in ("min_positives", "classes_per_client", *(() if options.client_column else ("clients",))):
        if (number := getattr(inspection.run, name)) != getattr(TaskOptions(), name):
            words += [f"--task.{name}", str(number)]
    return shlex.join(words)


def _columns(file: TableFile) -> list[str]:
    """Describe every column: its content, and whether it may be labels."""
    lines = ["", f"  {'column':<28} {'holds':<10} {'missing':>8}  may be"]
    for name in list(file.types)[:SHOWN]:
        if file.form(name) == "other":  # which nothing reads
            lines.append(f"  {name:<28} {'other':<10} {'':>8}  nothing ({file.types[name]})")
            continue
        column = file.read([name])[name]
        lines.append(f"  {name:<28} {file.form(name):<10} {column.null_count:>8}  {_may_be(file, name, column)}")
    more = len(file.types) - SHOWN
    return [*lines, f"  ... and {more} more columns"] if more > 0 else lines


def _may_be(file: TableFile, name: str, column: Column) -> str:
    form = file.form(name)
    if IDS.fullmatch(name):
        return "a number of the row"
    if form == "names":
        return "labels (lists)"
    if form == "numbers":
        values = pc.unique(column.drop_null()).to_pylist()
        return "a label or an input" if set(values) <= {0, 1} else "an input"
    if form == "text":
        if odd := odd_cell(file, name):
            return odd
        few = len(pc.unique(column)) <= max(2, len(column) // 10)
        return "labels, an input (categories), a client or a split" if few else "an input (text or paths)"
    return "an input"


def _roles(file: TableFile, schema: Schema) -> list[str]:
    minus = schema.style == "columns" and signed(file.read(schema.labels), schema.labels)
    numbers = "-1 (read as 0) and 1" if minus else "0 and 1"
    taken_apart = f", taken apart at {schema.separator!r}" if schema.separator else ""
    what = {
        "columns": f"{len(schema.labels)} columns of {numbers}, multi-label",
        "value": "one column of classes, single-label",
        "lists": f"one column of lists of classes{taken_apart}, multi-label",
    }[schema.style]
    numbers_of = len(schema.inputs) - len(schema.categories)
    shown = [f"{name} ({len(words)} words)" for name, words in schema.categories.items()]
    categories = f"; categories, one-hot: {listed(shown)}" if shown else ""
    form = {
        "numbers": f"numbers, standardized, {numbers_of} column{'s' * (numbers_of != 1)}{categories}",
        "vector": "one column of lists of numbers, standardized",
        "series": "one column of series, standardized",
        "text": "one column of texts",
        "image": "one column of paths of images",
    }[schema.form]
    guessed = " (guessed; --task.input_columns names others)" if schema.guessed else ""
    rest = [*schema.ignored, *unused(file, schema)]
    if not schema.guessed:
        used = {*schema.labels, *schema.inputs, schema.client, schema.split}
        rest = [name for name in file.types if name not in used]
    lines = [f"labels   {what}: {listed(schema.labels)}", f"inputs   {form}{guessed}: {listed(schema.inputs)}"]
    lines += [f"client   {schema.client}"] if schema.client else []
    lines.append(f"split    {schema.split or 'drawn: a fifth of the labeled rows is test, stratified by class'}")
    return [*lines, f"not used {listed(rest)}"] if rest else lines


def _bad_rows(raw: Table, options: TaskOptions, inspection: Inspection) -> None:
    count, messages = skipped(raw)
    if count:
        left_out = options.on_bad_row == "skip"
        where = inspection.problems if left_out else inspection.stops
        where.append(f"{count} bad rows{', left out' if left_out else ''}; the first: {messages[0]}")
        where += messages[1:FEW]
        # where many rows are bad, to leave them out would leave a biased rest
        inspection.bad_rows = len(inspection.stops) if count <= max(1, MANY * (count + raw.num_rows)) else 0


def _splits(rows: _UsableRows, schema: Schema, inspection: Inspection) -> None:
    sizes = [f"{split} {int(rows.of(split).sum())}" for split in SPLITS if rows.of(split).any()]
    inspection.lines += ["", f"rows     {', '.join(sizes)}"]
    if not rows.labeled_N.all():
        inspection.lines.append(f"         {int((~rows.labeled_N).sum())} rows without any label: they stay, unlabeled")
    if schema.split and schema.client:
        sides = [set(rows.table["subject"].filter(rows.of(split)).to_pylist()) for split in ("train", "test")]
        both = sorted(sides[0] & sides[1])
        if both:
            inspection.problems.append(
                f"{len(both)} of {len(sides[0] | sides[1])} values of {schema.client!r} have rows on both sides of the"
                f" split ({listed(both, 4)}): right where a client is tested on new rows of its own, a leak where on"
                " clients that it has not seen"
            )


def _classes(rows: _UsableRows, schema: Schema, inspection: Inspection, *, needed: bool) -> None:
    """Add the classes. needed: whether the partition needs a training row of every class."""
    splits = [split for split in SPLITS if rows.of(split).any()]
    count_SC = {split: rows.labels.take(np.flatnonzero(rows.of(split))).counts() for split in splits}
    total = len(rows.labels)
    given_C = np.full(rows.labels.classes, total) if rows.given is None else rows.given.counts()
    multi = schema.kind == "multi"  # single-label: an unknown label is unknown for every class
    inspection.lines += ["", f"  {'class':<32}" + "".join(f"{s:>11}" for s in splits) + multi * f"{'unknown':>11}"]
    for c, name in list(enumerate(schema.class_names))[:SHOWN]:
        counts = "".join(f"{count_SC[split][c]:>11}" for split in splits)
        inspection.lines.append(f"  {name:<32}{counts}" + multi * f"{total - given_C[c]:>11}")
    if rows.labels.classes > SHOWN:
        inspection.lines.append(f"  ... and {rows.labels.classes - SHOWN} more classes")
    train_C, test_C = count_SC["train"], count_SC["test"]
    stops = len(inspection.stops)
    what = "no positive training row (give them some, or leave them out; --task.min_positives leaves rare classes out)"
    _name(
        inspection.stops if needed else inspection.problems,
        what if needed else "no positive training row",
        train_C == 0,
        schema.class_names,
    )
    inspection.rare = len(inspection.stops) > stops
    _name(
        inspection.problems,
        f"fewer than {FEW} positive training rows",
        (train_C > 0) & (train_C < FEW),
        schema.class_names,
    )
    _name(inspection.problems, "no positive test row", test_C == 0, schema.class_names)
    if all(name.lstrip("-").isdigit() for name in schema.class_names):
        inspection.problems.append(
            "the class names are numbers, which say nothing to methods that use names: give --task.class_names"
        )


def _name(where: list[str], what: str, which_C: Bools, names: Sequence[str]) -> None:
    chosen = [repr(names[c]) for c in np.flatnonzero(which_C).tolist()]
    if chosen:
        where.append(f"{what}: class {listed(chosen)}")


def _clients(rows: _UsableRows, schema: Schema, inspection: Inspection) -> None:
    subject_N = np.array(rows.table["subject"].to_pylist(), dtype=np.str_)
    train_N = rows.of("train")
    names, code_N = np.unique(subject_N, return_inverse=True)
    train_S, labeled_S, all_S = (
        np.bincount(code_N[which_N], minlength=len(names))
        for which_N in (train_N, train_N & rows.labeled_N, np.ones(len(code_N), dtype=np.bool_))
    )
    held_S = np.bincount(code_N[train_N], rows.labels.length_N[train_N], minlength=len(names)) > 0
    inspection.lines += ["", f"  {schema.client:<24}{'train':>8}{'labeled':>10}{'other':>8}  classes (training rows)"]
    without = [repr(name) for name in names[(train_S > 0) & ~held_S].tolist()]
    nowhere = [repr(name) for name in names[train_S == 0].tolist()]
    for code, name in enumerate(names[:SHOWN].tolist()):
        held: Ints = rows.labels.take(np.flatnonzero((code_N == code) & train_N)).counts()
        classes = [f"{schema.class_names[c]} {held[c]}" for c in np.flatnonzero(held).tolist()]
        numbers = f"{train_S[code]:>8}{labeled_S[code]:>10}{all_S[code] - train_S[code]:>8}"
        inspection.lines.append(f"  {name:<24}{numbers}  {listed(classes) or 'none'}")
    if len(names) > SHOWN:
        inspection.lines.append(f"  ... and {len(names) - SHOWN} more")
    if without:
        inspection.stops.append(f"no training row with a class: client {listed(without)}")
    if nowhere:
        inspection.problems.append(f"no training row, so no client: {listed(nowhere)}")


def _inputs(rows: _UsableRows, task: Task, schema: Schema, inspection: Inspection) -> None:
    same = leaked_rows(rows.table, task.payload)
    if same:
        pairs = [f"{test + 1} = {train + 1}" for test, train in same]
        inspection.problems.append(
            f"{len(same)} test rows have the inputs of a training row (row = row: {listed(pairs, 5)}): leave them out,"
            " or their scores show memory"
        )
    if task.payload != "values":
        return
    values, _ = list_parts(rows.table.filter(rows.of("train"))["values"])
    features = schema.features or rows.table["values"].type.list_size
    x_NF = values.reshape(-1, features)
    empty_F = np.isnan(x_NF).all(0)
    low_F, high_F = np.fmin.reduce(x_NF), np.fmax.reduce(x_NF)
    names = schema.inputs if schema.form == "numbers" else [str(number) for number in range(1, features + 1)]
    for problem, which_F in (
        ("nothing but missing values in training", empty_F),
        ("a constant in training", low_F == high_F),
    ):
        if which_F.any():
            shown = [names[f] for f in np.flatnonzero(which_F).tolist()]
            inspection.problems.append(f"{problem}: {len(shown)} of {features} features: {listed(shown)}")
