"""Messages in memory that two processes share, so that a pipe carries only where they lie."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorfl.pipeline.algorithm.messages import Packed

ALIGNMENT = 64
"""Bytes at whose multiples a buffer begins: a line of the cache, as torch's own memory."""
GROWTH = 1 << 20
"""Memory grows to a multiple of so many bytes."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A message's place in shared memory: small, and sent through a pipe."""

    skeleton: Any
    """As in ``Packed``."""
    buffers: dict[str, tuple[int, int]]
    """Element type -> (first byte, number of elements)."""


class SharedMemory:
    """Memory that one process writes messages to and another reads them from; it grows with what is written.

    It has no name, only a file descriptor, so the system frees it when the last process that has it ends, however.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """descriptor: of another process's memory, which is then this object's to close; None: new memory."""
        self.descriptor = _nameless() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None
        self._used = 0
        self._mapped: list[tuple[int, int]] = []

    def clear(self) -> None:
        """Write from the beginning again; what lay there must not be read any more."""
        self._used = 0

    def put(self, packed: Packed) -> Placed:
        """Write a message behind what was written since ``clear``; return its place."""
        return Placed(packed.skeleton, {kind: self._write(buffer) for kind, buffer in packed.buffers.items()})

    def get(self, placed: Placed) -> Packed:
        """Return a message where it lies, until the writer clears the memory."""
        return Packed(placed.skeleton, {k: self._view(k, *where) for k, where in placed.buffers.items()})

    def holds(self, address: int) -> bool:
        """Return whether an address of this process is of this memory."""
        return any(start <= address < start + size for start, size in self._mapped)

    def close(self) -> None:
        """Let go of the memory; what was read from it must not be used any more."""
        os.close(self.descriptor)

    def _write(self, buffer: npt.NDArray[Any]) -> tuple[int, int]:
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        self._used = start + buffer.nbytes
        if os.fstat(self.descriptor).st_size < self._used:
            os.ftruncate(self.descriptor, -(-self._used // GROWTH) * GROWTH)
        self._view(str(buffer.dtype), start, buffer.size)[:] = buffer.reshape(-1)
        return start, buffer.size

    def _view(self, kind: str, start: int, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(kind)
        if not count:
            return np.empty(0, dtype)
        if self._map is None or len(self._map) < start + count * dtype.itemsize:
            # views of the smaller map keep it, so nothing that was read moves
            self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
            self._mapped.append((np.frombuffer(self._map, np.uint8).ctypes.data, len(self._map)))
        return np.frombuffer(self._map, dtype, count, start)


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("anchorfl")
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())
