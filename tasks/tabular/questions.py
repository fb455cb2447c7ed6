"""Questions about columns that can be read in two ways, where the wrong one spoils the scores without a word.

A question is one line: the column, a value, and the options that answer it. ``ignore_columns`` answers every question,
``input_columns`` every one but that for a split that it does not name: where it names the inputs, nothing else is
guessed. The first 65,536 rows are looked at.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Column
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.raw_table import SPLIT_WORDS
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.tabular.cell_types import all_images
from anchorfl.tasks.tabular.reading import TableFile, listed
from anchorfl.tasks.tabular.schema import IDS, Schema
from anchorfl.tasks.tabular.targets import signed

WHO = re.compile(
    r"(client|site|hospital|clinic|cent(er|re)|institution|station|device|user|subject|patient|participant|person"
    r"|wearer|writer|speaker|customer|owner|unit)s?([ _-]?(id|name|no|nr|number))?",
    re.IGNORECASE,
)
"""Names of columns that may say whose row it is."""
SPLIT_NAMES = re.compile(r"(is[ _-]?)?(train|test|split|fold|subset)(ing)?([ _-]?(id|no|nr|number))?", re.IGNORECASE)
"""Names of columns of numbers that may say which split a row is in."""
FEWEST = 10
"""Rows from which on an order of whole numbers is hardly chance."""
LONG = 12
"""So many columns are named one by one in an answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about columns."""

    columns: tuple[str, ...]
    """Columns that it is about."""
    text: str
    """The question, and the option for a yes."""
    alone: bool = False
    """A yes takes the column alone; a no leaves it out, and nothing else says so."""


def check(file: TableFile, schema: Schema, options: TaskOptions) -> None:
    """Raise InputError with the first question about the columns, where there is any."""
    found = questions(file, schema, options)
    if found:
        more = f" ({len(found) - 1} more questions: 'anchorfl data check')" if len(found) > 1 else ""
        raise InputError(f"{file.path}: {found[0]}{more}")


def questions(file: TableFile, schema: Schema, options: TaskOptions) -> list[str]:
    """Return the questions about the columns, one line each; none where all is clear."""
    used = {*schema.labels, schema.client, schema.split, *schema.ignored}
    if not schema.guessed:
        used |= {*schema.inputs}
    asked = dict[str, Question]()
    guesses = (
        (_split_numbers, _clients, _left_labels, _counters, _codes, _labels_again, _pictures) if schema.guessed else ()
    )
    for ask in (_splits, *guesses):
        for question in ask(file, schema, [name for name in file.types if name not in used and name not in asked]):
            asked |= dict.fromkeys(question.columns, question)
    return [_with_answers(question, file, schema, options, asked) for question in dict.fromkeys(asked.values())]


def _with_answers(
    question: Question, file: TableFile, schema: Schema, options: TaskOptions, asked: dict[str, Question]
) -> str:
    """Return a question with the options for a no: to leave its columns out, or to name the inputs."""
    own, them = question.columns, "them" if len(question.columns) > 1 else "it"
    text = f"{question.text}; else leave {them} out with {_ignoring(own, options)}"
    if question.alone:
        return text
    texts = any(file.form(name) == "text" for name in own)
    if texts and schema.form != "numbers":  # beside numbers alone are texts categories
        return text
    inputs = [name for name in file.types if name in own or (name in schema.inputs and name not in asked)]
    if len(inputs) <= LONG:
        return f"{text}, or name the inputs with --task.input_columns {shlex.quote(','.join(inputs))}"
    used = {*schema.labels, schema.client, schema.split, *schema.ignored, *inputs}
    rest = [name for name in file.types if name not in used]
    others = f" {_ignoring(rest, options)}" if rest else ""
    return f"{text}, or name the inputs with --task.input_columns '*'{others}"


def _splits(file: TableFile, schema: Schema, names: Sequence[str]) -> Iterator[Question]:
    """Yield the columns of texts that are all words for splits."""
    for name in names if not schema.split else ():
        if file.form(name) != "text":
            continue
        column = pc.utf8_lower(pc.utf8_trim_whitespace(file.head([name])[name].drop_null()))
        if len(column) and set(pc.unique(column).to_pylist()) <= set(SPLIT_WORDS):
            option = f"name it with --task.split_column {shlex.quote(name)}"
            yield Question((name,), f"column {name!r} holds {_first(file, name)}: if it is the split, {option}")


def _split_numbers(file: TableFile, schema: Schema, names: Sequence[str]) -> Iterator[Question]:
    """Yield the inputs whose name is one for a split."""
    for name in names:
        if name in schema.inputs and file.form(name) == "numbers" and SPLIT_NAMES.fullmatch(name):
            option = "write train, validation and test into it and name it with --task.split_column"
            yield Question((name,), f"column {name!r} holds {_first(file, name)}: if it is the split, {option}")


def _clients(file: TableFile, schema: Schema, names: Sequence[str]) -> Iterator[Question]:
    """Yield columns that may say whose row it is: they are called so or ``..._id``, and their values are repeated."""
    for name in names:
        is_id = IDS.fullmatch(name) is not None
        if not (WHO.fullmatch(name) or is_id):
            continue
        if file.form(name) not in ("text", "numbers") or (schema.client and is_id):  # an id is no input anyway
            continue
        column = file.head([name])[name].drop_null()
        if pa.types.is_floating(column.type):  # whole numbers of which one is missing, or a measurement
            column = column.filter(pc.is_finite(column))
            if not pc.all(pc.equal(column, pc.floor(column))).as_py():
                continue
        values = len(pc.unique(column))
        if 2 <= values <= len(column) // 2:
            text = (
                f"column {name!r} holds {_first(file, name)}, {values} values in {len(column)} rows: if it says whose"
            )
            option = f"name it with --task.client_column {shlex.quote(name)}"
            question = f"{text} row it is, {option if not schema.client else 'it is no input'}"
            yield Question((name,), question)


def _left_labels(file: TableFile, schema: Schema, names: Sequence[str]) -> Iterator[Question]:
    """Yield the inputs of 0 and 1 (-1 and 1) beside several label columns of such: labels left over would give them
    away.
    """
    names = [name for name in names if name in schema.inputs and file.form(name) == "numbers"]
    if schema.style != "columns" or not names:
        return
    table, low = file.head(names), -1 if signed(file.head(schema.labels), schema.labels) else 0
    left = [name for name in names if set(pc.unique(table[name].drop_null()).to_pylist()) == {low, 1}]
    if left:
        labels = shlex.quote(",".join([*schema.labels, *left])) if len(left) <= LONG else ""
        text = f"inputs of {low} and 1, as the labels: {listed(left)}; if these are labels, add them:"
        yield Question(tuple(left), f"{text} --task.label_columns {labels}".rstrip())


def _counters(file: TableFile, schema: Schema, names: Sequence[str]) -> Iterator[Question]:
    """Yield the inputs of whole numbers that count rows, windows or steps."""
    names = [name for name in names if name in schema.inputs and pa.types.is_integer(file.types[name])]
    table = file.head(names) if names else pa.table({})
    left = [name for name in names if _counts(table[name])]
    if left:
        shown = listed([f"{name!r} ({', '.join(map(str, table[name][:3].to_pylist()))}, ...)" for name in left])
        text = (
            f"inputs that count the rows, windows or steps of the file: {shown}; a series whose steps are rows becomes"
        )
        yield Question(tuple(left), f"{text} one row, its steps a list of lists (docs/own-data.md)")


def _counts(column: Column) -> bool:
    """Return whether whole numbers, three different ones or more, are in an order that only a count has.

    They never fall (rows, windows), rise by one or start again (steps), or are a consecutive number for every row.
    """
    if column.null_count or len(column) < FEWEST:
        return False
    value_N = column.to_numpy()
    low, high = int(value_N.min()), int(value_N.max())
    different = len(np.unique(value_N))
    if different < 3:
        return False
    rises_N = value_N[1:] >= value_N[:-1]
    steps_N = (value_N[1:] == low) | (rises_N & (value_N[1:] - value_N[:-1] == 1))
    return bool(rises_N.all() or steps_N.all() or different == len(value_N) == high - low + 1)


def _codes(file: TableFile, schema: Schema, names: Sequence[str]) -> Iterator[Question]:
    """Yield the inputs that have one value for every client, and no value twice."""
    if not schema.client:
        return
    for name in names:
        if name not in schema.inputs or not (pa.types.is_integer(file.types[name]) or file.form(name) == "text"):
            continue
        table = file.head([name, schema.client]).rename_columns(["value", "client"])
        clients, values = (len(pc.unique(table[side])) for side in ("client", "value"))
        if clients == values > 2 and len(table.group_by(["client", "value"]).aggregate([])) == clients:
            text = f"column {name!r} holds {_first(file, name)}, and another value for every {schema.client!r}"
            yield Question((name,), f"{text}, so that it names the client")


def _labels_again(file: TableFile, schema: Schema, names: Sequence[str]) -> Iterator[Question]:
    """Yield the inputs that are the classes under other names: one for every class, and none twice."""
    for name in names if schema.style == "value" else ():
        code = file.form(name) == "numbers" and len(schema.inputs) > 1
        if name in schema.inputs and (name in schema.categories or code):
            table = file.head([name, schema.labels[0]]).rename_columns(["value", "label"]).drop_null()
            values, classes = (len(pc.unique(table[side])) for side in ("value", "label"))
            pairs = len(table.group_by(["value", "label"]).aggregate([]))
            if values == classes == pairs > 1 and len(table) >= 2 * classes:
                text = f"column {name!r} holds {_first(file, name)}, and another value for every class"
                yield Question((name,), f"{text}, so that it gives {schema.labels[0]!r} away")


def _pictures(file: TableFile, schema: Schema, names: Sequence[str]) -> Iterator[Question]:
    """Yield the columns of images that columns of numbers beside them keep from being the input."""
    for name in names:
        if name not in schema.inputs and file.form(name) == "text" and all_images(file, name):
            text = f"column {name!r} holds {_first(file, name)}, images, and would be left out for {schema.inputs[0]!r}"
            option = f"to train on them, name it with --task.input_columns {shlex.quote(name)}"
            yield Question((name,), f"{text}: {option}", alone=True)


def _first(file: TableFile, name: str) -> str:
    """Return the first value of a column."""
    column = file.head([name])[name].drop_null()
    return repr(column[0].as_py()) if len(column) else "nothing"


def _ignoring(names: Sequence[str], options: TaskOptions) -> str:
    """Return the option that leaves columns out, beside those that are left out already."""
    text = ",".join([*([options.ignore_columns] if options.ignore_columns else []), *names])
    return f"--task.ignore_columns {shlex.quote(text)}"
