"""Archives that were fetched: what a data set reads is unpacked, and nothing ever outside its folder."""

from __future__ import annotations

import errno
import lzma
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.decompression import check_growth
from anchorfl.tasks.files.regular_files import outside

ANYWHERE = "**/"
"""Start of a pattern of files that may lie in any folder."""
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError, RuntimeError,
    ValueError, IndexError,
)  # fmt: skip
"""Errors of ``zipfile`` on an archive that is damaged or made to be."""
OF_DISK = errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS
"""Errors of the disk that an archive is unpacked to, which say no file."""
AGAIN = "delete it and fetch it again, or unpack it by hand"


def unpack(archive: Path, folder: Path, patterns: Sequence[str]) -> int:
    """Unpack what a data set reads from a ``.zip``, also from one within it, and return the number of files.

    patterns: as ``Source.files``. Folders above what matches are left out: ``set-v2/polyps/1.jpg`` becomes
    ``polyps/1.jpg``; with a pattern of any folder (``**/*.dat``) they stay. A file that is there is replaced. Raises
    InputError where the archive is damaged or holds nothing of all this; also where it unpacks to too much or a member
    leads out of the folder: then nothing is written. All is written before the first file gets its place: of a data
    set that is any number of files, some would do for the rest.
    """
    try:
        with ExitStack() as opened:
            outer = opened.enter_context(zipfile.ZipFile(archive))
            contents = [outer]
            for info in _checked(archive, outer):
                if info.filename.lower().endswith(".zip"):
                    stream = opened.enter_context(outer.open(info))
                    contents.append(opened.enter_context(zipfile.ZipFile(stream)))
            members = [(content, info) for content in contents for info in _checked(archive, content)]
            check_growth(archive, sum(info.file_size for _, info in members))
            named = [(*member, place) for member in members if (place := _place(member[1].filename, patterns))]
            if not named:
                raise InputError(f"{archive} holds none of {', '.join(patterns)}; get the files by hand")
            if linked := next((place for *_, place in named if outside(folder / place, folder)), None):
                raise InputError(
                    f"{folder / linked} leads out of {folder} by a link that is there; give another folder with --root"
                )
            draft = folder / f".{archive.name}"
            shutil.rmtree(draft, ignore_errors=True)
            opened.callback(shutil.rmtree, draft, ignore_errors=True)
            for content, info, place in named:
                _write(content, info, draft / place)
            for place in dict.fromkeys(place for *_, place in named):
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                (draft / place).replace(folder / place)
    except (OSError, *DAMAGE) as error:
        if isinstance(error, InputError) or getattr(error, "filename", None) or getattr(error, "errno", 0) in OF_DISK:
            raise
        raise InputError(f"{archive} is no .zip archive, or a damaged one ({error}); {AGAIN}") from error
    return len(named)


def _checked(archive: Path, content: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    """Yield the files of an archive. Raises InputError on one that is a link or leads out of the folder."""
    for info in content.infolist():
        name, mode = info.filename, info.external_attr >> 16
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or stat.S_ISLNK(mode):
            raise InputError(f"{archive}: member {name!r} leads out of the folder, or is a link; do not use this file")
        if not info.is_dir():
            yield info


def _place(name: str, patterns: Sequence[str]) -> PurePosixPath | None:
    """Return the place below the data set's folder for a member; None where no pattern is for it."""
    path = PurePosixPath(name)
    if path.name.startswith("."):  # macOS puts one beside every file
        return None
    for pattern in patterns:
        short = pattern.removeprefix(ANYWHERE)
        if path.match(short) or path.match(f"{short}.gz"):
            return path if short != pattern else PurePosixPath(*path.parts[-len(PurePosixPath(short).parts) :])
    return None


def _write(content: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    """Write a member."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with content.open(info) as stream, path.open("wb") as out:
        shutil.copyfileobj(stream, out, 1 << 20)
