"""Limits for files that are small on disk and endless in memory: what unpacks to too much is refused."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

from anchorfl.tasks.errors import InputError

FREE, RATIO = 64 << 20, 200
"""A file may unpack to so many bytes, and to so many times its size beyond them. Numbers and texts pack 3 to 30 times;
gzip can do 1000, and a Parquet column any number."""
NUMBERS = 5000
"""So many times for columns of numbers in Parquet: label columns of 0 and 1 pack 250 to 1000 times."""
GIVE_PLAIN = "get it again, or unpack it and give it plain"


def check_growth(path: Path, unpacked: int, ratio: int = RATIO, hint: str = GIVE_PLAIN) -> None:
    """Raise InputError where more came out of a file than data can pack to."""
    if unpacked > FREE + ratio * path.stat().st_size:
        raise InputError(f"{path}: it unpacks to more than {ratio} times its size, as no file of data does; {hint}")


class CheckedStream:
    """A stream of text for Arrow: bounded by ``check_growth``, and UTF-8.

    Arrow hands rows that it cannot take apart to a callback, as text, and drops the error where they are none.
    """

    closed = False

    def __init__(self, path: Path, stream: Any) -> None:
        self.size, self.lines = 0, 0
        self._path, self._stream = path, stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def readable(self) -> bool:
        """Return True, as Arrow asks of a file."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes. Raises InputError."""
        data: bytes = self._stream.read(size)
        self.size += len(data)
        check_growth(self._path, self.size)
        try:
            self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            line = 1 + self.lines + data.count(b"\n", 0, error.start)
            msg = f"{self._path}:{line}: bytes that are no UTF-8; convert the file to UTF-8"
            raise InputError(msg) from None  # the error holds the bytes, which may be of a patient
        self.lines += data.count(b"\n")
        return data
