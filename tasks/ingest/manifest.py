"""The manifest of prepared data: the account of a folder, readable without opening a file of rows.

What there is one of stands in ``manifest.json``, what every client has in ``clients.parquet``, where rows lie in
``extents.parquet`` (tasks/ingest/rows_files.py). Columns of ``clients.parquet``, a row per client: ``rows`` int64,
``classes`` list<int32> (identified), ``known_class`` list<int32> and ``known_rows`` list<int32> (known positives of the
classes that occur); ``test_rows`` int64 and ``name`` string, where clients have them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa

from anchorfl.tasks.arrays.arrow import Bools, Table
from anchorfl.tasks.arrays.ragged import IntLists
from anchorfl.tasks.contract import InputSpec, LabelKind
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.tasks.files.json_schema import converted, parsed
from anchorfl.tasks.files.regular_files import read_text_bytes
from anchorfl.tasks.ingest.rows_files import EXTENTS
from anchorfl.tasks.options import TaskOptions

FORMAT = 11
"""Version of the layout and of the code that all tasks share (ingest, partition, arrays, files); part of the name of
every cache folder. Raise it where that code would prepare other data.
"""
MANIFEST, CLIENTS, EXTENTS_FILE = "manifest.json", "clients.parquet", "extents.parquet"
HINT = "delete the folder and prepare the data again"
"""End of errors about a prepared folder."""
_DIGEST, _END = b',\n "digest": "', b'"\n}'
"""What stands before and after the manifest's own digest, its last field: the sha256 over all bytes before it."""

ClassCounts = tuple[tuple[int, int], ...]
"""(class, rows) of the classes that occur, ascending."""


@dataclass(frozen=True)
class ClientCounts(Sequence[ClassCounts]):
    """The ``ClassCounts`` of every client, each made when it is asked for."""

    classes: IntLists
    rows: IntLists

    def __len__(self) -> int:
        return len(self.classes)

    @overload
    def __getitem__(self, index: int) -> ClassCounts: ...
    @overload
    def __getitem__(self, index: slice) -> list[ClassCounts]: ...
    def __getitem__(self, index: int | slice) -> ClassCounts | list[ClassCounts]:
        """Return those of a client, or of some."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return tuple(zip(self.classes[index], self.rows[index], strict=True))

    def __iter__(self) -> Iterator[ClassCounts]:
        for classes, rows in zip(self.classes, self.rows, strict=True):
            yield tuple(zip(classes, rows, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What ``manifest.json`` holds."""

    task: str
    class_names: tuple[str, ...]
    kind: LabelKind
    spec: InputSpec
    options: TaskOptions
    """Options as prepared, without ``root`` and ``cache``, which are matters of the machine."""
    seed: int
    raw_digest: str
    """sha256 over the raw files."""
    reader_digest: str
    """sha256 over the code that reads them (tasks/ingest/reader_digest.py)."""
    inputs_digest: str
    """sha256 over ids and paths of the rows where the inputs are files, else empty (tasks/ingest/encoded_before.py)."""
    raw_rows: int
    """Rows of the raw data, N; they are stored under numbers below it (tasks/ingest/row_numbers.py)."""
    partition_digest: str
    """sha256 over the partition as it is stored (``plan_digest``)."""
    data_digest: str
    """sha256 over the rows of every owner, however they are stored."""
    test: int
    """Rows of the test split."""
    validation: int
    """Rows of the validation split."""
    files: Mapping[str, str] = field(default_factory=dict)
    """sha256 of every other file by its name: of a file of rows over its footer, else over its bytes."""

    @property
    def digests(self) -> dict[str, str]:
        """Digests of what clients and server get, by their names in the tags of a run."""
        return {"data_digest": self.data_digest, "partition_digest": self.partition_digest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Summary):
    """The account of a prepared folder."""

    examples: tuple[int, ...]
    """Rows of every client."""
    counts: ClientCounts
    """Known positives per client; its card discloses them."""
    classes: IntLists
    """Identified classes of every client."""
    client_test: tuple[int, ...] = ()
    """Own test rows of every client; empty: clients have none."""
    client_names: tuple[str, ...] = ()
    """Values of the table's column of clients, for pictures; empty where clients have numbers only."""
    extents: Table
    """Where every owner's rows lie (tasks/ingest/rows_files.py)."""

    @classmethod
    def of(cls, summary: Summary, clients: Table, extents: Table) -> Manifest:
        """Return the manifest of the three files. Raises ValueError or LookupError where they do not fit each other."""
        names = clients.column_names
        client_test = tuple(clients["test_rows"].to_pylist()) if "test_rows" in names else ()
        manifest = cls(
            **{f.name: getattr(summary, f.name) for f in fields(Summary)},
            examples=tuple(clients["rows"].to_pylist()),
            counts=ClientCounts(*(IntLists.of_column(clients[name]) for name in ("known_class", "known_rows"))),
            classes=IntLists.of_column(clients["classes"]),
            client_test=client_test,
            client_names=tuple(clients["name"].to_pylist()) if "name" in names else (),
            extents=extents.combine_chunks(),
        )
        if extents.schema != EXTENTS:
            raise ValueError(f"the extents have the columns {extents.column_names}")
        if len(extents) != len(clients) + 2 + len(client_test):
            raise ValueError(f"{len(extents)} extents do not fit {len(clients)} clients")
        return manifest

    def clients_table(self) -> Table:
        """Return ``clients.parquet``."""
        columns = {
            "rows": pa.array(self.examples, pa.int64()),
            "classes": self.classes.column(),
            "known_class": self.counts.classes.column(),
            "known_rows": self.counts.rows.column(),
        }
        if self.client_test:
            columns["test_rows"] = pa.array(self.client_test, pa.int64())
        if self.client_names:
            columns["name"] = pa.array(self.client_names, pa.string())
        return pa.table(columns)

    def uncovered_C(self) -> Bools:
        """Return which classes no client identifies, bool [C]."""
        out_C = np.ones(len(self.class_names), dtype=np.bool_)
        out_C[self.classes.value_P] = False
        return out_C


def manifest_bytes(manifest: Summary) -> bytes:
    """Return the bytes that are stored; their last field is a digest of the others."""
    summary = {f.name: getattr(manifest, f.name) for f in fields(Summary)}
    content = json.dumps({"format": FORMAT, **asdict(Summary(**summary))}, indent=1).encode().removesuffix(b"\n}")
    return content + _DIGEST + hashlib.sha256(content).hexdigest().encode() + _END


def read_summary(folder: str) -> Summary:
    """Return what the manifest of a prepared folder holds.

    Raises PreparedDataError where it is missing, damaged or of another format.
    """
    path = f"{folder}/{MANIFEST}"
    try:
        data = read_text_bytes(Path(path))
        content: dict[str, Any] = parsed(data, dict[str, Any], path, "")
        version = content.pop("format", None)
        summary = _summary_of(content, data) if version == FORMAT else None
    except FileNotFoundError as error:
        if not Path(folder).exists():
            raise PreparedDataError(
                f"{folder} is not on this machine: nodes that share no disk need --task.cache s3://BUCKET/cache; on one"
                " machine, start the run again, which prepares the data"
            ) from error
        raise PreparedDataError(f"{path} is missing, so this is no complete prepared data; {HINT}") from error
    except OSError as error:
        raise PreparedDataError(f"{path} cannot be read ({error.strerror}); {HINT}") from error
    except InputError as error:
        raise PreparedDataError(f"{error}; {HINT}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PreparedDataError(f"{path} is damaged ({error!r}); {HINT}") from error
    if summary is None:
        raise PreparedDataError(f"{path} has format {version}, this version reads {FORMAT}; {HINT}")
    return summary


def _summary_of(content: dict[str, Any], data: bytes) -> Summary:
    """Return the summary of a JSON object. Raises ValueError where it is none, or ``data`` do not fit their digest."""
    digest = hashlib.sha256(data.rpartition(_DIGEST)[0]).hexdigest()
    if content.pop("digest", None) != digest:
        raise ValueError("its content does not have the digest that it states")
    summary: Summary = converted(content, Summary)
    return summary
