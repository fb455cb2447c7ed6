"""The roles of the columns of a user's table: labels, inputs, client, split; and the names of the classes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Column
from anchorfl.tasks.contract import Columns, LabelKind
from anchorfl.tasks.errors import InputError, has_controls, nearest
from anchorfl.tasks.files.raw_files import open_text
from anchorfl.tasks.files.remote_root import root_of
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.tabular.cell_types import all_images, check_cells, check_codes, check_texts
from anchorfl.tasks.tabular.image_folder import CLASS, PATH, SPLIT
from anchorfl.tasks.tabular.reading import Faults, TableFile, listed
from anchorfl.tasks.tabular.targets import Style, words

Inputs = Literal["numbers", "vector", "series", "text", "image"]
"""Columns of numbers and categories; or one column of lists of numbers, of lists of those, of texts, or of paths of
images."""
FEW_WORDS = 20
"""A text column with so many different words, at most, is taken for categories if nobody names the inputs."""
IDS = re.compile(r"id|index|row|unnamed: 0|__index_level_\d+__|.*[_ ]id|", re.IGNORECASE)
"""Names of columns that number the rows: no feature, unless asked for."""

OWN_OPTIONS = (
    *("file", "label_columns", "label_separator", "input_columns", "client_column", "split_column", "ignore_columns"),
    "class_names",
)
"""Options that say what a table of the user's own holds."""


TRUTHS = {"0", "1", "0.0", "1.0", "True", "False", "true", "false"}
"""Entries that say of a class whether a row has it."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The roles of the columns."""

    labels: tuple[str, ...]
    """Columns of the labels."""
    style: Style
    """Form of the labels in these columns."""
    values: tuple[str, ...]
    """The word in the table for each class."""
    class_names: tuple[str, ...]
    inputs: tuple[str, ...]
    """Columns of the inputs."""
    form: Inputs
    """Content of the inputs."""
    guessed: bool = False
    """True where nobody named the inputs."""
    client: str = ""
    """Column of the clients; empty: none."""
    split: str = ""
    """Column of the split; empty: none."""
    features: int = 0
    """Series only: values of a step, as most have them."""
    separator: str = ""
    """What stands between the classes in a cell of the label column; empty: nothing, or the cells are lists."""
    ignored: tuple[str, ...] = ()
    """Columns that the user left out."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Text columns among several inputs -> the words of the whole file, sorted."""

    @property
    def kind(self) -> LabelKind:
        """``single`` where one column holds one class."""
        return "single" if self.style == "value" else "multi"

    @property
    def columns(self) -> Columns:
        """The columns that a trained model has to know."""
        return Columns(self.inputs, self.labels, self.values, self.separator)

    def applied(self, file: TableFile) -> TableFile:
        """Return the file with the texts of the label column taken apart where they hold several classes."""
        return file.separated(self.labels[0], self.separator) if self.separator and self.labels else file


def schema_of(file: TableFile, options: TaskOptions) -> Schema:
    """Return the roles that the user gave to the columns, the rest guessed. Raises InputError where that cannot be."""
    names, options = list(file.types), columns_of_folder(file, options)
    if not options.label_columns:
        raise InputError(
            f"{file.path}: say which columns hold the labels: --task.label_columns; there are {listed(names, 40)}"
        )
    for option in ("client_column", "split_column"):
        if (name := getattr(options, option)) and name not in names:
            msg = f"[task] {option} = {name!r} is no column of {file.path}{nearest(name, names)}"
            raise InputError(f"{msg}; there are {listed(names, 40)}")
        if name and not (file.form(name) in ("numbers", "text") or pa.types.is_temporal(file.types[name])):
            raise InputError(
                f"{file.path}: column {name!r} ([task] {option}) holds {file.types[name]}; give names or numbers"
            )
    taken = {name for name in (options.client_column, options.split_column) if name}
    ignored = tuple[str, ...]()
    if options.ignore_columns:
        ignored = select_columns(options.ignore_columns, names, "ignore_columns", taken, file.path)
        taken |= set(ignored)
    labels = select_columns(options.label_columns, names, "label_columns", taken, file.path)
    separator = _separator(file, labels, options)
    if separator:
        file = file.separated(labels[0], separator)
    style = _style(file, labels)
    values, class_names = _classes(file, labels, style, options)
    of_clients = (options.client_column,) if options.client_column else ()
    check_codes(file, (*(labels if style == "value" else ()), *of_clients))
    rest = taken | set(labels)
    inputs = (
        select_columns(options.input_columns, names, "input_columns", rest, file.path)
        if options.input_columns
        else guess_inputs(file, rest)
    )
    categories = {name: categories_of(file, name) for name in inputs if len(inputs) > 1 and file.form(name) == "text"}
    form = form_of_inputs(file, inputs, categories)
    if form == "text":
        check_texts(file, inputs[0])
    return Schema(
        labels=labels, style=style, values=values, class_names=class_names, inputs=inputs, form=form,
        guessed=not options.input_columns,
        client=options.client_column, split=options.split_column,
        features=features(file, inputs[0]) if form == "series" else 0,
        separator=separator, ignored=ignored, categories=categories,
    )  # fmt: skip


def columns_of_folder(file: TableFile, options: TaskOptions) -> TaskOptions:
    """Return the options with the columns that a folder of images has, where they are not said; else as they are."""
    if not file.path.is_dir():
        return options
    if CLASS not in file.types:
        raise InputError(f"{file.path}: no class folder in it; put its images into one folder per class")
    return replace(
        options,
        label_columns=options.label_columns or CLASS,
        label_separator=options.label_separator or "none",
        input_columns=options.input_columns or PATH,
        split_column=options.split_column or (SPLIT if SPLIT in file.types else ""),
    )


def schema_of_model(file: TableFile, columns: Columns, kind: LabelKind, class_names: tuple[str, ...]) -> Schema:
    """Return the columns that a trained model asks for. Raises InputError where the table lacks one of its inputs."""
    lacking = [name for name in columns.inputs if name not in file.types]
    if lacking:
        hint = nearest(lacking[0], file.types)
        msg = f"{file.path} lacks {len(lacking)} of the {len(columns.inputs)} input columns of the model: "
        raise InputError(f"{msg}{listed(lacking)}{hint}")
    labels = tuple(name for name in columns.labels if name in file.types)
    # cells of one class each may all look like numbers
    separator = columns.separator if labels and file.form(labels[0]) in ("text", "numbers") else ""
    style: Style = "value" if kind == "single" else "columns" if columns.labels == columns.values else "lists"
    for name in columns.inputs:
        if name in columns.categories and file.form(name) != "text" and not all_missing(file, name):
            msg = f"{file.path}: column {name!r} holds {file.types[name]}, and the model was trained on texts there"
            raise InputError(f"{msg}; give texts (in a Parquet file, where they look like numbers)")
    form = form_of_inputs(file, columns.inputs, columns.categories)
    return Schema(
        labels=labels, style=style, values=columns.values, class_names=class_names, inputs=columns.inputs, form=form,
        features=features(file, columns.inputs[0]) if form == "series" else 0,
        separator=separator, categories=columns.categories,
    )  # fmt: skip


def select_columns(text: str, names: Sequence[str], option: str, taken: Iterable[str], path: Path) -> tuple[str, ...]:
    """Return the columns that an option names.

    text: names and patterns separated by commas, in that order. A pattern leaves out the columns that are ``taken``.
    Raises InputError on a name that is no column or is taken.
    """
    taken, known = set(taken), set(names)
    selected = dict[str, None]()
    for part in _parts(text, known):
        if part in known:
            if part in taken:
                raise InputError(
                    f"[task] {option} names column {part!r}, which is a label, client, split or left out; name another"
                )
            selected[part] = None
            continue
        matches = [name for name in names if fnmatchcase(name, part) and name not in taken]
        if not matches:
            msg = f"[task] {option}: {part!r} is no column of {path}{nearest(part, names)}; "
            raise InputError(f"{msg}there are {listed(names, 40)}")
        selected |= dict.fromkeys(matches)
    return tuple(selected)


def _parts(text: str, names: Set[str]) -> Iterator[str]:
    """Yield the names and patterns of a text that has commas between them; a name may have commas of its own."""
    pieces, most = text.split(","), 1 + max((name.count(",") for name in names), default=0)
    while pieces:
        joined = (",".join(pieces[:count]) for count in range(min(most, len(pieces)), 0, -1))
        found = next((part for piece in joined for part in (piece, piece.strip()) if part in names), pieces[0].strip())
        yield found
        del pieces[: found.count(",") + 1]


def guess_inputs(file: TableFile, taken: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that are likely inputs.

    These are all columns of numbers that are not taken and do not number the rows, and the text columns of few words
    beside them. Where there are only text columns of few words, these; where there is one other column that can be an
    input, that. Raises InputError where there are others, and no numbers.
    """
    rest = [name for name in file.types if name not in set(taken)]
    numbers = tuple(name for name in rest if file.form(name) == "numbers" and not IDS.fullmatch(name))
    other = [name for name in rest if file.form(name) in ("text", "vector", "series") and not IDS.fullmatch(name)]
    if numbers or len(other) > 1:
        for name in other:  # a column that would be left out
            check_cells(file, name, ", or name the inputs with --task.input_columns")
        found = {*numbers, *(name for name in other if file.form(name) == "text" and _has_few_words(file, name))}
        if numbers or len(found) == len(other):
            return tuple(name for name in rest if name in found)
    if len(other) == 1:
        return tuple(other)
    msg = f"{file.path}: no column of numbers is left to be the input; name the inputs with --task.input_columns"
    raise InputError(f"{msg}; there are {listed(rest, 40) or 'only labels'}")


def category_words(column: Column) -> Column:
    """Return the words of a column in one form: null where nothing stands, or where it is no text."""
    if not pa.types.is_string(column.type):
        return pa.nulls(len(column), pa.string())
    column = one_form(column)
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


def one_form(column: Column) -> Column:
    """Return texts without spaces around them, and with composed accents (NFC)."""
    column = pc.utf8_trim_whitespace(column)
    words = pc.unique(column)
    forms = [text and composed(text) for text in words.to_pylist()]  # pyarrow 25's own decomposes
    if forms == words.to_pylist():
        return column
    return pc.take(pa.array(forms, pa.string()), pc.index_in(column, value_set=words))


def composed(text: str) -> str:
    """Return a text with composed accents (NFC)."""
    return unicodedata.normalize("NFC", text)


def categories_of(file: TableFile, name: str) -> tuple[str, ...]:
    """Return the words of a text column, sorted. Raises InputError where it hardly holds categories."""
    check_cells(file, name)
    column = category_words(file.read([name])[name]).drop_null()
    found: list[str] = pc.unique(column).to_pylist()
    if len(found) == len(column) or all_images(file, name):
        what = "no two texts that are the same" if len(found) == len(column) else "paths of images"
        raise InputError(f"{file.path}: column {name!r} holds {what}; among several inputs, texts are categories")
    return tuple(sorted(found))


def all_missing(file: TableFile, name: str) -> bool:
    """Return whether nothing stands in any row of a column, of which a file does not tell the type."""
    column = file.read([name])[name]
    return pa.types.is_floating(column.type) and bool(pc.all(pc.is_null(column, nan_is_null=True)).as_py())


def _has_few_words(file: TableFile, name: str) -> bool:
    column = category_words(file.read([name])[name]).drop_null()
    return 2 <= len(pc.unique(column)) <= min(FEW_WORDS, len(column) // 2) and not all_images(file, name)


def unused(file: TableFile, schema: Schema) -> list[str]:
    """Return the columns that are left out though nobody said so, each with the reason; none where inputs are named."""
    used = {*schema.labels, *schema.inputs, schema.client, schema.split, *schema.ignored}
    found = []
    for name in file.types if schema.guessed else ():
        if name not in used:
            reasons = {"text": "texts: not guessed to be categories", "numbers": "a number of the row"}
            found.append(f"{name} ({reasons.get(file.form(name), f'holds {file.types[name]}')})")
    return found


def form_of_inputs(file: TableFile, inputs: Sequence[str], categories: Iterable[str]) -> Inputs:
    """Return the content of the inputs. Raises InputError where they do not go together."""
    forms = {name: "numbers" if name in set(categories) else file.form(name) for name in inputs}
    if set(forms.values()) == {"numbers"}:
        return "numbers"
    if len(inputs) > 1:
        odd = next(name for name in inputs if forms[name] != "numbers")
        check_cells(file, odd)
        raise InputError(
            f"{file.path}: column {odd!r} holds {file.types[odd]}, no number; several inputs are numbers or"
            " categories, or give one"
        )
    form = forms[inputs[0]]
    if form == "vector" or form == "series":
        return form
    if form == "text":
        check_cells(file, inputs[0])
        return "image" if all_images(file, inputs[0]) else "text"
    raise InputError(
        f"{file.path}: column {inputs[0]!r} holds {file.types[inputs[0]]}; give numbers, text or lists of numbers"
    )


def features(file: TableFile, name: str) -> int:
    """Return the number of values of most steps. Raises InputError where none has any."""
    length = pc.list_value_length(pc.list_flatten(file.read([name])[name]))
    filled = length.filter(pc.greater(pc.fill_null(length, 0), 0))
    if not len(filled):
        raise InputError(f"{file.path}: column {name!r} holds only empty lists; name another input")
    return int(pc.mode(filled)[0]["mode"].as_py())


def read_class_names(path: Path) -> tuple[list[str], list[str]]:
    """Return the ids (none: the file has none) and names of the classes in a file. Raises InputError with the line."""
    if not path.is_file():
        raise InputError(f"[task] class_names = {str(path)!r}: no such file; give a text file with a class name a line")
    lines = [(number, line) for number, line in open_text(path) if line.strip()]
    with_id = ["\t" in line for _, line in lines]
    if not lines or (any(with_id) and not all(with_id)):
        number = lines[with_id.index(not with_id[0])][0] if lines else 1
        raise InputError(f"{path}:{number}: give a class name on every line, or 'id<TAB>name' on every line")
    pairs = [line.partition("\t") for _, line in lines]
    first, _, second = map(list, zip(*pairs, strict=True))
    return (first, second) if with_id[0] else ([], first)


def option_path(text: str, options: TaskOptions) -> Path:
    """Return a path that an option names: below ``root`` where that is given."""
    return root_of(options) / Path(text).expanduser()


SEPARATORS = ";|,"
"""Characters that people write between the classes of a cell."""


def _separator(file: TableFile, labels: Sequence[str], options: TaskOptions) -> str:
    """Return what stands between the classes in a cell of the label column; empty: a cell is one class.

    Raises InputError where cells look like lists and nobody said whether they are.
    """
    given = options.label_separator
    texts = len(labels) == 1 and file.form(labels[0]) == "text"
    if given and given != "none" and not texts:
        msg = f"[task] label_separator = {given!r} is for one label column of texts"
        raise InputError(f"{file.path}: {msg}, and {listed(labels)} holds {file.types[labels[0]]}; leave it out")
    if given or not texts:
        return "" if given == "none" else given
    column = pc.utf8_trim_whitespace(file.read(labels)[labels[0]])
    values = pc.unique(column.drop_null()).to_pylist()
    one = "or say that a cell is one class, whatever stands in it: --task.label_separator none"
    for value in values:
        if value.startswith("[") and value.endswith("]"):
            row = file.row_N[pc.index(column, value).as_py()] + 1
            msg = f"{file.path}: row {row}: column {labels[0]!r} holds {value!r}, which looks like a list of classes"
            raise InputError(f"{msg}; write every cell as a list (\"['a', 'b']\"), {one}")
    for separator in SEPARATORS:
        parts = {value: {part.strip() for part in value.split(separator)} for value in values if separator in value}
        alone, times = set(values), Counter(part for own in parts.values() for part in own)
        for value, own in parts.items():
            # a comma may belong to a name; where what it parts stands elsewhere as well, it parts classes
            if separator != "," or own & alone or any(times[part] > 1 for part in own):
                row = file.row_N[pc.index(column, value).as_py()] + 1
                msg = f"{file.path}: row {row}: column {labels[0]!r} holds {value!r}, which may be several classes"
                option = f"--task.label_separator '{separator}'"
                raise InputError(f"{msg}: take cells apart with {option}, {one}")
    return ""


def _style(file: TableFile, labels: Sequence[str]) -> Style:
    if len(labels) > 1:
        return "columns"
    form = file.form(labels[0])
    if form in ("vector", "names"):
        _check_no_vectors(file, labels[0])
        return "lists"
    if form in ("numbers", "text"):
        return "value"
    kind = file.types[labels[0]]
    raise InputError(
        f"{file.path}: column {labels[0]!r} holds {kind}; labels are names, whole numbers or lists of them"
    )


def _check_no_vectors(file: TableFile, name: str) -> None:
    """Raise InputError where every list is as long as the others and holds 0 and 1 alone: numbers for all classes."""
    column = file.head([name])[name].drop_null()
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    entries = pc.unique(pc.list_flatten(column)).to_pylist()
    if len(lengths) == 1 and lengths[0] > 1 and {str(entry) for entry in entries} <= TRUTHS:
        raise InputError(
            f"{file.path}: column {name!r} holds {lengths[0]} numbers of 0 and 1 in each row; give a column for each"
            " class, or lists of the classes' names"
        )


def _classes(
    file: TableFile, labels: tuple[str, ...], style: Style, options: TaskOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the word in the table for each class, and the names. Raises InputError on names that hardly differ."""
    class_file = read_class_names(option_path(options.class_names, options)) if options.class_names else None
    if style == "columns":
        values, names = _of_columns(labels, class_file, options)
    elif class_file is None:
        values = names = _present(file, labels[0], style)
    elif class_file[0]:
        values, names = class_file
    else:
        present, names = _present(file, labels[0], style), class_file[1]
        numbers = all(value.lstrip("-").isdigit() for value in present)
        values = [str(i) for i in range(len(names))] if numbers else names
        from_1 = "0" not in present and str(len(names)) in present  # the first name would be a class without rows
        if numbers and from_1:
            raise InputError(
                f"{file.path}: column {labels[0]!r} holds classes from {present[0]} to {len(names)}, and the names of"
                f" {options.class_names} would be those of 0 to {len(names) - 1}: write 'number<TAB>name' on every line"
            )
    if len(names) < 2:
        raise InputError(f"{file.path}: column {labels[0]!r} holds {len(names)} class; a task needs at least 2")
    check_names(names, options.class_names or str(file.path))
    check_names(values, options.class_names or str(file.path), exact=True)
    return tuple(values), tuple(names)


def check_names(names: Sequence[str], where: str, *, exact: bool = False) -> None:
    """Raise InputError where a name is empty, or two look the same (exact: are the same).

    These differ only in case, in spaces, in characters that are not seen, or in how an accent is stored.
    """
    seen = dict[str, str]()
    for name in names:
        if has_controls(name):
            raise InputError(f"{where}: class name {name!r} holds control characters or a line end; rename it")
        key = name if exact else _seen(name)
        if not key or key in seen:
            both = "one is empty"
            if key in seen:
                pair = (seen[key], name)
                unseen = all(text.isascii() for text in pair)
                how = "case or spaces" if unseen else "case, spaces, or characters that look the same or are not seen"
                both = f"{pair[0]!a} and {pair[1]!a} differ only in {how}"
            same = key in seen and seen[key] == name
            raise InputError(f"{where}: class names: {f'two are {name!r}' if same else both}; rename one")
        seen[key] = name


def _seen(name: str) -> str:
    """Return what a reader sees of a name: composed accents, no case, no spaces, no character without a shape."""
    shown = "".join(c for c in unicodedata.normalize("NFC", name) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFC", "".join(shown.split()).casefold())


def _of_columns(
    labels: tuple[str, ...], class_file: tuple[list[str], list[str]] | None, options: TaskOptions
) -> tuple[Sequence[str], Sequence[str]]:
    if class_file is None:
        pattern = options.label_columns.strip()
        if pattern.count("*") != 1 or set(pattern) & set("?[,"):
            return labels, labels
        before, after = pattern.split("*")  # the names without what they all share: label_*
        return labels, [name[len(before) : len(name) - len(after)].strip(" _-:.") or name for name in labels]
    ids, names = class_file
    if not ids:
        if len(names) != len(labels):
            raise InputError(
                f"[task] class_names: {len(names)} names for {len(labels)} label columns; give one a line for each"
            )
        return labels, names
    by_id = dict(zip(ids, names, strict=True))
    lacking = [name for name in labels if name not in by_id]
    if lacking:
        raise InputError(
            f"[task] class_names: no line for column {lacking[0]!r}{nearest(lacking[0], ids)}; add 'column<TAB>name'"
        )
    return labels, [by_id[name] for name in labels]


def _present(file: TableFile, name: str, style: Style) -> list[str]:
    """Return the values that occur: numbers by size, names by the alphabet."""
    column: Any = file.read([name])[name]
    column = words(pc.list_flatten(column) if style == "lists" else column, name, Faults(file.path, file.row_N))
    values: list[str] = pc.unique(column.drop_null()).to_pylist()
    form = file.types[name].value_type if style == "lists" else file.types[name]
    return (
        sorted(values)
        if str(form) == "string"
        else sorted(values, key=lambda v: (int(v) if v.lstrip("-").isdigit() else 0, v))
    )
