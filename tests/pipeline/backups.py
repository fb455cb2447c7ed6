"""Copies of run folders: their files, the round that they stand at, and a store that does not answer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store


def backed_up(e, backup):
    return dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, backup=backup))


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a run or sweep that a copy has, by name: not locks, drafts, older checkpoints of a run."""
    found = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")}
    named = {
        index.parent / name
        for index in found
        if index.name == "checkpoint.json"
        for name in json.loads(found[index])["files"]
    }
    return {
        p.relative_to(folder).as_posix(): data
        for p, data in found.items()
        if p.parent.name != "checkpoint" or p.name == "checkpoint.json" or p in named
    }


def contents(place: str) -> dict[str, bytes]:
    """Return every file of a copy by name."""
    return {name: object_store.read_bytes(object_store.join(place, name)) for name in object_store.sizes(place)}


def whole(content: dict[str, bytes]) -> int:
    """Return the round that a copy can go on after, -1 for none; fail where it is not whole."""
    if "checkpoint/checkpoint.json" not in content:
        assert "result.json" not in content
        return -1
    index = json.loads(content["checkpoint/checkpoint.json"])
    for name, entry in index["files"].items():
        assert hashlib.sha256(content[f"checkpoint/{name}"]).hexdigest() == entry["sha256"]
    records = [json.loads(line)["round"] for line in content["metrics.jsonl"].splitlines()]
    assert records[: index["round"] + 1] == list(range(index["round"] + 1))
    assert {"config.json", "run.json"} <= content.keys()
    if "result.json" in content:
        assert {"model/model.json", "model/weights.safetensors", "per_class.csv"} <= content.keys()
    return index["round"]


class Outage:
    """A store that does not answer while ``down``."""

    def __init__(self, monkeypatch, down: bool = True) -> None:
        self.down, self.asked, self.real = down, 0, object_store.write_bytes
        monkeypatch.setattr(object_store, "write_bytes", self)

    def __call__(self, place, data):
        self.asked += 1
        if self.down:
            raise InputError(f"{place}: no answer")
        self.real(place, data)
