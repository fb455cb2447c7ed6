"""Raw files at an address: what is below it comes to this machine, once, and is a folder of raw files from then on."""

from __future__ import annotations

import hashlib
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.files.folders import cache_root
from anchorfl.tasks.options import TaskOptions

FETCHED = "fetched-raw"
"""Folder in the cache folder, with one folder per address."""
LISTED = ".fetched.json"
"""File in it: the name, size and time of every file as it was at the address when it was brought here."""
AT_ONCE = 16
"""Files that are brought at one time."""
AGAIN_S = 60.0
"""Seconds for which a process does not ask again what there is: one preparation asks several times."""
_asked: dict[Path, float] = {}


def root_of(options: TaskOptions) -> Path:
    """Return ``task.root`` as a folder of this machine. What is new or has changed at an address is brought here.

    Raises InputError where the address is none, or cannot be used.
    """
    if not object_store.is_remote(options.root):
        return Path(options.root).expanduser()
    object_store.check_location(options.root, "task.root")
    cache = cache_root("" if object_store.is_remote(options.cache) else options.cache)
    folder = cache / FETCHED / hashlib.sha256(options.root.encode()).hexdigest()[:16]
    if time.monotonic() - _asked.get(folder, -math.inf) < AGAIN_S:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)  # it holds rows
    with FileLock(folder.with_name(f".{folder.name}.lock"), fallback_to_soft=False):
        _bring(options.root, folder)
    _asked[folder] = time.monotonic()
    return folder


def _bring(root: str, folder: Path) -> None:
    there, listed = object_store.listing(root), folder / LISTED
    if bad := next((name for name in there if name == LISTED or ".." in Path(name).parts or name.startswith("/")), ""):
        raise InputError(f"{object_store.shown(root)}: {bad!r} is no name of a file of this folder; rename it there")
    known = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    for name in known.keys() - there.keys():
        (folder / name).unlink(missing_ok=True)
    wanted = [name for name, seen in there.items() if known.get(name) != list(seen) or not (folder / name).exists()]
    for name in wanted:
        (folder / name).unlink(missing_ok=True)

    def bring(name: str) -> None:
        object_store.write_bytes(str(folder / name), object_store.read_bytes(object_store.join(root, name)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(bring, wanted))
    if there != known:
        object_store.write_bytes(str(listed), json.dumps(there).encode())
