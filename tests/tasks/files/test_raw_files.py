"""Finding and opening raw files, and what is said when that fails."""

from __future__ import annotations

import errno
import gzip
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from anchorfl.tasks.contract import Source
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.archives import unpack
from anchorfl.tasks.files.raw_files import file_names, find_file, open_text, raw_folder, status, variants
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import TASKS, find_task

R8_FILES = ("r8-train-stemmed.txt", "r8-test-stemmed.txt")


def test_the_registry_keeps_its_names():
    assert [find_task(name).name for name in TASKS] == list(TASKS)


def test_an_unknown_task_is_named_with_the_nearest():
    with pytest.raises(InputError, match=r"no task 'digit' in .* \(did you mean 'digits'\?\); 'anchorfl data' lists"):
        find_task("digit")


def test_variants_choose_the_files():
    task = find_task("r8")
    assert file_names(task, TaskOptions()) == R8_FILES
    assert file_names(task, TaskOptions(variant="textgcn"))[0] == "r8-train-textgcn.txt"
    with pytest.raises(InputError, match=r"'stemed' is no variant of r8 \(did you mean 'stemmed'\?\)"):
        file_names(task, TaskOptions(variant="stemed"))
    with pytest.raises(InputError, match="is no variant of toy-single: it has none"):
        file_names(find_task("toy-single"), TaskOptions(variant="x"))


def test_files_are_found_in_root_then_below_then_in_the_data_folder(tmp_path, monkeypatch):
    task = find_task("r8")
    monkeypatch.setenv("ANCHORFL_DATA", str(tmp_path))
    (tmp_path / R8_FILES[0]).touch()
    (tmp_path / f"{R8_FILES[1]}.gz").touch()
    assert raw_folder(task, TaskOptions()) == tmp_path
    below = tmp_path / "reuters21578_r8"
    below.mkdir()
    (below / R8_FILES[0]).touch()
    assert raw_folder(task, TaskOptions()) == tmp_path  # below, one file is missing
    (below / R8_FILES[1]).touch()
    assert raw_folder(task, TaskOptions()) == below
    assert raw_folder(task, TaskOptions(root=str(tmp_path))) == tmp_path
    assert status(task, TaskOptions()).found


def test_missing_files_are_named_with_every_place_and_the_source(tmp_path, monkeypatch):
    task = find_task("r8")
    monkeypatch.setenv("ANCHORFL_DATA", str(tmp_path))
    with pytest.raises(InputError) as caught:
        raw_folder(task, TaskOptions())
    for part in (
        *R8_FILES,
        str(tmp_path),
        f"{tmp_path}/reuters21578_r8",
        "cachopo.org",
        "research purposes",
        "[task] root",
    ):
        assert part in str(caught.value)
    (tmp_path / R8_FILES[0]).touch()
    state = status(task, TaskOptions())
    assert (state.found, state.folder, state.missing) == (False, tmp_path, R8_FILES[1:])
    monkeypatch.delenv("ANCHORFL_DATA")
    gated = replace(task, source=Source(("a.csv",), "https://example.org", "some", gated=True))
    with pytest.raises(InputError, match=r"no a\.csv .*looked in nowhere.*access must be applied for"):
        raw_folder(gated, TaskOptions())
    with pytest.raises(InputError, match=r"no a\.csv or a\.csv\.gz there"):
        find_file(tmp_path, "a.csv")


def test_another_form_that_is_there_is_named(tmp_path, monkeypatch):
    """Whoever has the small images of PBC learns the option that takes them."""
    task = find_task("r8")
    monkeypatch.setenv("ANCHORFL_DATA", str(tmp_path))
    stemmed = TaskOptions(name="r8", variant="stemmed")
    other = next(name for name in variants(task) if name != "stemmed")
    for name in file_names(task, TaskOptions(name="r8", variant=other)):
        (tmp_path / name).touch()
    with pytest.raises(
        InputError, match=rf"Another form of the data is there: --task.variant {other}\. Or get the files"
    ):
        raw_folder(task, stemmed)


def test_bundled_tasks_need_no_folder():
    assert raw_folder(find_task("digits"), TaskOptions()) is None
    assert status(find_task("digits"), TaskOptions()).found


def test_plain_and_gzip_lines_are_equal(tmp_path):
    raw = "eins\r\nzw\u00f6lf\n\ndrei".encode()
    (tmp_path / "a.txt").write_bytes(raw)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(raw))
    lines = list(open_text(find_file(tmp_path, "a.txt")))
    assert lines == [(1, "eins"), (2, "zw\u00f6lf"), (3, ""), (4, "drei")]
    assert list(open_text(find_file(tmp_path, "b.txt"))) == lines


def test_damaged_files_are_named_with_the_line(tmp_path):
    path = tmp_path / "a.txt.gz"
    whole = gzip.compress(b"".join(b"line %d\n" % n for n in range(5000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"a\.txt\.gz:\d+: the gzip file is damaged or cut short"):
        list(open_text(path))
    path.write_bytes(b"no gzip at all")
    with pytest.raises(InputError, match=r"a\.txt\.gz:1: the gzip file is damaged"):
        list(open_text(path))
    damaged = bytearray(whole)
    damaged[200:260] = b"\xff" * 60
    path.write_bytes(bytes(damaged))
    with pytest.raises(InputError, match="damaged"):
        list(open_text(path))
    (tmp_path / "b.txt").write_bytes(b"good\nbad \xff\n")
    with pytest.raises(InputError, match=r"b\.txt:2: byte 5 of the line is no UTF-8"):
        list(open_text(tmp_path / "b.txt"))


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_unpacked_or_one_line(tmp_path, packing):
    path, rng = tmp_path / "a.zip", np.random.default_rng(0)
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name in ("one.txt", "two.txt"):
            archive.writestr(name, "words of a file " * 20)
    whole = path.read_bytes()
    said = []
    for number in range(150):
        changed = bytearray(whole)
        for place in rng.integers(0, len(whole), size=1 + number % 4):
            changed[place] = rng.integers(256)
        path.write_bytes(changed)
        try:
            unpack(path, tmp_path / "out", ["*.txt"])
        except InputError as error:
            said.append(str(error))
    assert len(said) > 50
    assert not [line for line in said if "\n" in line]


def test_a_full_disk_is_no_damage_of_an_archive(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("one.txt", "words")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left on device"):
        unpack(tmp_path / "a.zip", tmp_path / "out", ["*.txt"])
