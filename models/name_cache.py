"""Class-name vectors on disk, so that the next start need not make them again."""

from __future__ import annotations

import lzma
import math
import os
import struct
import tokenize
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt


def load_or_make(
    cache: Path | None, digest: str, make: Callable[[], npt.NDArray[np.float32]], log: Callable[[str], None]
) -> npt.NDArray[np.float32]:
    """Return the vectors of ``<cache>/names-<digest>.npz``, or make them and keep them there, if there is a cache."""
    if cache is None:
        return make()
    file = cache / f"names-{digest[:16]}.npz"
    vectors = load(file, digest, log)
    if vectors is None:
        vectors = make()
        save(file, digest, vectors, log)
    return vectors


class UnusableError(Exception):
    """A cached file that is damaged, or was made for other input; the text says which."""


def load(file: Path, digest: str, log: Callable[[str], None]) -> npt.NDArray[np.float32] | None:
    """Return the cached rows; None where there is no file or (``log`` says so) a damaged one or one for other input."""
    if not file.exists():
        return None
    try:
        return read(file, digest)[0]
    except UnusableError as error:
        log(f"{file}: unusable cache of class-name vectors ({error}); training again and overwriting it")
    return None


def read(file: Path, digest: str) -> tuple[npt.NDArray[np.float32], str]:
    """Return the vectors of a cached file, and the note that ``save`` was given with them. Raises UnusableError."""
    reason = "wrong checksum, or made for other input"
    try:
        with ZipFile(file) as archive:  # all checksums first: numpy parses a member before it has seen its end
            _check_claims(archive)
            intact = archive.testzip() is None
        with np.load(file, allow_pickle=False) as data:
            if intact and str(data["digest"]) == digest:
                metadata = str(data["about"]) if "about" in data else ""
                return np.asarray(data["vectors"], np.float32), metadata
    except (
        OSError, ValueError, KeyError, EOFError, RuntimeError, SyntaxError, tokenize.TokenError, BadZipFile, zlib.error,
        lzma.LZMAError, struct.error,
    ) as error:  # fmt: skip
        reason = str(error)
    raise UnusableError(reason)


def _check_claims(archive: ZipFile) -> None:
    """Raise ValueError where an array is not as ``save`` writes it, or its header claims more than there is: both would
    take memory before anything is found wrong.
    """
    for info in archive.infolist():
        with archive.open(info) as member:
            if np.lib.format.read_magic(member) != (1, 0) or info.compress_type != ZIP_STORED:
                raise ValueError(f"{info.filename} is packed, or of another version")
            shape, _, kind = np.lib.format.read_array_header_1_0(member)
        if math.prod(shape) * kind.itemsize > info.file_size:
            raise ValueError(f"{info.filename} claims the shape {shape}, and has {info.file_size} bytes")


def save(
    file: Path, digest: str, vectors: npt.NDArray[np.float32], log: Callable[[str], None], metadata: str = ""
) -> None:
    """Write under a name of our own, then rename: a reader, or a second run, never sees half a file.

    metadata: kept beside the vectors, how they were made.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent) as part, open(Path(part) / file.name, "xb") as out:
            np.savez(out, vectors=vectors, digest=np.array(digest), about=np.array(metadata))
            out.flush()
            os.fsync(out.fileno())
            os.replace(out.name, file)
    except OSError as error:
        log(f"{file}: cannot cache class-name vectors ({error}); the next start trains them again")
