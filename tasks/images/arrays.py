"""Images in .npz files."""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from anchorfl.tasks.errors import InputError, nearest
from anchorfl.tasks.files.decompression import check_growth
from anchorfl.tasks.files.raw_files import open_bytes

KINDS = {"images": ("uif", "numbers"), "labels": ("iu", "whole numbers")}
"""Types of the arrays that are no texts, by the end of their names."""
FAULTS = (
    OSError, EOFError, SyntaxError, ValueError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
    tokenize.TokenError, NotImplementedError, RuntimeError,
)  # fmt: skip
"""Errors of NumPy and zipfile on damaged files. The last two: a member that is packed in a way that zipfile does not
know; one with a password, and a header nested too deep (RecursionError).
"""


def load_arrays(path: Path, dimensions: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    """Return the named arrays of an .npz file (plain or .gz), each with so many dimensions and all but ``class_names``
    with as many rows. Never reads pickled objects. Raises InputError with the file.
    """
    try:
        with open_bytes(path) as stream:
            _check_claims(path, stream)
            content = np.load(stream, allow_pickle=False)
            names = getattr(content, "files", [])  # a plain .npy gives the one array, which has no name
            arrays = {name: content[name] for name in dimensions if name in names}
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(
            f"{path}: its arrays need more memory than there is ({error}); use a machine with more memory, or get the"
            " file again where it should not hold so much"
        ) from error
    except FAULTS as error:
        raise InputError(f"{path}: this .npz file cannot be read: {error}; get it again") from error
    for name, number in dimensions.items():
        if name not in arrays:
            raise InputError(f"{path}: no array {name!r}{nearest(name, names)}; it needs {', '.join(dimensions)}")
        if arrays[name].ndim != number:
            raise InputError(
                f"{path}: {name} has shape {arrays[name].shape}, but needs {number} dimensions; get the file again"
            )
    size = {name: len(array) for name, array in arrays.items() if name != "class_names"}
    if len(set(size.values())) > 1:
        raise InputError(f"{path}: the arrays have different numbers of rows {size}; get the file again")
    for name, array in arrays.items():
        kinds, what = KINDS.get(name.rpartition("_")[2], ("U", "texts"))
        if array.dtype.kind not in kinds:
            raise InputError(f"{path}: {name} holds {array.dtype}, but needs {what}; get the file again")
    return arrays


def _check_claims(path: Path, stream: IO[bytes]) -> None:
    """Raise InputError where an array's header claims more than its member of the .npz holds, or more than data can
    pack to.

    Both would take memory before anything is found wrong.
    """
    if not zipfile.is_zipfile(stream):
        stream.seek(0)
        return
    with zipfile.ZipFile(stream) as archive:
        check_growth(path, sum(info.file_size for info in archive.infolist()))
        for info in archive.infolist():
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, kind = header.get(version, header[1, 0])(member)
            if math.prod(shape) * kind.itemsize > info.file_size:
                msg = f"{path}: {info.filename} claims the shape {shape}, and has {info.file_size} bytes"
                raise InputError(f"{msg}; get the file again")
    stream.seek(0)
