"""The tracker that every run has: one JSON line per round in its folder."""

from __future__ import annotations

import getpass
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from anchorfl.pipeline.storage.atomic_files import write_json
from anchorfl.pipeline.storage.run_record import (
    DATA_DIGESTS,
    FINAL_SCORES,
    RoundRecord,
    RunInfo,
    Status,
    Value,
    line_of,
    read_metadata,
    read_records,
    write_records,
)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # containers run under numbers that have no name
        return str(os.getuid())


def _agree(old: Mapping[str, Value], new: Mapping[str, Value]) -> bool:
    """Return whether two runs have the same value of every parameter that both know."""
    shared = old.keys() & new.keys()
    return bool(shared) and all(old[name] == new[name] for name in shared)


class JsonLines:
    """The tracker that keeps run.json and metrics.jsonl.

    A resumed run keeps the rounds before ``resume_at`` and its identity. So does one that starts again at 0 with the
    same parameters, or options of the same digest, on the same data: it was killed before its first checkpoint.
    Parameters that another version does not know do not count. Any other is a new run.
    """

    def __init__(self, folder: Path, resume_at: int = 0) -> None:
        """resume_at: the round that will be computed next."""
        self.folder = folder
        self.resume_at = resume_at
        self._run: dict[str, Any] = {}

    def begin(self, info: RunInfo) -> None:
        """Write run.json and drop what will be computed again from metrics.jsonl."""
        self.folder.mkdir(parents=True, exist_ok=True)
        old = read_metadata(self.folder)
        begun, now = ({t: tags.get(t) for t in ("config_digest", "kind")} for tags in (old.get("tags", {}), info.tags))
        alike = _agree(old.get("params", {}), info.params) or (bool(now["config_digest"]) and begun == now)
        data = {**dict.fromkeys(DATA_DIGESTS), **old.get("tags", {})}
        unchanged = all(data[name] in (None, info.tags.get(name)) for name in DATA_DIGESTS)
        same = bool(old) and (self.resume_at > 0 or (alike and unchanged))
        if not same:
            (self.folder / "tracking.json").unlink(missing_ok=True)
            if (self.folder / FINAL_SCORES).exists():
                shutil.rmtree(self.folder / FINAL_SCORES)
            old = {"id": uuid.uuid4().hex, "created": time.time(), "artifacts": []}
        parent = info.parent and os.path.relpath(info.parent.resolve(), self.folder.resolve())
        metadata = asdict(replace(info, datasets=list(info.datasets))) | {"folder": str(info.folder), "parent": parent}
        metadata |= {"status": "RUNNING", "begun": time.time(), "user": _user()}
        self._run = {key: old[key] for key in ("id", "created", "artifacts")} | metadata
        kept = [record for record in read_records(self.folder)[0] if record.round < self.resume_at]
        write_records(self.folder, kept)
        write_json(self.folder / "run.json", self._run)

    def round(self, record: RoundRecord) -> None:
        """Append one line; it is on the disk when this returns."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line_of(record))
            file.flush()
            os.fsync(file.fileno())

    def artifact(self, path: Path) -> None:
        """Note a file or folder of the run folder in run.json. ValueError for one that lies elsewhere."""
        if not path.exists():
            raise FileNotFoundError(f"no artifact at {path}")
        name = str(path.resolve().relative_to(self.folder.resolve()))
        if name not in self._run["artifacts"]:
            self._run["artifacts"].append(name)
            write_json(self.folder / "run.json", self._run)

    def end(self, status: Status, tags: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write the status, the time and further tags."""
        self._run |= {"status": status, "ended": time.time(), "tags": {**self._run["tags"], **tags}}
        write_json(self.folder / "run.json", self._run)
