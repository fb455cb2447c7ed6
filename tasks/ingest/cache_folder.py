"""Names of the folders of prepared data, and the digests in them. Nothing slow is imported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from anchorfl.tasks.files.folders import cache_root
from anchorfl.tasks.ingest.input_spec import spec_digest
from anchorfl.tasks.ingest.manifest import FORMAT
from anchorfl.tasks.options import TaskOptions


def cache_folder(name: str, options: TaskOptions, seed: int, raw: str, reader: str) -> Path:
    """Return the folder of a task's prepared data; its name holds a digest of all that decides them.

    That is format, options, seed, and the digests of the raw files (``raw``) and of the code that reads them. Where the
    files lie does not matter to the content, so no folder is in it.
    """
    parquet, names = (Path(path).name for path in (options.file, options.class_names))
    form = spec_digest(options)
    here = replace(options, root="", cache="", file=parquet, class_names=names, input_spec=form)
    # only what differs from its default, so that a new option leaves prepared data as they are
    changed = {f.name: getattr(here, f.name) for f in fields(here) if getattr(here, f.name) != f.default}
    content = json.dumps([FORMAT, raw, reader, changed, seed], sort_keys=True)
    return cache_root(options.cache) / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def data_digest(digests: Mapping[str, str]) -> str:
    """Return the sha256 over file names and the digests of their content."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()
