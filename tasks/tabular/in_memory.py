"""A table in memory, such as a pandas DataFrame, as the file that a run reads: named after its content."""

from __future__ import annotations

import hashlib
import io
import os
import re
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
    content = _packed(_plain(_as_arrow(data)))
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


def is_in_memory(path: Path) -> bool:
    """Return whether a table's file is one that ``table_file`` wrote, beside which nothing else of its user lies."""
    return path.parent.name == TABLES and re.fullmatch(r"table-[0-9a-f]{16}\.parquet", path.name) is not None


def _packed(table: pa.Table) -> bytes:
    """Return the bytes of the Parquet file. Raises InputError with the first column that it cannot hold."""

    def written(table: pa.Table) -> bytes:
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        return buffer.getvalue()

    try:
        return written(table)
    except (pa.ArrowException, UnicodeError) as error:
        for name in table.column_names:
            try:
                written(table.select([name]))
            except (pa.ArrowException, UnicodeError):
                raise _unfit(name, table.schema.field(name).type) from error
        raise


def _unfit(name: str, kind: Any) -> InputError:
    return InputError(
        f"data: column {name!r} holds {kind}, which no Parquet file can hold: make it numbers or texts"
        " (df[name].astype(str)), or leave it out"
    )


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
    names = list(data.columns)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise InputError(f"data: the name of column {wrong[0]!r} is no text; rename with df.rename(columns=str)")
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise InputError(f"data: two columns are called {twice!r}; rename one")
    for name in names:
        try:
            pa.array(data[name], from_pandas=True)
        except (OverflowError, UnicodeError) as error:
            raise _unfit(name, data[name].dtype) from error
        except (pa.ArrowException, TypeError, ValueError):
            break  # which is said below, in Arrow's words
    try:
        return pa.Table.from_pandas(data, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        what = error.args[-1] if error.args else type(error).__name__  # of pandas; what is before quotes a value
        raise InputError(f"data: Arrow cannot hold it ({what}); give every column one type") from error


def _plain(table: pa.Table) -> pa.Table:
    """Return the table without categories, which are their words, and without what pandas notes of itself."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            try:
                column = table[number].cast(field.type.value_type)
            except pa.ArrowException as error:
                raise _unfit(field.name, field.type.value_type) from error
            table = table.set_column(number, field.name, column)
    return table.replace_schema_metadata(None)
