"""What the tests of copies of run folders share."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import anchorfl.pipeline.run.round_loop
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store


def quiet(line: str) -> None:
    """Nobody listens."""


def backed_up(e, backup):
    return dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, backup=backup))


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder that are no matter of this machine alone, as the checkpoint before the last is."""
    found = {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and not p.name.startswith(".")
    }
    index = found.get("checkpoint/checkpoint.json")
    named = {"checkpoint.json"} | {e["file"] for e in json.loads(index)["parts"].values()} if index else set()
    before = {name for name in found if name.startswith("checkpoint/") and name.split("/")[1] not in named}
    return {name: data for name, data in found.items() if name not in before}


def contents(place: str) -> dict[str, bytes]:
    return {name: object_store.read_bytes(object_store.join(place, name)) for name in object_store.sizes(place)}


def rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line["metrics"].items() if not k.startswith(("time/", "system/"))} | {"round": line["round"]}
        for line in lines
    ]


def stop_at(monkeypatch, round_: int) -> None:
    plain = anchorfl.pipeline.run.round_loop.RoundLoop._run_round

    def interrupted(self, number):
        if number == round_:
            raise KeyboardInterrupt
        plain(self, number)

    monkeypatch.setattr(anchorfl.pipeline.run.round_loop.RoundLoop, "_run_round", interrupted)


def whole(content: dict[str, bytes]) -> int:
    """The round that a copy can go on after, -1 for none; fails where it is not whole."""
    if "checkpoint/checkpoint.json" not in content:
        assert "result.json" not in content
        return -1
    index = json.loads(content["checkpoint/checkpoint.json"])
    for entry in index["parts"].values():
        assert hashlib.sha256(content[f"checkpoint/{entry['file']}"]).hexdigest() == entry["sha256"]
    records = [json.loads(line)["round"] for line in content["metrics.jsonl"].splitlines()]
    assert records[: index["round"] + 1] == list(range(index["round"] + 1))
    assert {"config.json", "run.json"} <= content.keys()
    if "result.json" in content:
        assert {"model/model.json", "model/weights.safetensors", "partition.json", "per_class.csv"} <= content.keys()
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
