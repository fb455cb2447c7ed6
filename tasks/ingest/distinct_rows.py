"""All rows of a federation at once, each once, with the clients that hold it: for rounds that are computed in one pass
(pipeline/execution/batched_executor.py). A simulation's view; no server has it.

Shape suffixes: N distinct rows, P pairs of a row and a client that holds it, B rows of a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from anchorfl.tasks.arrays.arrow import Column, Ints, Table
from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.ragged import offsets
from anchorfl.tasks.arrays.tensors import inputs
from anchorfl.tasks.contract import InputSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.prepared import Prepared


@dataclass(frozen=True)
class DistinctRows:
    """The distinct rows of all clients, shortest first."""

    x: Chunks
    """Stored inputs, in one column."""
    spec: InputSpec
    holders: Labels
    """The clients of every row, as ``Labels`` whose classes are holders."""
    row_N: Ints
    """Ids of the rows."""

    def __len__(self) -> int:
        return len(self.row_N)

    def inputs(self, index_B: Ints, device: torch.device) -> torch.Tensor:
        """Return inputs of some rows as in ``Batch.x``, padded to their longest. They are scaled on the device."""
        x, _ = inputs(self.x.take(index_B)["x"], self.spec)
        return self.spec.scaling().to(device)(x.to(device))


def collect_distinct_rows(prepared: Prepared, owner_I: Sequence[int], owners: int) -> DistinctRows:
    """Return the rows of all clients; client i is holder ``owner_I[i]`` of 0..owners-1.

    Raises InputError where a file is damaged, or a client holds a row without its label.
    """
    tables, row_of, holder_of = list[Any](), list[Ints](), list[Ints]()
    seen = set[int]()  # ids may be any numbers, such as those of photographs: no table has their size
    for client in range(len(prepared.manifest.examples)):
        table = _read(prepared, client)
        row_B = table["row"].to_numpy()
        ids = row_B.tolist()
        new_B = [row not in seen for row in ids]
        seen.update(ids)
        tables.append(table.select(["row", "x"]).filter(pa.array(new_B, pa.bool_())))
        row_of.append(row_B)
        holder_of.append(np.full(len(row_B), owner_I[client]))
    rows = pa.concat_tables(tables)
    row_N = rows["row"].to_numpy()
    order_N = np.lexsort((row_N, _lengths(rows["x"], prepared.manifest.spec)))
    row_N, x = row_N[order_N], Chunks.of(Chunks.of(rows.select(["x"])).take(order_N))
    return DistinctRows(x, prepared.manifest.spec, _holders(row_N, row_of, holder_of, owners), row_N)


def _read(prepared: Prepared, client: int) -> Table:
    table = prepared.client_columns(client, ["row", "x", "labels"])
    unlabeled = pc.sum(pc.equal(pc.list_value_length(table["labels"]), 0)).as_py()
    if unlabeled:
        raise InputError(
            f"client {client}: {unlabeled} rows have no label, which a batched round has no place for: set"
            " federation.batched_clients False, or task.partition = 'one_class'"
        )
    return table


def _lengths(column: Column, spec: InputSpec) -> Ints:
    """Return the number of values of every row; 0 where all are of one size."""
    if spec.kind not in ("tokens", "sparse"):
        return np.zeros(len(column), dtype=np.int64)
    return np.asarray(pc.list_value_length(column).to_numpy(), dtype=np.int64)


def _holders(row_N: Ints, row_of: list[Ints], holder_of: list[Ints], owners: int) -> Labels:
    """Return the clients that hold each of the rows ``row_N``."""
    order_N = np.argsort(row_N)
    row_P, client_P = np.concatenate(row_of), np.concatenate(holder_of)
    index_P = order_N[np.searchsorted(row_N, row_P, sorter=order_N)]
    by_row_P = np.lexsort((client_P, index_P))
    offset_N1 = offsets(np.bincount(index_P, minlength=len(row_N)))
    return Labels(client_P[by_row_P].astype(np.int32), offset_N1, owners)
