"""Stored tables as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from anchorfl.tasks.arrays.arrow import Column, Ints, Table, list_parts, padded
from anchorfl.tasks.arrays.disclosure import known_matrix
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import ClientData, InputSpec, Objective

Order = Ints | slice
"""Positions of rows."""
ALL = slice(None)


def client_data(
    table: Table, spec: InputSpec, classes: int, objective: Objective, default: Sequence[int], order_N: Order = ALL
) -> ClientData:
    """Return the tensors of a stored table, zero padded where rows have a length.

    default: the classes that are known where ``known`` is null. order_N: the rows to take, in this order.
    """
    x_N, length_N = inputs(table["x"], spec, order_N)
    y_NC = torch.from_numpy(Labels.of_lists(table["labels"], classes).matrix()[order_N].astype(np.float32))
    known_NC = torch.from_numpy(known_matrix(table["known"], default, classes)[order_N].astype(np.float32))
    return ClientData(x_N, y_NC, known_NC, objective.weights(y_NC, known_NC), length_N, spec.scaling())


def inputs(column: Column, spec: InputSpec, order_N: Order = ALL) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the inputs as a tensor, as stored (``ClientData.x``), and their lengths (None: they have none)."""
    if spec.kind == "tokens":
        x_NL, length_N = padded(column, np.int32)
        return torch.from_numpy(x_NL[order_N]), torch.from_numpy(length_N[order_N])
    if spec.kind == "sparse":
        x_NL, length_N = padded(column, np.float32)
        if x_NL.shape[1] % 2:  # a table without a feature is padded to one value
            x_NL = np.zeros((len(x_NL), 2), dtype=np.float32)
        # not -1, which a split without rows leaves open
        x_NF2 = x_NL.reshape(len(x_NL), x_NL.shape[1] // 2, 2)
        return torch.from_numpy(x_NF2[order_N]), torch.from_numpy(length_N[order_N] // 2)
    values, _ = list_parts(column)
    stored = np.uint8 if spec.levels else np.float32
    x_N = values.reshape(len(column), *spec.shape)[order_N].astype(stored, copy=order_N is ALL)
    return torch.from_numpy(x_N), None
