"""Disclosure: which labels of its own data a client is given, and what it tells before training.

Shape suffixes: N rows of the client, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tasks.columns import Bools, lists_of, matrix_of
from tasks.contract import Card, Kind


def known_classes(y_NC: Bools, classes: Sequence[int], kind: Kind) -> Bools:
    """Bool [N, C]: where the label is given to a client that identifies ``classes`` (methods/fedalign.md, Setting).

    Single-label: a row whose true class is identified is known in every class, any other row in none. Multi-label: the
    identified classes are known in every row.
    """
    aware_C = np.zeros(y_NC.shape[1], dtype=np.bool_)
    aware_C[list(classes)] = True
    if kind == "multi":
        return np.repeat(aware_C[None], len(y_NC), axis=0)
    return np.repeat((y_NC & aware_C).any(1, keepdims=True), y_NC.shape[1], axis=1)


def card(client: int, y_NC: Bools, known_NC: Bools, classes: Sequence[int]) -> Card:
    """What the client discloses: its number of rows, its known positives per class, its identified classes."""
    aware_C = torch.zeros(y_NC.shape[1], dtype=torch.bool)
    aware_C[list(classes)] = True
    return Card(client, len(y_NC), torch.from_numpy((y_NC & known_NC).sum(0).astype(np.int64)), aware_C)


def disclosed_table(table: Any, classes: Sequence[int], total: int, kind: Kind) -> Any:
    """Arrow table (row, x, labels, known) in row order that holds no label outside what the client may see.

    table: row, x and all positive ``labels``; total: C. Lists become list<int32>; x of other
    inputs than tokens becomes list<float32>.
    """
    table = table.take(np.argsort(table["row"].to_numpy(), kind="stable"))
    y_NC = matrix_of(table["labels"], total)
    known_NC = known_classes(y_NC, classes, kind)
    value = pa.int32() if pa.types.is_integer(table["x"].type.value_type) else pa.float32()
    columns = {
        "row": table["row"].cast(pa.int64()).combine_chunks(),
        "x": table["x"].cast(pa.list_(value)).combine_chunks(),
        "labels": lists_of(y_NC & known_NC),
        "known": lists_of(known_NC),
    }
    return pa.table(columns)
