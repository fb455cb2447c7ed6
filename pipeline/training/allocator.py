"""Memory that a process has freed, kept for the next message of the same size."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Numbers of glibc's ``mallopt``."""
LARGEST_ON_HEAP, KEPT = 1 << 25, 1 << 26
"""Bytes: those at which glibc itself arrives where 32 MB have been freed once (``DEFAULT_MMAP_THRESHOLD_MAX``)."""


@cache
def keep_freed_memory() -> None:
    """Have glibc keep up to 64 MB of freed memory, as it does after a while where messages are large, from the start.

    It would give a message's pages back to the system as it is freed, and the next message would fault them in again,
    which takes longer than all that is done with them. Another C library goes on as it likes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(MMAP_THRESHOLD, LARGEST_ON_HEAP)
        libc.mallopt(TRIM_THRESHOLD, KEPT)
