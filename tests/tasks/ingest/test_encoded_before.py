"""Photos that another seed has decoded: they are not decoded again, and what is prepared is the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchorfl.tasks.images import pixels
from anchorfl.tasks.ingest import encoded_before
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of

PHOTOS = 40


@pytest.fixture
def photos(tmp_path):
    """Options of a folder of made-up photos of two classes."""
    rng = np.random.default_rng(0)
    for number in range(PHOTOS):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(path)
    return TaskOptions(
        name="table-photos", file=str(tmp_path / "photos"), image_size=8, clients=2, partition="iid", min_positives=1
    )


@pytest.fixture
def decoded(monkeypatch):
    """The paths that are decoded."""
    paths, real = [], pixels._decode
    monkeypatch.setattr(pixels, "_decode", lambda path: paths.append(path) or real(path))
    return paths


def made(options, cache, seed, **change):
    options, said = replace(options, cache=str(cache), **change), []
    data = prepare(task_of(options), options, seed, engine="local", log=said.append)
    return {path.name: path.read_bytes() for path in Path(data.folder).iterdir()}, "\n".join(said)


def test_the_second_seed_decodes_nothing_and_has_the_bytes_of_the_first_way(photos, decoded, tmp_path):
    made(photos, tmp_path / "cache", 1)
    assert len(decoded) == PHOTOS
    for change in ({}, {"partition": "dirichlet", "validation": 0.3}):
        decoded.clear()
        got, said = made(photos, tmp_path / "cache", 2, **change)
        assert not decoded
        assert f"{PHOTOS} encoded rows found in " in said
        expected, _ = made(photos, tmp_path / f"alone{len(change)}", 2, **change)
        assert len(decoded) == PHOTOS
        assert got == expected


def test_another_size_another_file_or_another_row_is_decoded(photos, decoded, tmp_path):
    made(photos, tmp_path / "cache", 1)
    decoded.clear()
    made(photos, tmp_path / "cache", 1, image_size=6)
    assert len(decoded) == PHOTOS
    decoded.clear()
    (tmp_path / "photos" / "cat" / "0.png").write_bytes((tmp_path / "photos" / "cat" / "2.png").read_bytes())
    made(photos, tmp_path / "cache", 2)
    assert len(decoded) == PHOTOS
    decoded.clear()
    (tmp_path / "photos" / "cat" / "2.png").rename(tmp_path / "photos" / "cat" / "99.png")
    made(photos, tmp_path / "cache", 3)
    assert len(decoded) == PHOTOS


def test_rows_that_nobody_had_there_are_decoded(photos, decoded, tmp_path):
    """As where the other partition left rows out: here every second."""
    made(photos, tmp_path / "cache", 1)
    decoded.clear()
    with pytest.MonkeyPatch.context() as patch:
        real = encoded_before._inputs
        patch.setattr(encoded_before, "_inputs", lambda data: tuple(part[::2] for part in real(data)))
        _, said = made(photos, tmp_path / "cache", 2)
    assert len(decoded) == PHOTOS
    assert "encoded rows found" not in said


def test_damaged_data_and_too_many_are_passed_over(photos, decoded, tmp_path, monkeypatch):
    made(photos, tmp_path / "cache", 1)
    monkeypatch.setattr(encoded_before, "LARGEST", 100)
    decoded.clear()
    made(photos, tmp_path / "cache", 2)
    assert len(decoded) == PHOTOS
    monkeypatch.undo()
    files = list((tmp_path / "cache").rglob("rows-*.parquet"))
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 1
        file.write_bytes(data)
    _, said = made(photos, tmp_path / "cache", 3)
    assert "encoded rows found" not in said


def test_numbers_and_texts_are_encoded_anew(tmp_path):
    """Their form depends on the training rows, and to encode them takes no longer than to read them."""
    options = TaskOptions(name="digits", clients=2, partition="iid")
    for seed in (1, 2):
        _, said = made(options, tmp_path, seed)
        assert "encoded rows found" not in said
