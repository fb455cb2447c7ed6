"""Checkpoints: whole or not at all, checked by checksum, and nothing else left behind."""

from __future__ import annotations

import itertools
import json
import os
import threading
import weakref
from functools import partial

import numpy as np
import pytest
import torch

from anchorfl.pipeline.storage import checkpoint
from anchorfl.pipeline.storage.checkpoint import Checkpoints, index_of, seal
from anchorfl.tasks.errors import InputError


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weights/w": torch.full((3, 2), value), "step": torch.tensor(4), "mask": torch.tensor([True, False])}


def test_what_is_saved_is_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    checkpoints.save(
        1, {"state": tensors(1.0), "memory-00000": tensors(0.1), "memory-00003": tensors(0.3)}, {"best": 1}
    )
    checkpoints.save(2, {"state": tensors(2.0), "memory-00003": tensors(0.33)}, {"best": 2})
    found = checkpoints.load()
    assert found is not None
    assert (found.round, found.notes) == (2, {"best": 2})
    expected_parts = {"state": tensors(2.0), "memory-00000": tensors(0.1), "memory-00003": tensors(0.33)}
    assert found.parts.keys() == expected_parts.keys()
    for name, expected in expected_parts.items():
        got = found.parts[name]
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[k], expected[k]) and got[k].dtype == expected[k].dtype for k in got)


def test_old_files_go_and_foreign_drafts_do_not_matter(tmp_path):
    checkpoints = Checkpoints(tmp_path, kept=1)
    checkpoints.save(1, {"state": tensors(1.0), "memory-00000": tensors(0.1)}, {})
    (tmp_path / "checkpoint" / ".state-000002.safetensors.tmp").write_bytes(b"half")  # a kill while writing round 2
    assert checkpoints.load().round == 1
    checkpoints.save(2, {"state": tensors(2.0), "memory-00000": tensors(0.2)}, {})
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == [
        "checkpoint.json", "memory-000002.safetensors", "state-000002.safetensors",
    ]  # fmt: skip


def test_what_a_save_does_not_write_stays(tmp_path):
    """A folder of a file server's in it stopped every save, and files of others were deleted."""
    kept = [tmp_path / "checkpoint" / name for name in ("@eaDir", "notes.txt", "checkpoints.json")]
    kept[0].mkdir(parents=True)
    for path in kept[1:]:
        path.write_text("mine")
    foreign = tmp_path / "checkpoint" / "checkpoint-000009.json"
    os.mkfifo(foreign)
    store = Checkpoints(tmp_path, 3)
    store.save(1, {"a": tensors(1)}, {})
    store.wait()
    assert all(path.exists() for path in kept)
    assert not foreign.exists()


def test_a_kill_before_the_index_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    """The index is written last: without it the new files do not exist."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"state": tensors(1.0), "memory-00000": tensors(0.1)}, {})

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("anchorfl.pipeline.storage.checkpoint.json.dumps", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, {"state": tensors(2.0), "memory-00000": tensors(0.2)}, {})
    monkeypatch.undo()
    found = Checkpoints(tmp_path).load()
    assert found.round == 1
    assert torch.equal(found.parts["memory-00000"]["weights/w"], tensors(0.1)["weights/w"])


@pytest.mark.parametrize("kept", [1, 2])
def test_a_kill_before_any_call_that_changes_the_disk_leaves_a_whole_checkpoint(tmp_path, monkeypatch, kept):
    """The one of round 1, until the index of round 2 has its name; then that of round 2."""
    names = ("fsync", "replace", "unlink")
    plain, rounds = {name: getattr(os, name) for name in names}, []
    for kill in range(1, 100):
        folder, calls = tmp_path / str(kill), itertools.count(1)
        checkpoints = Checkpoints(folder, kept)
        checkpoints.save(1, {"state": tensors(1.0), "memory-00000": tensors(1.0)}, {})

        def call(name, *given, calls=calls, kill=kill, **named):
            if next(calls) == kill:
                raise KeyboardInterrupt
            return plain[name](*given, **named)

        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(os, name, partial(call, name))
            try:
                checkpoints.save(2, {"state": tensors(2.0), "memory-00000": tensors(2.0)}, {})
            except KeyboardInterrupt:
                pass
            else:
                break
        found = Checkpoints(folder, kept).load()
        assert {float(part["weights/w"][0, 0]) for part in found.parts.values()} == {float(found.round)}
        rounds.append(found.round)
    assert rounds == sorted(rounds)
    assert set(rounds) == {1, 2}
    assert Checkpoints(folder, kept).load().round == 2


def tampered(folder, old: str, new: str) -> None:
    path = folder / "checkpoint.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


HARMS = {
    "does not have the checksum": lambda f: (f / "state-000003.safetensors").write_bytes(b"x" * 90),
    "is missing, though a checkpoint names it": lambda f: (f / "state-000003.safetensors").unlink(),
    "is damaged": lambda f: (f / "checkpoint.json").write_text("{"),
    "No such file": lambda f: (f / "checkpoint.json").unlink(),
    "the content: expected `object`, got `array`": lambda f: (f / "checkpoint.json").write_text("[]"),
    "its checksum does not fit": lambda f: tampered(f, '"best": 3', '"best": 2'),
    "has format 1, this version reads 4": lambda f: tampered(f, '"format": 4', '"format": 1'),
}


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/secret.safetensors", "state.txt", "sub/x.safetensors"])
def test_an_index_names_only_what_lies_beside_it(tmp_path, name):
    entry = {"sha256": "0" * 64, "parts": ["state"], "written": 1}
    index = {"format": 4, "round": 1, "files": {name: entry}, "notes": {}}
    with pytest.raises(InputError, match="is no part beside it"):
        index_of(json.dumps(index | {"sha256": seal(index)}).encode(), "checkpoint.json")


def three_rounds(folder, kept):
    checkpoints = Checkpoints(folder, kept)
    for round_ in (1, 2, 3):
        parts = {"state": tensors(float(round_))} | ({"memory-00000": tensors(0.5)} if round_ == 1 else {})
        checkpoints.save(round_, parts, {"best": round_})


@pytest.mark.parametrize(("message", "harm"), [pair for pair in HARMS.items() if pair[0] != "No such file"])
def test_damage_is_named(tmp_path, message, harm):
    three_rounds(tmp_path, kept=1)
    harm(tmp_path / "checkpoint")
    with pytest.raises(InputError, match=f"{message}.*; start the run anew in another --output"):
        Checkpoints(tmp_path).load()


@pytest.mark.parametrize(("message", "harm"), HARMS.items())
def test_the_one_before_is_taken_and_said(tmp_path, message, harm):
    """Whatever happened to the last; the next round that is saved mends the folder."""
    three_rounds(tmp_path, kept=2)
    harm(tmp_path / "checkpoint")
    said, checkpoints = [], Checkpoints(tmp_path, kept=2)
    found = checkpoints.load(said.append)
    assert (found.round, found.notes, set(found.parts)) == (2, {"best": 2}, {"state", "memory-00000"})
    assert torch.equal(found.parts["state"]["weights/w"], tensors(2.0)["weights/w"])
    assert len(said) == 1
    assert message in said[0]
    assert said[0].endswith("taking the checkpoint of round 2")
    checkpoints.save(3, {"state": tensors(3.0)}, {"best": 3})
    again = Checkpoints(tmp_path).load(said.append)
    assert (again.round, set(again.parts), len(said)) == (3, {"state", "memory-00000"}, 1)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_so_many_are_kept(tmp_path, kept):
    """Each with its own files; a part that did not change is there once."""
    three_rounds(tmp_path, kept)
    rounds = range(4 - kept, 4)
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == sorted([
        "checkpoint.json", "memory-000001.safetensors",
        *(f"checkpoint-{r:06d}.json" for r in rounds if r < 3), *(f"state-{r:06d}.safetensors" for r in rounds),
    ])  # fmt: skip


def test_notes_that_change_later_stay_as_they_were_saved(tmp_path):
    """The loop saves its own standing, and goes on with it."""
    checkpoints, notes = Checkpoints(tmp_path, kept=2), {"round": 1, "scores": {"test": 0.5}}
    checkpoints.save(1, {"state": tensors(1.0)}, notes)
    notes["scores"]["test"] = 0.7
    checkpoints.save(2, {"state": tensors(2.0)}, notes)
    tampered(tmp_path / "checkpoint", "0.7", "0.8")
    assert Checkpoints(tmp_path).load().notes == {"round": 1, "scores": {"test": 0.5}}


def test_parts_may_share_storage(tmp_path):
    """The selected model of this round is the state of this round: the same tensors in two files."""
    checkpoints = Checkpoints(tmp_path)
    state = tensors(1.0)
    checkpoints.save(1, {"state": state, "selected": state}, {})
    found = checkpoints.load()
    assert torch.equal(found.parts["selected"]["weights/w"], state["weights/w"])


def test_a_kept_state_that_is_missing_or_damaged_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path, kept=1)
    checkpoints.keep(3, {"w": torch.ones(2)})
    assert torch.equal(checkpoints.read_kept(3)["w"], torch.ones(2))
    with pytest.raises(InputError, match=r"00004\.safetensors is missing: evaluation\.save_state_every"):
        checkpoints.read_kept(4)
    (checkpoints.rounds / "00003.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"00003\.safetensors is damaged .*; delete it, the other rounds can do"):
        checkpoints.read_kept(3)


def test_a_client_that_keeps_nothing_has_no_file(tmp_path):
    """Nor keeps one that it had: thousands of clients in a round are one file, not thousands."""
    checkpoints, one = Checkpoints(tmp_path, kept=1), {"w": torch.ones(2)}
    checkpoints.save(1, {"state": one, "client-00000": one, "client-00001": {}}, {})
    assert set(checkpoints.load().parts) == {"state", "client-00000"}
    checkpoints.save(2, {"state": one, "client-00000": {}}, {})
    assert set(checkpoints.load().parts) == {"state"}
    assert len(list((tmp_path / "checkpoint").glob("*.safetensors"))) == 1


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_save_deletes_what_the_last_one_left_without_reading_the_folder(tmp_path, kept):
    """The files of a long run are those that a process which knows nothing of the saves before would leave."""
    known, folder = Checkpoints(tmp_path / "known", kept), tmp_path / "anew"
    for round_ in range(1, 8):
        changed = {"state": tensors(round_)} | {f"memory-{c:05d}": tensors(c) for c in (round_ % 3, 3 + round_ % 2)}
        known.save(round_, changed, {"best": round_})
        Checkpoints(folder, kept).save(round_, changed, {"best": round_})  # sweeps the folder
        names = [sorted(path.name for path in where.iterdir()) for where in (known.folder, folder / "checkpoint")]
        assert names[0] == names[1]
    assert Checkpoints(tmp_path / "known", kept).load().round == 7


def test_a_save_that_fails_leaves_nothing_behind_after_the_next(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    for round_ in (1, 2):
        checkpoints.save(round_, {"state": tensors(round_)}, {})

    def full(*_):
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("anchorfl.pipeline.storage.checkpoint.write_atomically", full)
        with pytest.raises(OSError, match="no room"):
            checkpoints.save(3, {"state": tensors(3.0), "memory-00009": tensors(3.0)}, {})
    checkpoints.save(4, {"state": tensors(4.0)}, {})
    assert "memory-000003.safetensors" not in {path.name for path in checkpoints.folder.iterdir()}
    assert Checkpoints(tmp_path).load().round == 4


def test_a_save_syncs_each_file_once_and_the_folder_twice(tmp_path, monkeypatch):
    checkpoints, calls = Checkpoints(tmp_path), []
    checkpoints.save(1, {"state": tensors(1.0)}, {})
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append(handle) or real(handle))
    checkpoints.save(2, {"state": tensors(2.0)} | {f"memory-{c:05d}": tensors(2.0) for c in range(5)}, {})
    assert len(calls) == 2 + 1 + 2  # the state, all memories, the index, and the folder before and after it


@pytest.mark.parametrize("file_bytes", [1, 100, 1 << 27])
def test_what_is_in_use_of_a_sparse_file_moves_to_the_next(tmp_path, monkeypatch, file_bytes):
    """The folder holds at most twice what is in use; no save writes more than twice what changed."""
    monkeypatch.setattr(checkpoint, "FILE_BYTES", file_bytes)
    checkpoints, rng, last = Checkpoints(tmp_path, kept=1), np.random.default_rng(0), {}
    for round_ in range(1, 60):
        clients = rng.choice(40, size=8, replace=False).tolist() if round_ > 1 else range(40)
        changed = {f"memory-{c:05d}": tensors(float(100 * round_ + c)) for c in clients}
        last |= changed
        checkpoints.save(round_, {"state": tensors(round_)} | changed, {})
        files = json.loads(checkpoints.index.read_text())["files"]
        memories = {name: entry for name, entry in files.items() if name.startswith("memory-")}
        assert sum(entry["written"] for entry in memories.values()) <= 2 * 40 + 2 * 8
        new = [entry for name, entry in memories.items() if name.startswith(f"memory-{round_:06d}")]
        assert sum(entry["written"] for entry in new) <= 2 * len(clients)
        assert sorted(part for entry in files.values() for part in entry["parts"]) == sorted(["state", *last])
        assert {p.name for p in checkpoints.folder.iterdir()} == {"checkpoint.json", *files}
    found = Checkpoints(tmp_path).load()
    assert found.parts.keys() == {"state", *last}
    for name, expected in last.items():
        assert all(torch.equal(found.parts[name][k], expected[k]) for k in expected)


def test_a_sparse_file_that_is_damaged_stays_to_be_named(tmp_path):
    checkpoints = Checkpoints(tmp_path, kept=1)
    checkpoints.save(1, {f"memory-{c:05d}": tensors(c) for c in range(9)}, {})
    first = checkpoints.folder / "memory-000001.safetensors"
    first.write_bytes(b"x" * len(first.read_bytes()))
    for round_ in (2, 3):
        checkpoints.save(round_, {f"memory-{c:05d}": tensors(c) for c in range(5)}, {})
    with pytest.raises(InputError, match=r"memory-000001\.safetensors does not have the checksum"):
        Checkpoints(tmp_path).load()


def test_memories_are_asked_for_and_read_one_after_the_other(tmp_path, monkeypatch):
    """However many clients keep something, and however much, no more than two memories are there at a time."""
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 1)
    alive, most = weakref.WeakSet(), []

    def counted(parts):
        alive.update(parts.values())
        most.append(len(alive))
        return parts

    asked, rounds = [], 3

    def memory(client, value):
        asked.append(client)
        return counted({"w": torch.full((3,), value)}) if client else {}

    checkpoints = Checkpoints(tmp_path)
    for round_ in range(1, rounds + 1):
        later = {f"memory-{c:05d}": partial(memory, c, float(10 * round_ + c)) for c in range(9)}
        checkpoints.save(round_, later | {"state": tensors(round_)}, {})
    assert (asked, max(most)) == (list(range(9)) * rounds, 2)
    assert (checkpoints.folder / "memory-000003.safetensors").exists()
    assert (checkpoints.folder / "memory-000003-7.safetensors").exists()

    plain = checkpoint.tensors
    monkeypatch.setattr(checkpoint, "tensors", lambda data: counted(plain(data)))
    most.clear()
    found = Checkpoints(tmp_path).load()
    assert sorted(found.parts) == [f"memory-{c:05d}" for c in range(1, 9)] + ["state"]
    for client in range(1, 9):
        assert found.parts[f"memory-{client:05d}"]["w"].tolist() == [30.0 + client] * 3
    assert torch.equal(found.parts["state"]["weights/w"], tensors(3.0)["weights/w"])
    assert found.parts.get("selected") is None
    assert max(most) <= 4  # the state has three tensors


def test_a_file_that_changes_after_it_was_found_whole_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 1)
    Checkpoints(tmp_path).save(1, {"memory-00001": tensors(1.0), "memory-00002": tensors(2.0)}, {})
    found = Checkpoints(tmp_path).load()
    (tmp_path / "checkpoint/memory-000001-1.safetensors").write_bytes(b"x")
    assert torch.equal(found.parts["memory-00001"]["weights/w"], tensors(1.0)["weights/w"])
    with pytest.raises(InputError, match=r"memory-000001-1\.safetensors does not have the checksum"):
        _ = found.parts["memory-00002"]


def test_parts_of_a_kind_may_share_storage(tmp_path):
    """What all clients were sent, and keep."""
    checkpoints, same = Checkpoints(tmp_path), tensors(1.0)
    checkpoints.save(1, {f"memory-{c:05d}": same | {"own": torch.tensor(c)} for c in range(3)}, {})
    for c, part in enumerate(checkpoints.load().parts.values()):
        assert all(torch.equal(part[k], value) for k, value in (same | {"own": torch.tensor(c)}).items())


def test_a_file_that_lacks_a_part_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path, kept=1)
    checkpoints.save(1, {"memory-00001": tensors(1.0)}, {})
    index = json.loads(checkpoints.index.read_text())
    index["files"]["memory-000001.safetensors"]["parts"] = ["memory-00001", "memory-00002"]
    del index["sha256"]
    checkpoints.index.write_text(json.dumps(index | {"sha256": seal(index)}))
    with pytest.raises(InputError, match="does not hold 'memory-00002', though a checkpoint says so"):
        Checkpoints(tmp_path).load()


# ---------------------------------------------------------------------------------------------------- behind the round


def test_a_round_is_saved_behind_the_next(tmp_path, monkeypatch):
    """One at a time, in order, with the notes of its time; whoever reads waits for it."""
    checkpoints, order, free = Checkpoints(tmp_path), [], threading.Event()
    write = checkpoints._write

    def slow(*words):
        assert free.wait(10)
        return write(*words)

    monkeypatch.setattr(checkpoints, "_write", slow)
    notes = {"round": 1}
    checkpoints.save_behind(1, {"state": tensors(1.0)}, notes, lambda: order.append(1))
    notes["round"] = 7
    assert order == []
    assert not checkpoints.index.exists()
    free.set()
    checkpoints.save_behind(2, {"state": tensors(2.0)}, {"round": 2}, lambda: order.append(2))
    found = checkpoints.load()
    assert (found.round, found.notes, order) == (2, {"round": 2}, [1, 2])
    (before,) = checkpoints._earlier()
    assert index_of(before.read_bytes(), before)["notes"] == {"round": 1}


def test_what_goes_wrong_behind_is_raised_once_by_whoever_comes_next(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no room")

    for verb in ("wait", "load", "save", "save_behind"):
        checkpoints = Checkpoints(tmp_path / verb)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "_write", full)
            checkpoints.save_behind(1, {"state": tensors(1.0)}, {}, pytest.fail)
            checkpoints._thread.join()
        words = {"save": (2, {}, {}), "save_behind": (2, {}, {}, pytest.fail)}.get(verb, ())
        with pytest.raises(OSError, match="no room"):
            getattr(checkpoints, verb)(*words)
        checkpoints.wait()
        checkpoints.save(3, {"state": tensors(3.0)}, {})
        assert checkpoints.load().round == 3
