"""Where prepared data are written: a folder that is being built, or a place on object storage."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.folders import sync_folder

MARK = ".building"
"""A file in a folder that is being built: whoever does not see it has another disk."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A place for files, from any process of a cluster."""

    place: str
    """Folder on this machine, or location on object storage."""
    builder: str = ""
    """Content of the folder's ``MARK``; nobody else has it."""

    @classmethod
    def of(cls, place: str) -> Destination:
        """Return the destination, with its mark where it is a folder."""
        if object_store.is_remote(place):
            return cls(place)
        builder = os.urandom(16).hex()
        with open(f"{place}/{MARK}", "w", encoding="ascii") as stream:
            stream.write(builder)
        return cls(place, builder)

    def is_here(self) -> bool:
        """Return whether what this process writes arrives."""
        if object_store.is_remote(self.place):
            return True
        try:
            with open(f"{self.place}/{MARK}", encoding="ascii") as stream:
                return stream.read() == self.builder
        except FileNotFoundError:
            return False

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Yield a stream for one file, which is synced to disk, or sent, when the block ends well."""
        if object_store.is_remote(self.place):
            with tempfile.TemporaryFile() as draft:
                yield draft
                draft.seek(0)
                object_store.write_bytes(object_store.join(self.place, name), draft.read())
            return
        with open(f"{self.place}/{name}", "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())

    def write(self, name: str, data: bytes) -> str:
        """Write one file and return the sha256 of its bytes."""
        with self.writing(name) as stream:
            stream.write(data)
        return hashlib.sha256(data).hexdigest()

    def close(self, name: str, data: bytes) -> None:
        """Write the last file, which makes the others complete."""
        if not object_store.is_remote(self.place):
            os.remove(f"{self.place}/{MARK}")
        self.write(name, data)
        if not object_store.is_remote(self.place):
            sync_folder(self.place)
