"""A file is on the disk before it takes its name, and its name before anybody is told that it was written."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from anchorfl.pipeline.storage.atomic_files import read_json, write_atomically, write_json


def test_file_and_folder_are_synced_around_the_rename(tmp_path, monkeypatch):
    done, path = [], tmp_path / "x.json"
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        done.append(("sync", os.fstat(handle).st_ino))
        fsync(handle)

    def renamed(draft, target):
        done.append(("rename", os.stat(draft).st_ino))
        replace(draft, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomically(path, b"text")
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert done == [("sync", file), ("rename", file), ("sync", folder)]
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "x.json"
    assert read_json(path) == {}
    for content in ({"a": [1, 2]}, {"b": None}):
        write_json(path, content)
        assert read_json(path) == content


def test_two_threads_write_one_file(tmp_path):
    """A run that ends, and the watch that closes its record because its Ray died."""
    path = tmp_path / "x.json"

    def write(number):
        for _ in range(50):
            write_json(path, {"number": number, "text": "x" * 10_000})
            assert len(read_json(path)["text"]) == 10_000

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write, range(2))) == [None, None]
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_link_or_a_pipe_in_a_drafts_place_is_an_error(tmp_path):
    """In a folder of somebody else it may lead to any file of this user."""
    own = tmp_path / "own"
    own.write_text("mine")
    for number, make in enumerate((lambda path: path.symlink_to(own), os.mkfifo)):
        make(tmp_path / f".{number}.csv.tmp")
        with pytest.raises(OSError, match=rf"\.{number}\.csv\.tmp"):
            write_atomically(tmp_path / f"{number}.csv", b"theirs")
        assert not (tmp_path / f"{number}.csv").exists()
    assert own.read_text() == "mine"
