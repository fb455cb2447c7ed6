"""The manifest of prepared data: the account of a folder, readable without opening a Parquet file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anchorfl.tasks.arrays.arrow import Bools, Ints
from anchorfl.tasks.contract import InputSpec, LabelKind
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.tasks.files.json_schema import converted, parsed
from anchorfl.tasks.files.regular_files import read_text_bytes
from anchorfl.tasks.options import TaskOptions

FORMAT = 8
"""Version of the layout and of the code that all tasks share (ingest, partition, arrays, files); part of the name of
every cache folder. Raise it where that code would prepare other data.
"""
MANIFEST = "manifest.json"
HINT = "delete the folder and prepare the data again"
"""End of errors about a prepared folder."""
_DIGEST, _END = b',\n "digest": "', b'"\n}'
"""What stands before and after the manifest's own digest, its last field: the sha256 over all bytes before it."""

ClassCounts = tuple[tuple[int, int], ...]
"""(class, rows) of the classes that occur, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The account of a prepared folder, readable without opening a Parquet file."""

    task: str
    class_names: tuple[str, ...]
    kind: LabelKind
    spec: InputSpec
    options: TaskOptions
    """Options as prepared, without ``root`` and ``cache``, which are matters of the machine."""
    seed: int
    raw_digest: str
    """sha256 over the raw files."""
    raw_rows: int
    """Rows of the raw data, N; they are stored under numbers below it (tasks/ingest/row_numbers.py)."""
    partition_digest: str
    """sha256 over the partition as it is stored (``plan_digest``)."""
    data_digest: str
    """sha256 over the content of every Parquet file."""
    examples: tuple[int, ...]
    """Rows of every client."""
    counts: tuple[ClassCounts, ...]
    """Known positives per client; its card discloses them."""
    classes: tuple[tuple[int, ...], ...]
    """Identified classes of every client."""
    test: int
    """Rows of the test split."""
    validation: int
    """Rows of the validation split."""
    client_test: tuple[int, ...] = ()
    """Own test rows of every client; empty: clients have none."""
    client_names: tuple[str, ...] = ()
    """Values of the table's column of clients, for pictures; empty where clients have numbers only."""
    files: Mapping[str, str] = field(default_factory=dict)
    """sha256 over the bytes of every other file, by its name."""

    def uncovered_C(self) -> Bools:
        """Return which classes no client identifies, bool [C]."""
        out_C = np.ones(len(self.class_names), dtype=np.bool_)
        out_C[sorted(set().union(*self.classes))] = False
        return out_C


def nonzero_counts(count_C: Ints, among: AbstractSet[int]) -> ClassCounts:
    """Return the (class, rows) of the classes that occur among these."""
    return tuple((c, int(count_C[c])) for c in np.flatnonzero(count_C).tolist() if c in among)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the bytes that are stored; their last field is a digest of the others."""
    content = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode().removesuffix(b"\n}")
    return content + _DIGEST + hashlib.sha256(content).hexdigest().encode() + _END


def read_manifest(folder: str) -> Manifest:
    """Return the manifest of a prepared folder.

    Raises PreparedDataError where it is missing, damaged or of another format.
    """
    path = f"{folder}/{MANIFEST}"
    try:
        data = read_text_bytes(Path(path))
        content: dict[str, Any] = parsed(data, dict[str, Any], path, "")
        version = content.pop("format", None)
        manifest = _manifest_of(content, data) if version == FORMAT else None
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
    if manifest is None:
        raise PreparedDataError(f"{path} has format {version}, this version reads {FORMAT}; {HINT}")
    return manifest


def _manifest_of(content: dict[str, Any], data: bytes) -> Manifest:
    """Return the manifest of a JSON object. Raises ValueError where it is none, or ``data`` do not fit their digest."""
    digest = hashlib.sha256(data.rpartition(_DIGEST)[0]).hexdigest()
    if content.pop("digest", None) != digest:
        raise ValueError("its content does not have the digest that it states")
    manifest: Manifest = converted(content, Manifest)
    if len({len(manifest.examples), len(manifest.counts), len(manifest.classes)}) > 1:
        raise ValueError("examples, counts and classes must have as many clients")
    if len(manifest.client_test) not in (0, len(manifest.examples)):
        raise ValueError("client_test must have as many clients as examples, or none")
    return manifest
