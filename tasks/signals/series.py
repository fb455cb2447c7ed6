"""Series: rows of several steps with the same features, scaled by what was fitted on the training rows.

Shape suffixes: N rows, S steps of all rows one after the other, L steps of a padded row, F features.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.arrays.arrow import Ints, Table, fixed_lists, list_parts
from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.errors import InputError

PAYLOAD = "readings"
"""Payload column: list<float>, step after step, NaN or null where a reading is missing."""
BLOCK_ROWS = 2048
REAL = 1e-6
"""First feature of a real step whose features would all be 0, in standard deviations: all zero means padding."""

Floats = npt.NDArray[np.float32]


def fit_series(train: Table, steps: int, features: int) -> InputSpec:
    """Return the spec of series, with mean and deviation of every feature.

    The mean is that of the present readings, the deviation that after missing ones became the mean (so the order of the
    authors: impute, then standardize). A feature that is never there has mean 0, a constant one deviation 1.
    """
    total_F, count_F, square_F = (np.zeros(features) for _ in range(3))
    seen = 0
    for value_SF in _blocks(train, features):
        there_SF = ~np.isnan(value_SF)
        total_F += np.where(there_SF, value_SF, 0).sum(0, dtype=np.float64)
        count_F += there_SF.sum(0)
        seen += len(value_SF)
    mean_F = total_F / np.maximum(count_F, 1)
    for value_SF in _blocks(train, features):  # a second pass: sums of squares of large numbers would lose digits
        square_F += np.nansum((value_SF - mean_F) ** 2, axis=0)
    std_F = np.sqrt(square_F / max(seen, 1))
    # float32 readings that are all the same differ from their mean by rounding alone
    std_F[std_F <= 1e-6 * np.abs(mean_F)] = 1
    return InputSpec("series", (steps, features), mean=tuple(mean_F.tolist()), std=tuple(std_F.tolist()))


def encode_series(table: Table, spec: InputSpec) -> Table:
    """Return the table with ``x`` [L, F], flattened, in place of ``readings``: ``(reading - mean) / std``.

    It is 0 where a reading is missing; rows of zeros follow the last step. Steps at the end of a row whose readings are
    all exactly 0 are padding too (for files that need equally long rows). Raises InputError where a row has no step,
    too many, or half a step.
    """
    values, length_N = list_parts(table[PAYLOAD])
    steps, features = spec.shape
    wrong_N = (length_N < features) | (length_N > steps * features) | (length_N % features != 0)
    if wrong_N.any():
        row = int(wrong_N.argmax())
        raise InputError(
            f"row {table['row'][row].as_py()} has {length_N[row]} readings; give 1 to {steps} steps of {features} each"
        )
    raw_SF = values.astype(np.float32).reshape(-1, features)
    index_S, raw_SF = _unpadded(raw_SF, length_N // features, steps)
    raw_SF -= np.array(spec.mean, dtype=np.float32)
    raw_SF /= np.array(spec.std, dtype=np.float32)
    np.nan_to_num(raw_SF, copy=False, nan=0.0)
    raw_SF[~raw_SF.any(1), 0] = REAL
    if len(raw_SF) == table.num_rows * steps:
        x_LF = raw_SF
    else:
        x_LF = np.zeros((table.num_rows * steps, features), dtype=np.float32)
        x_LF[index_S] = raw_SF
    return table.drop_columns([PAYLOAD]).append_column("x", fixed_lists(x_LF.reshape(-1, steps * features)))


def _unpadded(raw_SF: Floats, length_N: Ints, steps: int) -> tuple[Ints, Floats]:
    """Return the index of every real step among N x L, and its readings."""
    end_N = np.cumsum(length_N)
    row_S = np.repeat(np.arange(len(length_N)), length_N)
    step_S = np.arange(len(raw_SF)) - np.repeat(end_N - length_N, length_N)
    last_N = np.zeros(len(length_N), dtype=np.int64)  # the first step is real in any case
    filled_S = raw_SF.any(1)  # NaN counts as filled
    np.maximum.at(last_N, row_S[filled_S], step_S[filled_S])
    real_S = step_S <= last_N[row_S]
    index_S: Ints = row_S * steps + step_S
    return (index_S, raw_SF) if real_S.all() else (index_S[real_S], raw_SF[real_S])


def _blocks(table: Table, features: int) -> Iterator[Floats]:
    """Yield the readings of some rows at a time, [S, F]."""
    for start in range(0, table.num_rows, BLOCK_ROWS):
        values, _ = list_parts(table[PAYLOAD].slice(start, BLOCK_ROWS))
        yield values.astype(np.float32).reshape(-1, features)
