"""The inputs of a user's table: from columns to one payload column, what is fitted, and how a sample is encoded.

Columns of numbers and lists of numbers become vectors that are standardized with the mean and the deviation of the
clients' training rows; a missing value becomes the mean. A vector is encoded as sparse: all its features with their
numbers from 1.

Chosen by us: a text column among several inputs becomes one feature of 0 and 1, which is not standardized, for each of
the ``CATEGORIES`` most frequent words of the training rows; any other word, or none, is 0 in all of them. Until it is
encoded, a word is its place in a list of words: all those of the file in training, those of the model in prediction.
Shape suffixes: N rows, S steps, F features, D columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anchorfl.tasks.arrays.arrow import Bools, Column, Table, chunked_lists, list_parts
from anchorfl.tasks.contract import Columns, Encode, InputKind, InputSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.regular_files import outside
from anchorfl.tasks.images.pixels import encode_images, image_spec, path_column
from anchorfl.tasks.images.pixels import faults as image_faults
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.signals.series import REAL
from anchorfl.tasks.tabular.in_memory import is_in_memory
from anchorfl.tasks.tabular.reading import Faults, listed
from anchorfl.tasks.tabular.schema import Inputs, Schema, category_words, composed
from anchorfl.tasks.text.words import encode_text, token_spec

IMAGE_SIZE = 64
"""Height and width of images, where ``image_size`` does not say."""
ROWS = 1 << 14
"""Rows that are worked on at a time."""
CATEGORIES = 64
"""Words of a column that have a feature, at most."""
CHUNK_VALUES = 1 << 28
"""Values of a chunk of a column."""
MAX_VALUE = float(np.finfo(np.float32).max)
"""Largest value: samples are stored in float32."""

Floats = npt.NDArray[np.floating[Any]]


def payload_name(form: Inputs) -> str:
    """Return the name of the payload column."""
    return {"text": "text", "image": "image"}.get(form, "values")


def kind_of(form: Inputs) -> InputKind:
    """Return the kind of the encoded input."""
    if form == "numbers" or form == "vector":
        return "sparse"
    return "tokens" if form == "text" else form


def encoder(kind: InputKind) -> tuple[str, Encode]:
    """Return the payload column and the encode of the samples of a model."""
    encoders: dict[InputKind, tuple[str, Encode]] = {
        "tokens": ("text", encode_text),
        "image": ("image", encode_images),
        "series": ("values", encode_series),
        "sparse": ("values", encode_vectors),
    }
    return encoders[kind]


def payload(table: Table, schema: Schema, faults: Faults) -> Column:
    """Return the payload column: texts, absolute paths, or lists of numbers of one length with NaN for what is missing.
    Of a word of ``schema.categories``, the number is its place there.

    A row with a fault has a payload that means nothing.
    """
    if schema.form == "numbers":
        return _numbers(table, schema, faults)
    name, column = schema.inputs[0], table[schema.inputs[0]]
    if schema.form in ("text", "image"):
        column = pc.fill_null(column, "")
        empty_N = pc.equal(pc.utf8_trim_whitespace(column), "").to_numpy()
        what = "text" if schema.form == "text" else "path of an image"
        faults.add(empty_N, lambda i: f"column {name!r} is empty; fill in the {what} or remove the row")
        return column if schema.form == "text" else _paths(column, name, empty_N, faults)
    return _vectors(column, name, schema.features, faults)


def leaves(path: Path, folder: Path) -> bool:
    """Return whether an image that a row names lies outside of the folder of the table, also by a link."""
    try:
        return outside(path, folder)
    except (OSError, ValueError, RuntimeError):
        return False  # it can be no file, which opening it says


def fit(train: Table, options: TaskOptions, schema: Schema) -> InputSpec:
    """Return the spec of the input, with what the clients' training rows give for it."""
    if schema.form == "text":
        return replace(token_spec(train["text"], options.min_count, options.max_tokens), columns=schema.columns)
    if schema.form == "image":
        return replace(image_spec(options, IMAGE_SIZE), columns=schema.columns)
    width = train["values"].type.list_size
    shape = (width // schema.features, schema.features) if schema.form == "series" else (width,)
    mean_F, std_F = moments(train["values"], shape[-1])
    columns = schema.columns
    if schema.categories:
        columns = replace(columns, categories=_frequent(train["values"], schema))
        mean_F, std_F = (_per_feature(of_D, no, columns) for of_D, no in ((mean_F, 0.0), (std_F, 1.0)))
        shape = (len(mean_F),)
        if not shape[0]:
            raise InputError(f"nothing stands in the input columns of any training row: {listed(columns.inputs)}")
    return InputSpec(
        kind_of(schema.form), shape, mean=tuple(mean_F.tolist()), std=tuple(std_F.tolist()), columns=columns
    )


def _frequent(values: Column, schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return the most frequent words of every text column, sorted; of equally frequent ones, the first."""
    x_ND, found = list_parts(values)[0].reshape(-1, len(schema.inputs)), dict[str, tuple[str, ...]]()
    for column, name in enumerate(schema.inputs):
        if name in schema.categories:
            place, count = np.unique(x_ND[~np.isnan(x_ND[:, column]), column], return_counts=True)
            kept = np.sort(place[np.argsort(-count, kind="stable")[:CATEGORIES]])
            found[name] = tuple(schema.categories[name][i] for i in kept.astype(np.int64).tolist())
    return found


def _per_feature(of_D: Floats, no: float, columns: Columns) -> Floats:
    """Return the figures of the columns for every feature; ``no`` for those of categories."""
    parts = [
        [no] * len(columns.categories[name]) if name in columns.categories else [of_D[column]]
        for column, name in enumerate(columns.inputs)
    ]
    return np.array([figure for part in parts for figure in part], dtype=np.float64)


def width(spec: InputSpec) -> int:
    """Return the number of values of a sample before it is encoded: a text column is one."""
    if spec.columns is not None and spec.columns.categories:
        return len(spec.columns.inputs)
    return int(np.prod(spec.shape))


def places(column: Column, words: Sequence[str]) -> Floats:
    """Return the place of every word in ``words``, NaN where there is none or another: float64 [N]."""
    known = pa.array(map(composed, words), pa.string())  # a saved model may have other forms
    index = pc.index_in(category_words(column), value_set=known)
    place_N: Floats = index.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return place_N


def moments(column: Column, features: int) -> tuple[Floats, Floats]:
    """Return mean and deviation of every feature over what is not missing: float64 [F].

    They are 0 and 1 where nothing is there or nothing varies.
    """
    values, _ = list_parts(column)
    x_NF = values.reshape(-1, features)
    blocks = [x_NF[start : start + ROWS] for start in range(0, len(x_NF), ROWS)]
    count_F = np.maximum(1, sum((~np.isnan(block)).sum(0) for block in blocks))
    mean_F = sum(np.nansum(block, 0, dtype=np.float64) for block in blocks) / count_F
    square_F = sum(np.nansum((block - mean_F) ** 2, 0) for block in blocks) / count_F
    std_F = np.sqrt(square_F)
    # what rounding leaves of a constant is no deviation
    return mean_F, np.where(std_F > 1e-9 * np.abs(mean_F), std_F, 1.0)


def encode_vectors(table: Table, spec: InputSpec, *, words: Mapping[str, Sequence[str]] | None = None) -> Table:
    """Return the table with ``x`` list<float32> (1, value, 2, value, ...) in place of ``values``, standardized.

    words: the list of words of every text column that places are those of; None: the model's own.
    """
    features = spec.shape[0]
    if spec.columns is not None and spec.columns.categories:
        table = _one_hot(table, spec.columns, spec.columns.categories if words is None else words)
    x_NF = _standardize(table, spec)
    x_NF2 = np.empty((len(x_NF), features, 2), dtype=np.float32)
    x_NF2[:, :, 0] = np.arange(1, features + 1)
    x_NF2[:, :, 1] = x_NF
    return table.drop_columns(["values"]).append_column("x", _lists(x_NF2.reshape(-1, 2 * features)))


def _one_hot(table: Table, columns: Columns, words: Mapping[str, Sequence[str]]) -> Table:
    """Return the table with a value for every feature in ``values``: 0 or 1 in place of the places of words."""
    values, length_N = list_parts(table["values"])
    wrong_N = length_N != len(columns.inputs)
    if wrong_N.any():
        raise InputError(f"a sample has {length_N[wrong_N][0]} values; this task takes {len(columns.inputs)}")
    x_ND = values.astype(np.float64).reshape(-1, len(columns.inputs))
    parts = list[Floats]()
    for column, name in enumerate(columns.inputs):
        x_N1 = x_ND[:, column : column + 1]
        if name in columns.categories:
            place = {composed(word): i for i, word in enumerate(words[name])}
            features = [place.get(composed(word), -1) for word in columns.categories[name]]  # -1: in no row here
            x_N1 = (x_N1 == np.array(features)).astype(np.float64)
        parts.append(x_N1)
    at = table.column_names.index("values")
    return table.set_column(at, "values", _lists(np.concatenate(parts, axis=1)))


def encode_series(table: Table, spec: InputSpec) -> Table:
    """Return the table with ``x`` list<float32>, flattened, in place of ``values``, standardized.

    No step is all zeros: those are padding.
    """
    steps, features = spec.shape
    x_SF = _standardize(table, spec).astype(np.float32)
    x_SF[~x_SF.any(1), 0] = REAL
    x = x_SF.reshape(-1, steps * features)
    return table.drop_columns(["values"]).append_column("x", _lists(x))


def _standardize(table: Table, spec: InputSpec) -> Floats:
    """Return float64 [N or N x S, F] of the column ``values``."""
    values, length_N = list_parts(table["values"])
    wrong_N = length_N != np.prod(spec.shape)
    if wrong_N.any():
        raise InputError(f"a sample has {length_N[wrong_N][0]} values; this task takes {np.prod(spec.shape)}")
    x_NF = values.astype(np.float64).reshape(-1, spec.shape[-1])
    x_NF = np.where(np.isnan(x_NF), spec.mean, x_NF)
    scaled: Floats = (x_NF - np.array(spec.mean)) / np.array(spec.std)
    too_far = np.abs(scaled) > MAX_VALUE
    if too_far.any():
        row = table["row"][int(np.flatnonzero(too_far.reshape(table.num_rows, -1).any(1))[0])].as_py()
        raise InputError(
            f"row {row + 1}: {x_NF[too_far][0]:g} is too far from the training rows' mean to be stored; correct it"
        )
    return scaled


def _numbers(table: Table, schema: Schema, faults: Faults) -> Column:
    inputs = schema.inputs
    small = all(table[name].type in (pa.float32(), pa.int8(), pa.int16(), pa.bool_()) for name in inputs)
    x_NF = np.empty((table.num_rows, len(inputs)), dtype=np.float32 if small else np.float64)
    for feature, name in enumerate(inputs):
        if name in schema.categories:
            column = table[name]
            if pa.types.is_integer(column.type):  # of this file alone, all words look like numbers
                column = column.cast(pa.string())
            elif not pa.types.is_string(column.type):
                given_N = pc.is_null(column, nan_is_null=True).to_numpy() == 0
                what = f"column {name!r} holds {column.type}, and is one of texts; write texts, in a Parquet file"
                faults.add(given_N, partial(_same, what))
            x_NF[:, feature] = places(column, schema.categories[name])
            continue
        x_NF[:, feature] = _numeric(table[name]).to_numpy()
        what = f"column {name!r} is not finite, or beyond {MAX_VALUE:.1e}; leave the cell empty or correct it"
        faults.add(np.abs(x_NF[:, feature]) > MAX_VALUE, partial(_same, what))
    return _lists(x_NF)


def _vectors(column: Column, name: str, features: int, faults: Faults) -> Column:
    """Return lists of one length, that of most; features: 0, or the number of values in each of their own lists
    (series).
    """
    column = column.combine_chunks()
    length_N = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    rows_L = np.bincount(length_N[length_N > 0], minlength=1)
    steps, most = int(rows_L.argmax()), int(length_N.max(initial=0))
    if 2 * rows_L[steps] < rows_L.sum():
        raise InputError(
            f"{faults.path}: column {name!r} holds lists of {int(length_N[length_N > 0].min())} to {most} entries, no"
            " length in half of the rows; give each row as many, or name another input"
        )
    faults.add(
        length_N != max(1, steps),
        lambda i: f"column {name!r} holds {length_N[i]} entries, most rows {steps}; give each row as many",
    )
    good_N, width, flat = length_N == steps, steps, pc.list_flatten(column)
    if features:
        length_S = pc.fill_null(pc.list_value_length(flat), 0).to_numpy().astype(np.int64)
        row_S = np.repeat(np.arange(len(length_N)), length_N)
        ragged_N = np.isin(np.arange(len(length_N)), row_S[length_S != features])
        faults.add(ragged_N, lambda i: f"column {name!r} has a step that does not hold {features} values; give as many")
        good_N, width, flat = good_N & ~ragged_N, steps * features, pc.list_flatten(flat)
        length_N = np.bincount(row_S, length_S, minlength=len(length_N)).astype(np.int64)
    if not width:
        raise InputError(f"{faults.path}: column {name!r} holds only empty lists; name another input")
    x_NV = np.full((len(length_N), width), np.nan, dtype=np.float32 if flat.type == pa.float32() else np.float64)
    value_V = _numeric(flat).to_numpy(zero_copy_only=False)
    x_NV[good_N] = value_V[np.repeat(good_N, length_N)].reshape(-1, width)
    too_large_N = (np.abs(x_NV) > MAX_VALUE).any(1)
    what = f"column {name!r} holds a value that is not finite, or beyond {MAX_VALUE:.1e}; correct it"
    faults.add(too_large_N, partial(_same, what))
    return _lists(x_NV)


def _same(message: str, row: int) -> str:
    """Return a message that does not depend on the row."""
    return message


def _numeric(column: Column) -> Column:
    """Return truth values as 0 and 1, other numbers as they are."""
    return column.cast(pa.int8()) if column.type == pa.bool_() else column


def _paths(column: Column, name: str, empty_N: Bools, faults: Faults) -> Column:
    if is_in_memory(faults.path):
        raise InputError(
            f"data: column {name!r} holds paths of images, and a table in memory lies beside none: write it to a file"
            " beside them, and give its path"
        )
    folder = faults.path if faults.path.is_dir() else faults.path.parent
    paths = [folder / text for text in pc.utf8_trim_whitespace(column).to_pylist()]
    away_N = np.array([leaves(path, folder) for path in paths], dtype=np.bool_)
    data = "images" if folder == faults.path else "table"
    where = f"lies outside of {folder.absolute()}, the folder of the {data}; put it there, or leave the row out"
    faults.add(away_N, lambda i: f"column {name!r}: {paths[i]} {where}")
    looked_N = ~empty_N & ~away_N  # no other file is opened
    file_faults = iter(image_faults([paths[i] for i in np.flatnonzero(looked_N).tolist()], faults.whole))
    fault = [next(file_faults) if looked else "" for looked in looked_N.tolist()]
    faults.add(np.array([bool(f) for f in fault], dtype=np.bool_), lambda i: f"image {paths[i]}: {fault[i]}")
    return path_column(paths)


def _lists(x_ND: Floats) -> Column:
    return chunked_lists(x_ND, CHUNK_VALUES)
