"""The copy of a folder: only what changed, in an order that keeps it whole, and a store that does not answer."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time

import pytest
import torch

from anchorfl.pipeline.storage.backup import INDEX, Backup
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.pipeline.storage.restore import update_backup
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from tests.pipeline.backups import Outage, contents, files


def save(checkpoints: Checkpoints, round_: int, clients: int = 3) -> None:
    parts = {name: {"w": torch.full((8,), float(round_))} for name in ("state", *(f"m{c}" for c in range(clients)))}
    (checkpoints.folder.parent / "metrics.jsonl").write_text("{}\n" * (round_ + 1))
    checkpoints.save(round_, parts, {})


def test_rounds_do_not_wait_and_overtake_no_copy(tmp_path, monkeypatch):
    """A store that is slower than the rounds gets fewer copies, each of them whole; nothing is left behind."""
    place, real, answers, copied = f"file://{tmp_path}/copy", object_store.write_bytes, threading.Event(), []

    def write(path, data):
        assert answers.wait(60)
        if path.endswith("checkpoint.json"):
            copied.append(json.loads(data)["round"])
        real(path, data)

    monkeypatch.setattr(object_store, "write_bytes", write)
    checkpoints = Checkpoints(tmp_path / "run")
    (tmp_path / "run").mkdir()
    backup = Backup(tmp_path / "run", place, pytest.fail, checkpoints)
    for round_ in range(1, 41):  # all while the store takes nothing in
        save(checkpoints, round_)
        backup.push()
    assert not copied
    answers.set()
    assert backup.close()
    assert copied[-1] == 40
    assert len(copied) <= 2  # the one that was under way, and one for all rounds since
    assert contents(place) == files(tmp_path / "run")
    assert len(list((tmp_path / "run" / "checkpoint").iterdir())) == 10


def test_only_what_changed_is_sent(tmp_path, monkeypatch):
    place, sent, real = f"file://{tmp_path}/copy", [], object_store.write_bytes
    monkeypatch.setattr(
        object_store, "write_bytes", lambda p, data: (sent.append(object_store.last_name(p)), real(p, data))
    )
    folder, checkpoints = tmp_path / "run", Checkpoints(tmp_path / "run")
    folder.mkdir()
    save(checkpoints, 1)
    (folder / "config.json").write_text("{}")
    (folder / ".lock").write_text("1")
    (folder / "metrics.jsonl.tmp").write_text("half")
    backup = Backup(folder, place, pytest.fail, checkpoints)
    backup.send()
    parts = [f"{name}-000001.safetensors" for name in ("state", "m0", "m1", "m2")]
    assert sorted(sent[:2]) == ["config.json", "metrics.jsonl"]
    assert sorted(sent[2:6]) == sorted(parts)
    assert sent[6:] == ["checkpoint.json"]
    sent.clear()
    backup.send()
    assert sent == []
    save(checkpoints, 2, clients=0)
    backup.send()
    assert sent == ["metrics.jsonl", "state-000002.safetensors", "checkpoint.json"]
    sent.clear()
    Backup(folder, place, pytest.fail, checkpoints).send()  # a process that knows nothing of the first one
    assert sorted(sent) == ["checkpoint.json", "config.json", "metrics.jsonl"]  # no part, by their checksums


def test_the_copy_outlives_the_folder(tmp_path):
    """Whatever is deleted, in whatever order: what the copy holds can be gone on from."""
    folder, place, lines = tmp_path / "run", f"file://{tmp_path}/copy", []
    folder.mkdir()
    checkpoints = Checkpoints(folder)
    (folder / "config.json").write_text("{}")
    save(checkpoints, 1)
    backup = Backup(folder, place, lines.append, checkpoints, patience_s=0.01)
    backup.send()
    before = contents(place)
    for name in ("config.json", "checkpoint/checkpoint.json", "metrics.jsonl", "checkpoint/state-000001.safetensors"):
        (folder / name).unlink()
        backup.send()
        assert contents(place) == before
    shutil.rmtree(folder)
    with pytest.raises(InputError, match=r"/run is gone; its copy file://.*/copy stays as it is"):
        backup.send()
    assert not backup.close()
    assert "is gone" in lines[0]
    assert contents(place) == before


def test_an_outage_is_said_once_and_made_good(tmp_path, monkeypatch):
    store, lines, place = Outage(monkeypatch), [], f"file://{tmp_path}/copy"
    checkpoints = Checkpoints(tmp_path / "run")
    (tmp_path / "run").mkdir()
    backup = Backup(tmp_path / "run", place, lines.append, checkpoints)
    for round_ in range(1, 4):
        save(checkpoints, round_)
        backup.push()
        while store.asked < round_:
            time.sleep(0.005)
        time.sleep(0.05)
    assert lines == [f"backup: {place}/metrics.jsonl: no answer; the run goes on, and the backup is tried again after"
                     " every checkpoint"]  # fmt: skip
    store.down = False
    assert backup.close()
    assert backup.failures == 3
    assert lines[1:] == [f"backup: {place} is up to date again (3 attempts failed)"]
    assert contents(place) == files(tmp_path / "run")


def test_a_copy_that_is_further_stays_as_it_is_until_the_run_is_as_far(tmp_path):
    """Such as one that was not seen when the run began to go on, since the store did not answer then."""
    place, lines = f"file://{tmp_path}/copy", []
    for name, round_ in (("elsewhere", 3), ("run", 1)):
        (tmp_path / name).mkdir()
        save(Checkpoints(tmp_path / name), round_)
    Backup(tmp_path / "elsewhere", place, pytest.fail, Checkpoints(tmp_path / "elsewhere")).send()
    before, checkpoints = contents(place), Checkpoints(tmp_path / "run")
    backup = Backup(tmp_path / "run", place, lines.append, checkpoints)
    with pytest.raises(InputError, match=r"copy is further \(at 3\) than .*run \(at 1\), and stays as it is"):
        backup.send()
    assert contents(place) == before
    save(checkpoints, 3)
    backup.send()
    assert contents(place) == files(tmp_path / "run")


def test_of_two_runs_that_begin_at_once_one_has_the_copy(tmp_path):
    """Neither saw the other's when they began."""
    place, backups = f"file://{tmp_path}/copy", []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"id": name}))
        checkpoints = Checkpoints(tmp_path / name)
        save(checkpoints, 1)
        backups.append(Backup(tmp_path / name, place, pytest.fail, checkpoints))
    backups[0].send()
    before = contents(place)
    with pytest.raises(InputError, match=r"copy is the copy of another run than .*other: give another cluster\.backup"):
        backups[1].send()
    assert contents(place) == before
    backups[0].send()


def test_a_run_that_begins_within_the_first_copy_of_another(tmp_path, monkeypatch):
    """Before its index, which comes last: both wrote, and nobody's checkpoint was whole."""
    place, backups, write = f"file://{tmp_path}/copy", {}, object_store.write_bytes
    for value, name in enumerate(("one", "other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"id": name}))
        checkpoints = Checkpoints(tmp_path / name)
        checkpoints.save(1, {"state": {"w": torch.full((3,), float(value))}}, {})
        backups[name] = Backup(tmp_path / name, place, pytest.fail, checkpoints)

    def writing(where, data):
        write(where, data)
        if where.endswith("run.json") and json.loads(data)["id"] == "one":
            backups["other"].send()

    monkeypatch.setattr(object_store, "write_bytes", writing)
    with pytest.raises(InputError, match=r"is the copy of another run than .*one: give another cluster\.backup"):
        backups["one"].send()
    for again in range(2):  # the next rounds change nothing either
        copy = contents(place)
        assert json.loads(copy["run.json"])["id"] == "other"
        index = json.loads(copy["checkpoint/checkpoint.json"])
        for name, entry in index["files"].items():
            assert hashlib.sha256(copy[f"checkpoint/{name}"]).hexdigest() == entry["sha256"]
        save(Checkpoints(tmp_path / "one"), 2 + again)
        with pytest.raises(InputError, match="of another run than"):
            backups["one"].send()


def test_checkpoints_that_were_asked_for_stay(tmp_path):
    """A finished run that was resumed had two left."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"id": "x"}')
    checkpoints = Checkpoints(tmp_path / "run", kept=5)
    for round_ in range(1, 8):
        save(checkpoints, round_)
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    (tmp_path / "run" / "result.json").write_text("{}")
    update_backup(f"file://{tmp_path}/copy", tmp_path / "run", 5, pytest.fail)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir()) == before


def test_a_run_that_goes_on_has_no_result_in_its_copy(tmp_path):
    place = f"file://{tmp_path}/copy"
    (tmp_path / "run").mkdir()
    checkpoints = Checkpoints(tmp_path / "run")
    save(checkpoints, 1)
    (tmp_path / "run" / "result.json").write_text("{}")
    Backup(tmp_path / "run", place, pytest.fail, checkpoints).send()
    assert "result.json" in contents(place)
    (tmp_path / "run" / "result.json").unlink()
    save(checkpoints, 2)
    Backup(tmp_path / "run", place, pytest.fail, checkpoints).send()
    assert contents(place) == files(tmp_path / "run")


def test_an_error_without_words_is_an_error(tmp_path, monkeypatch):
    """As a MemoryError is: the copy is not complete."""
    lines = []

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(object_store, "sizes", full)
    (tmp_path / "run").mkdir()
    backup = Backup(tmp_path / "run", f"file://{tmp_path}/copy", lines.append, patience_s=0.0)
    assert not backup.close()
    assert lines[0].startswith("backup: MemoryError; the run goes on")


def test_a_copy_whose_index_names_a_part_that_is_gone_is_not_made(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(1, {"state": {"a": torch.ones(2)}}, {})
    next((tmp_path / "run/checkpoint").glob("state-*")).unlink()
    with pytest.raises(FileNotFoundError):
        Backup(tmp_path / "run", f"file://{tmp_path}/copy", print, checkpoints).send()
    assert not (tmp_path / "copy" / INDEX).exists()
