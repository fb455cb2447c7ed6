"""Class-name vectors on disk, so that the next start need not make them again."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt


def cached(
    cache: Path | None, digest: str, make: Callable[[], npt.NDArray[np.float32]], log: Callable[[str], None]
) -> npt.NDArray[np.float32]:
    """The vectors from ``<cache>/names-<digest>.npz``, or made now and kept there; without a cache, made."""
    if cache is None:
        return make()
    file = cache / f"names-{digest[:16]}.npz"
    found = load(file, digest, log)
    if found is None:
        found = make()
        save(file, digest, found, log)
    return found


def load(file: Path, digest: str, log: Callable[[str], None]) -> npt.NDArray[np.float32] | None:
    """Cached rows, or None: no file, or (``log`` says so) one that is damaged or was made for other input."""
    if not file.exists():
        return None
    reason = "wrong checksum, or made for other input"
    try:
        with ZipFile(file) as archive:  # all checksums first: numpy parses a member before it has seen its end
            intact = archive.testzip() is None
        with np.load(file, allow_pickle=False) as data:
            if intact and str(data["digest"]) == digest:
                return np.asarray(data["vectors"], np.float32)
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, BadZipFile, zlib.error, struct.error) as error:
        reason = str(error)
    log(f"{file}: unusable cache of class-name vectors ({reason}); training again and overwriting it")
    return None


def save(file: Path, digest: str, vector_KD: npt.NDArray[np.float32], log: Callable[[str], None]) -> None:
    """Write under a name of our own, then rename: a reader, or a second run, never sees half a file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent) as part, open(Path(part) / file.name, "xb") as out:
            np.savez(out, vectors=vector_KD, digest=np.array(digest))
            out.flush()
            os.fsync(out.fileno())
            os.replace(out.name, file)
    except OSError as error:
        log(f"{file}: cannot cache class-name vectors ({error}); the next start trains them again")
