"""A user's table at an address: ``hf://datasets/owner/set/train.parquet``, ``az://...``, ``abfs://...``.

It is fetched through fsspec, once, into the cache folder, and is a table on this machine from then on. A Parquet file
in the form of Hugging Face's ``datasets`` becomes one that names things: a ``ClassLabel`` its class names (-1, which
stands for no label, becomes missing), an ``Image`` the path of a file beside the table.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from anchorfl.tasks.errors import InputError, first_line
from anchorfl.tasks.files.decompression import check_growth
from anchorfl.tasks.files.folders import cache_root
from anchorfl.tasks.files.remote_root import root_of
from anchorfl.tasks.options import TaskOptions

if TYPE_CHECKING:
    from anchorfl.tasks.arrays.arrow import Column

EXTRAS = {"hf": "hf", "az": "azure", "abfs": "azure"}
"""Known schemes -> the extra of this package that brings their library."""
TABLES = "fetched-tables"
"""Folder in the cache folder, with one folder per address."""
IMAGES = "images"
"""Folder of the images beside a table."""
BATCH_ROWS, GROUP_ROWS, GROUP_BYTES = 16, 1 << 10, 32 << 20
"""Rows of a table that are unpacked at a time, and that are written at a time: fewer where they have so many bytes."""
KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif", b"BM": "bmp", b"RIFF": "webp", b"II*\0": "tif"}
"""First bytes of an image -> the end of its file's name."""


def table_path(options: TaskOptions) -> Path:
    """Return the path of the user's table, below ``root`` where that is given; from an address it is fetched first.

    Raises InputError where it cannot be fetched.
    """
    if "://" not in options.file:
        return root_of(options) / Path(options.file).expanduser()
    scheme, _, rest = options.file.partition("://")
    name = rest.rpartition("/")[2]
    if scheme not in EXTRAS:
        raise InputError(
            f"[task] file = {options.file!r}: no scheme {scheme!r}; known: {', '.join(EXTRAS)}; or give a path"
        )
    if not name.strip(".") or set(options.file) & set("*?"):
        raise InputError(f"[task] file = {options.file!r}: give the address of one file, without a key or a pattern")
    folder = cache_root(options.cache) / TABLES / hashlib.sha256(options.file.encode()).hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock"), fallback_to_soft=False):
            if not folder.exists():
                _fetch(options.file, EXTRAS[scheme], folder, name)
    return folder / name


def _fetch(address: str, extra: str, folder: Path, name: str) -> None:
    """Make the folder of a table: whole, or not at all."""
    draft = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)  # it holds rows
    try:
        _download(address, extra, draft / name)
        if name.lower().endswith((".parquet", ".pq")):
            _name_things(draft / name)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _download(address: str, extra: str, path: Path) -> None:
    import fsspec

    try:
        system, place = fsspec.core.url_to_fs(address)
        system.get_file(place, str(path))
    except ImportError as error:
        raise InputError(f"{address}: its library is not installed: pip install 'anchorfl[{extra}]'") from error
    except FileNotFoundError as error:
        raise InputError(f"{address}: no such file there, or none that this machine may read") from error
    except Exception as error:  # every store has errors of its own
        raise InputError(f"{address}: cannot be read ({first_line(error)}); look at network and access") from error


def _name_things(path: Path) -> None:
    """Rewrite a Parquet file whose columns are in the form of ``datasets``; leave another one as it is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            change = _changes(path, file.schema_arrow)
            if not change:
                return
            draft, size, writer, waiting = path.with_name(f".{path.name}"), 0, None, list[Any]()
            for batch in file.iter_batches(BATCH_ROWS):
                size += batch.nbytes
                check_growth(path, size)
                waiting.append(pa.table({n: change.get(n, _same)(batch[n]) for n in batch.schema.names}))
                writer = writer or pq.ParquetWriter(draft, waiting[0].schema)
                if len(waiting) * BATCH_ROWS >= GROUP_ROWS or sum(t.nbytes for t in waiting) >= GROUP_BYTES:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting.clear()
            if writer is not None:
                if waiting:
                    writer.write_table(pa.concat_tables(waiting))
                writer.close()
                draft.replace(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path.name} is no Parquet file, or a damaged one: {first_line(error)}") from error


def _same(column: Column) -> Column:
    return column


def _changes(path: Path, schema: Any) -> Mapping[str, Callable[[Column], Column]]:
    """Return the columns that become something else, each with the function that makes it."""
    import pyarrow as pa

    features = _features(schema.metadata or {})
    changes: dict[str, Callable[[Column], Column]] = {}
    stems = set[str]()
    for field in schema:
        feature = features.get(field.name, {})
        inner = feature.get("feature", feature) if feature.get("_type") in ("Sequence", "List") else feature
        names = inner.get("names") if isinstance(inner, dict) else None
        if isinstance(names, list) and inner.get("_type") == "ClassLabel":
            number = field.type.value_type if pa.types.is_nested(field.type) else field.type
            if not pa.types.is_integer(number):
                raise InputError(f"{path}: column {field.name!r} is of classes, by its notes, and holds {field.type}")
            changes[field.name] = _to_names(field.name, [str(name) for name in names])
        elif (
            pa.types.is_struct(field.type)
            and {child.name for child in field.type} == {"bytes", "path"}
            and feature.get("_type", "Image") == "Image"  # a sound has the same fields
        ):
            changes[field.name] = _to_files(path, field.name, stems)
    return changes


def _features(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return what ``datasets`` notes about columns; nothing where it noted nothing that can be read."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    pairs = features.items() if isinstance(features, dict) else ()
    return {name: feature for name, feature in pairs if isinstance(feature, dict)}


def _to_names(name: str, names: list[str]) -> Callable[[Column], Column]:
    """Return the function that turns numbers of classes, or lists of them, into names."""
    import pyarrow as pa

    def word(number: int | None) -> str | None:
        if number is None or number == -1:
            return None
        if not 0 <= number < len(names):
            raise InputError(f"column {name!r} holds class {number}, and names {len(names)}; the file is damaged")
        return names[number]

    def change(column: Column) -> Column:
        values = column.to_pylist()
        if pa.types.is_integer(column.type):
            return pa.array([word(value) for value in values], pa.string())
        lists = [None if value is None else [word(number) for number in value] for value in values]
        return pa.array(lists, pa.list_(pa.string()))

    return change


def _to_files(path: Path, name: str, stems: set[str]) -> Callable[[Column], Column]:
    """Return the function that writes images beside the table and gives their paths. stems: names of files so far."""
    import pyarrow as pa

    column_name = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "image"
    while column_name in stems:
        column_name += "-"
    stems.add(column_name)
    folder, count = path.parent / IMAGES, 0

    def change(column: Column) -> Column:
        nonlocal count
        folder.mkdir(exist_ok=True)
        places = []
        for value in column.to_pylist():
            data = value and value["bytes"]
            place = None
            if data:
                kind = next((kind for start, kind in KINDS.items() if data.startswith(start)), "")
                if not kind:
                    raise InputError(f"row {count + 1}: column {name!r} holds bytes that are no image of a known kind")
                place = f"{IMAGES}/{column_name}-{count:07d}.{kind}"
                (path.parent / place).write_bytes(data)
            places.append(place)
            count += 1
        return pa.array(places, pa.string())

    return change
