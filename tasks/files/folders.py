"""Folders on disk."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: str | Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
