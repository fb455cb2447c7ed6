"""From raw rows to the files of their owners: plain values and pure functions, which go to workers as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.contract import InputSpec, Task
from tasks.disclose import disclosed_table, stored_type
from tasks.store import client_file, table_bytes


@dataclass(frozen=True, slots=True)
class Encoding:
    """All that a worker needs to encode."""

    task: Task
    spec: InputSpec
    classes: tuple[tuple[int, ...], ...]
    """Identified classes of every owner: the clients, then the server's test and validation rows (all classes)."""

    def name(self, owner: int) -> str:
        """File of an owner."""
        clients = len(self.classes) - 2
        return client_file(owner) if owner < clients else ("test.parquet", "validation.parquet")[owner - clients]

    def encode(self, table: Any) -> Any:
        """Columns row, labels, known and x, with x as a list of variable size, which all of Ray Data keeps as it is."""
        encoded = self.task.encode(table, self.spec)
        x = encoded["x"].cast(pa.list_(stored_type(encoded["x"].type.value_type)))
        return pa.table({n: x if n == "x" else encoded[n] for n in (*kept_columns(encoded), "x")})

    def file(self, table: Any, owner: int) -> tuple[bytes, str]:
        """The rows of one owner, with the labels that it may see, as a file, and the digest of its content."""
        return table_bytes(disclosed_table(table, self.classes[owner], len(self.task.class_names), self.task.kind))


def kept_columns(table: Any) -> list[str]:
    """The columns that encoding leaves as they are."""
    return [name for name in ("row", "labels", "known") if name in table.column_names]
