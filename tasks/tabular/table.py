"""The task that a user's table makes: a Parquet or CSV file, and options that say what its columns are; or images in
one folder per class.

Chosen by us: where no column holds the split, a fifth of the labeled rows, stratified by (rarest) class, is the test
split, drawn with a seed of its own, so that every run is tested on the same rows whatever its seed. Test and
validation rows of a single-label table need a label; training rows do not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Bools, Column, Table
from anchorfl.tasks.arrays.labels import Labels, without_classes
from anchorfl.tasks.contract import LONGEST_CLIENT, Columns, InputSpec, LabelKind, Source, Task
from anchorfl.tasks.errors import InputError, has_controls, nearest
from anchorfl.tasks.files.bad_rows import BadRows
from anchorfl.tasks.files.remote_table import table_path
from anchorfl.tasks.ingest.input_spec import given_spec
from anchorfl.tasks.ingest.raw_table import SPLIT_WORDS, SPLITS
from anchorfl.tasks.options import TaskOptions, table_stem
from anchorfl.tasks.partition.client_classes import read_client_classes
from anchorfl.tasks.partition.stratify import TEST, stratified_holdout
from anchorfl.tasks.tabular import questions, samples
from anchorfl.tasks.tabular.image_folder import open_file_or_folder
from anchorfl.tasks.tabular.reading import Faults, listed
from anchorfl.tasks.tabular.schema import (
    OWN_OPTIONS,
    Schema,
    composed,
    one_form,
    option_path,
    schema_of,
    schema_of_model,
    unused,
)
from anchorfl.tasks.tabular.targets import EXACT, Targets, targets

TEST_SHARE = 0.2
TEST_SEED = 20
MANY = 20
"""Classes above which half as many as rows are hardly classes."""


def table_task(options: TaskOptions) -> Task:
    """Read ``options.file`` and return its task. Raises InputError on what cannot be a task."""
    path = _plainly_named(table_path(options))
    file = open_file_or_folder(path, BadRows(skip=options.on_bad_row == "skip"))
    schema = schema_of(file, options)
    questions.check(file, schema, options)
    if options.sites and options.input_spec:
        schema = _with_words(schema, given_spec(options))
    return task_of_schema(path, schema, options)


def _plainly_named(path: Path) -> Path:
    folder = path.is_dir()
    if odd := set(path.name) & set("{}*[]?" if folder else "{}*"):
        msg = f"{path}: the name must not hold {' or '.join(sorted(odd))}, which mean several files; rename it"
        raise InputError(msg)
    if folder and not path.name.strip("."):
        raise InputError(f"{path}: call the folder by its name, after which runs are named: {path.resolve()}")
    return path


def task_of_schema(path: Path, schema: Schema, options: TaskOptions) -> Task:
    """Return the task of a table whose columns are known."""
    stem, folder = table_stem(path.name), path.is_dir()
    files: tuple[str, ...] = (f"{path.name}/{'*/' * bool(schema.split)}*/*" if folder else path.name,)
    if options.class_names:  # what is in it matters to the prepared data as well
        files += (os.path.relpath(option_path(options.class_names, options), path.parent),)
    form = schema.form
    encode = samples.encoder(samples.kind_of(form))[1]
    if schema.categories:
        encode = partial(samples.encode_vectors, words=schema.categories)
    return Task(
        name=stem if stem.startswith("table-") else f"table-{stem}",
        title=f"{path.name}, {'images' if folder else 'a table'} of your own",
        class_names=schema.class_names,
        kind=schema.kind,
        payload=samples.payload_name(form),
        source=Source(files=files, url=str(path), licence="yours"),
        folder="",
        read=partial(read, schema=schema),
        fit=partial(samples.fit, schema=schema),
        encode=encode,
        subjects=schema.client,
        named_files=partial(images, schema=schema) if form == "image" and not folder else None,
    )


def _with_words(schema: Schema, spec: InputSpec) -> Schema:
    """Return a schema with the words of a form, too: rows of other files than its own have them."""
    known = spec.columns.categories if spec.columns else {}
    words = {
        name: tuple(sorted({*own, *map(composed, known.get(name, ()))})) for name, own in schema.categories.items()
    }
    return replace(schema, categories=words)


def images(folder: Path, options: TaskOptions, *, schema: Schema) -> list[str]:
    """Return the paths that the table's rows name, each once, without those of bad rows that leave the folder."""
    file = open_file_or_folder(folder / Path(options.file).name, BadRows(skip=True))
    text = pc.utf8_trim_whitespace(file.read(schema.inputs)[schema.inputs[0]])
    named = [path for path in pc.unique(text.drop_null()).to_pylist() if path]
    return sorted(path for path in named if not samples.leaves(folder / path, folder))


def resolve_options(options: TaskOptions, log: Callable[[str], None]) -> TaskOptions:
    """Return the options with the table's name, with what a column ``client`` says, and with the class sets that a
    file gives. Log what was guessed.

    A column ``client`` means partition by subjects, one client for every value.
    """
    options = replace(options, client_classes=read_client_classes(options.client_classes, option_path("", options)))
    if not options.file:
        wrong = next((name for name in OWN_OPTIONS if name != "file" and getattr(options, name)), "")
        if wrong:
            raise InputError(f"[task] {wrong} is for a table of your own: name its file with --task.file")
        return options
    path = _plainly_named(table_path(options))
    file = open_file_or_folder(path, BadRows(skip=options.on_bad_row == "skip"))
    schema = schema_of(file, options)
    questions.check(file, schema, options)
    if schema.guessed:
        log(f"{path.name}: inputs guessed (--task.input_columns names them), as {schema.form}: {listed(schema.inputs)}")
    if schema.guessed and schema.categories:
        log(f"{path.name}: of these, categories are {listed(list(schema.categories))}")
    if left := unused(file, schema):
        log(f"{path.name}: not used (--task.input_columns or --task.ignore_columns says so): {listed(left)}")
    task = task_of_schema(path, schema, options)
    options = replace(options, name=task.name)
    if options.sites:
        return replace(options, partition="subjects", clients=len(options.sites.split(",")))
    if not schema.client:
        return options
    if options.split_seed is None and not schema.split:
        raise InputError(
            f"[task] split_seed = none: which of the {schema.client!r} have training rows would differ from seed to"
            " seed; give a number, or the column of the split (--task.split_column)"
        )
    table = task.read(path.parent, options)
    clients = len(pc.unique(table["subject"].filter(pc.equal(table["split"], "train"))))
    log(f"{path.name}: {clients} clients, one for every {schema.client!r} that has training rows")
    return replace(options, partition="subjects", clients=clients)


def read(folder: Path | None, options: TaskOptions, *, schema: Schema) -> Table:
    """Return the raw rows in file order. Raises InputError with file and row."""
    if folder is None:
        raise ValueError("a table needs the folder of its file")
    bad = BadRows.of(options)
    # a site's own rows may look like something else than all of the table: ``01`` alone like a number
    texts = (*_texts(schema.labels, schema.values), *schema.categories) if options.sites else ()
    file = open_file_or_folder(folder / Path(options.file).name, bad, texts)
    file = schema.applied(file)
    if options.sites and schema.split not in file.types:  # a site's own rows
        schema = replace(schema, split="")
    extra = [name for name in (schema.client, schema.split) if name]
    raw = file.read([*schema.labels, *schema.inputs, *extra])
    faults = Faults(file.path, file.row_N, whole=bad.skip)
    labeled = targets(raw, schema.style, schema.labels, schema.values, faults)
    columns = {"row": pa.array(file.row_N), "labels": labeled.labels}
    if labeled.known is not None:
        columns["known"] = labeled.known
    columns[samples.payload_name(schema.form)] = samples.payload(raw, schema, faults)
    if schema.client:
        columns["subject"] = _subjects(raw[schema.client], schema.client, faults)
    if schema.split:
        columns["split"] = _splits(raw[schema.split], schema, labeled, faults, bool(options.sites))
    good = pa.array(faults.settle(bad))
    table = pa.table(columns).filter(good)
    if not schema.split and options.sites:
        table = table.append_column("split", pa.array(["train"] * len(table)))
    elif not schema.split:
        given_N = labeled.given_N[good.to_numpy(zero_copy_only=False)]
        drawn = _draw_split(
            table,
            given_N,
            len(schema.values),
            file.path,
            options.seed_of_split(TEST_SEED),
            single=schema.kind == "single",
        )
        table = table.append_column("split", drawn)
    return bad.noted(table)


@dataclass(frozen=True, slots=True)
class PredictionSamples:
    """The samples that a trained model is asked about."""

    table: Table
    """``row``, ``labels``, ``known`` and the payload, of every row."""
    labeled: bool
    """True where the file has any label."""


def read_samples(path: Path, spec: InputSpec, kind: LabelKind, class_names: tuple[str, ...]) -> PredictionSamples:
    """Return the samples of a file with the model's columns, labeled or not. Raises InputError with file and row."""
    if spec.columns is None:
        raise ValueError("the model was not trained on a table")
    bad = BadRows(skip=False, choice=False)
    texts = (*_texts(spec.columns.labels, spec.columns.values), *spec.columns.categories)
    file = open_file_or_folder(path, bad, texts)
    schema = schema_of_model(file, spec.columns, kind, class_names)
    faults = Faults(path, file.row_N)
    raw = schema.applied(file).read([*schema.inputs, *schema.labels])
    for name in set(spec.columns.labels) - set(schema.labels) if schema.style == "columns" else ():
        raw = raw.append_column(name, pa.nulls(len(raw), pa.float64()))
    name, _ = samples.encoder(spec.kind)
    if samples.payload_name(schema.form) != name:
        raise InputError(
            f"{path}: column {schema.inputs[0]!r} holds {schema.form}, the model was trained on {spec.kind}"
        )
    columns = {"row": pa.array(file.row_N), name: samples.payload(raw, schema, faults)}
    if name == "values":
        _check_width(columns[name], schema, spec, path)
    if schema.labels:
        labeled = targets(raw, schema.style, spec.columns.labels, schema.values, faults)
        known = pa.nulls(len(raw), pa.list_(pa.int32())) if labeled.known is None else labeled.known
        columns |= {"labels": labeled.labels, "known": known}
    else:
        nothing = pa.array([[]] * len(raw), pa.list_(pa.int32()))
        columns |= {"labels": nothing, "known": nothing}
    faults.settle(bad)
    table = pa.table(columns)
    if not schema.labels:
        return PredictionSamples(table, False)
    given_N = labeled.given_N
    if len(spec.columns.values) != len(class_names):
        table, given_N = _without_dropped(table, given_N, spec.columns, kind, class_names, path)
    return PredictionSamples(table, bool(given_N.any()))


def _texts(labels: tuple[str, ...], values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the column of the labels where the words of the classes are texts that some rows alone would not look
    like: ``01`` beside ``x``, or ``True`` beside ``Unknown``.
    """
    if labels == values:
        return ()
    as_numbers = all(value in ("true", "false") or re.fullmatch(r"0|-?[1-9]\d*", value) for value in values)
    return () if as_numbers else labels


def _without_dropped(
    table: Table, given_N: Bools, columns: Columns, kind: LabelKind, class_names: tuple[str, ...], path: Path
) -> tuple[Table, Bools]:
    """Return the samples with the model's classes alone, and which have a label of these, as in training."""
    kept_C = np.isin(np.arange(len(columns.values)), columns.dropped, invert=True)
    if kept_C.sum() != len(class_names):
        raise InputError(
            f"{path}: the model is of an older version, which does not say which of its table's classes were too rare"
            " to be its own: leave out the column of the labels, or train it again"
        )
    labels, known = (without_classes(table[name], kept_C) for name in ("labels", "known"))
    if kind == "single":  # a row of another class is as one without a label
        none_N = pc.equal(pc.list_value_length(labels), 0)
        known = pc.if_else(none_N, pa.scalar([], known.type), known)
        given_N = given_N & ~none_N.to_numpy(zero_copy_only=False)
    for name, column in (("labels", labels), ("known", known)):
        table = table.set_column(table.column_names.index(name), name, column)
    return table, given_N


def _check_width(column: Column, schema: Schema, spec: InputSpec, path: Path) -> None:
    width = column.type.list_size
    if width != samples.width(spec) or (schema.features and schema.features != spec.shape[-1]):
        raise InputError(f"{path}: a sample has {width} values; the model takes {' x '.join(map(str, spec.shape))}")


def _subjects(column: Column, name: str, faults: Faults) -> Column:
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        if large := pc.filter(column, pc.greater_equal(pc.abs(column), EXACT)).to_pylist():
            raise InputError(
                f"{faults.path}: column {name!r} holds {large[0]:g}: numbers of clients from 2^53 on run into each"
                " other; store them as text"
            )
    column = one_form(column.cast(pa.string()))  # "north " is nobody else
    empty_N = pc.fill_null(pc.equal(column, ""), True).to_numpy()
    faults.add(empty_N, lambda i: f"column {name!r} is empty; say whose row it is or remove the row")
    odd = pa.array([text for text in pc.unique(column).to_pylist() if text and has_controls(text)], pa.string())
    odd_N = pc.is_in(column, value_set=odd).to_numpy(zero_copy_only=False)
    faults.add(odd_N, lambda i: f"column {name!r} holds {column[i].as_py()!a}, with control characters; correct it")
    long_N = pc.fill_null(pc.greater(pc.utf8_length(column), LONGEST_CLIENT), False).to_numpy(zero_copy_only=False)
    faults.add(long_N, lambda i: f"column {name!r} holds a name of more than {LONGEST_CLIENT} characters; shorten it")
    return pc.fill_null(column, "")


def _splits(column: Column, schema: Schema, labeled: Targets, faults: Faults, at_sites: bool) -> Column:
    name, column = schema.split, pc.fill_null(column.cast(pa.string()), "")
    word = pc.utf8_lower(pc.utf8_trim_whitespace(column))
    number = pc.index_in(word, value_set=pa.array(list(SPLIT_WORDS)))
    split = pc.fill_null(pc.take(pa.array(list(SPLIT_WORDS.values())), number), "")
    found = set(pc.unique(split).to_pylist())
    lacking = [need for need in ("train", "test") if need not in found and not at_sites]
    if lacking and ("" not in found or found == {""}):  # else the rows with other words are named
        there = listed([repr(value) for value in pc.unique(column).to_pylist()])
        msg = f"{faults.path}: column {name!r} has no {lacking[0]} row; it holds {there}"
        raise InputError(f"{msg}: write train, validation or test, or name another column with --task.split_column")
    wrong_N = pc.equal(split, "").to_numpy()
    faults.add(
        wrong_N,
        lambda i: (
            f"column {name!r} holds {column[i].as_py()!r}{nearest(word[i].as_py(), SPLITS)}; "
            "write train, validation or test"
        ),
    )
    if schema.kind == "single":
        test_N = pc.not_equal(split, "train").to_numpy()
        faults.add(
            test_N & ~wrong_N & ~labeled.given_N,
            lambda i: f"a {split[i].as_py()} row without a label; fill in column {schema.labels[0]!r} or make it train",
        )
    return split


def _draw_split(table: Table, given_N: Bools, classes: int, path: Path, split_seed: int, *, single: bool) -> Column:
    """Draw the split column where the file has none: a fifth of the labeled rows is test, but for the last of a client
    that has other rows.
    """
    index = np.flatnonzero(given_N)
    rarest = Labels.of_lists(table["labels"], classes).take(index).rarest()
    spare = len(index) - len(np.unique(rarest))
    if round(TEST_SHARE * len(index)) > spare or not spare:
        found = len(index) - spare
        if single and found > max(MANY, len(index) // 2):
            raise InputError(
                f"{path}: {found} classes in {len(index)} labeled rows are too many to draw a test split from: name a"
                " column of classes with --task.label_columns, no quantity and no number of the row"
            )
        raise InputError(
            f"{path}: {len(index)} labeled rows are too few to draw a test split from; give a column with"
            " --task.split_column"
        )
    row_N = table["row"].to_numpy()
    test = stratified_holdout(rarest, row_N[index], TEST_SHARE, np.random.default_rng(split_seed), option=TEST)
    test_N = np.isin(row_N, test)
    if "subject" in table.column_names:
        test_N &= ~_last_labeled(table["subject"], given_N, test_N)
    return pa.array(np.where(test_N, "test", "train").tolist(), pa.string())


def _last_labeled(subject: Column, given_N: Bools, test_N: Bools) -> Bools:
    """Return, of each client that has training rows and would have none with a label, the first row with one."""
    code_N = np.unique(subject.to_pylist(), return_inverse=True)[1]
    trained_S, labeled_S = np.bincount(code_N, ~test_N), np.bincount(code_N, ~test_N & given_N)
    index_L = np.flatnonzero(given_N & ((trained_S > 0) & (labeled_S == 0))[code_N])
    back_N = np.zeros(len(code_N), dtype=np.bool_)
    back_N[index_L[np.unique(code_N[index_L], return_index=True)[1]]] = True
    return back_N
