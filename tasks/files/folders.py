"""Folders on disk."""

from __future__ import annotations

import os
from pathlib import Path

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store


def sync_folder(folder: str | Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_root(cache: str) -> Path:
    """Return the cache folder of this machine; ``cache``: the user's choice, which object storage is not.

    Raises InputError where ``ANCHORFL_CACHE`` is an address.
    """
    local = "" if object_store.is_remote(cache) else cache
    root = local or os.environ.get("ANCHORFL_CACHE", "") or "~/.cache/anchorfl"
    if object_store.is_remote(root):
        msg = f"ANCHORFL_CACHE = {object_store.shown(root)!r} must be a folder of this machine"
        raise InputError(f"{msg}; give the address as task.cache")
    return Path(root).expanduser().absolute()
