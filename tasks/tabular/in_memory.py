"""A table in memory, such as a pandas DataFrame, as the file that a run reads: named after its content."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.folders import cache_root, sync_folder

TABLES = "tables"
"""Folder of such files in the cache."""


def table_file(data: Any, cache: str = "") -> Path:
    """Return the Parquet file of a table, below the cache folder; equal tables are one file, so a run can go on.

    data: a pandas DataFrame, an Arrow table, or what has ``to_arrow`` (polars). cache: as ``task.cache``. Errors:
    InputError where it is no table, or Arrow cannot hold a column.
    """
    table = _plain(_as_arrow(data))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    content = buffer.getvalue()
    folder = cache_root(cache) / TABLES
    path = folder / f"table-{hashlib.sha256(content).hexdigest()[:16]}.parquet"
    if path.is_file() and path.stat().st_size == len(content):
        return path
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)  # it holds rows
    scratch = folder / f".{path.name}.{os.getpid()}"
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_folder(folder)
    return path


def _as_arrow(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if hasattr(data, "to_arrow"):
        return data.to_arrow()
    if not hasattr(data, "columns") or not hasattr(data, "dtypes"):
        raise InputError(
            f"data: a {type(data).__name__}; give a pandas DataFrame, an Arrow table, or the path of a CSV or Parquet"
            " file"
        )
    wrong = [name for name in data.columns if not isinstance(name, str)]
    if wrong:
        raise InputError(f"data: the name of column {wrong[0]!r} is no text; rename with df.rename(columns=str)")
    try:
        return pa.Table.from_pandas(data, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        what = error.args[-1] if error.args else type(error).__name__  # of pandas; what is before quotes a value
        raise InputError(f"data: Arrow cannot hold it ({what}); give every column one type") from error


def _plain(table: pa.Table) -> pa.Table:
    """Return the table without categories, which are their words, and without what pandas notes of itself."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(number, field.name, table[number].cast(field.type.value_type))
    return table.replace_schema_metadata(None)
