"""A table of the user's own whose rows name images."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.bad_rows import skipped
from anchorfl.tasks.files.raw_files import status
from anchorfl.tasks.ingest.raw_digest import raw_digest, raw_files
from tests.tasks.own_tables import csv, parquet, table


def test_images_are_found_beside_the_file(tmp_path):
    (tmp_path / "pictures").mkdir()
    for i in range(12):
        Image.fromarray(np.full((9, 9, 3), 20 * i, np.uint8)).save(tmp_path / "pictures" / f"{i}.png")
    columns = {"file": [f"pictures/{i}.png" for i in range(12)], "kind": ["a", "b"] * 6}
    task, raw, options = table(parquet(tmp_path, columns), image_size=4)
    spec = task.fit(raw, options)
    assert (spec.kind, spec.shape, spec.levels, task.payload) == ("image", (3, 4, 4), 255, "image")
    assert task.encode(raw, spec)["x"].to_pylist()[3] == [60] * 48
    (tmp_path / "pictures" / "7.png").write_text("no image")
    with pytest.raises(InputError, match=r"row 8: image .*7\.png: it is no image of a known format"):
        table(parquet(tmp_path, columns))
    short = tmp_path / "pictures" / "9.png"
    short.write_bytes(short.read_bytes()[:-30])  # its header is good
    _, raw, _ = table(parquet(tmp_path, columns), on_bad_row="skip")
    count, messages = skipped(raw)
    assert count == 2
    assert [m.split(": ")[1] for m in messages] == ["row 8", "row 10"]
    assert raw.num_rows == 10


def test_images_outside_of_the_folder_are_not_read(tmp_path):
    """A table from others puts none of the user's other images into the prepared data."""
    inner = tmp_path / "mine" / "table"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        for i in range(12):
            Image.fromarray(np.full((9, 9, 3), 20 * i, np.uint8)).save(folder / f"{i}.png")
    (inner / "link.png").symlink_to("../0.png")
    (inner / "linked").symlink_to("..")
    (inner / "round.png").symlink_to("round.png")
    (inner / "near.png").symlink_to("0.png")
    good = [str(inner / "0.png"), "../table/1.png", "near.png", *(f"{i}.png" for i in range(3, 12))]
    for bad in (str(inner.parent / "2.png"), "../2.png", "link.png", "linked/2.png"):
        path = parquet(inner, {"file": [*good[:2], bad, *good[3:]], "kind": ["a", "b"] * 6})
        with pytest.raises(InputError, match=rf"t\.parquet: row 3: column 'file': .*{bad} lies outside of .*; put it"):
            table(path)
        task, raw, options = table(path, on_bad_row="skip")
        assert raw["row"].to_pylist() == [0, 1, *range(3, 12)]
        assert [name for name, _ in raw_files(task, options, inner)] == ["t.parquet", *sorted([*good[:2], *good[3:]])]
    for bad in ("round.png", "\0.png", "x" * 300 + ".png"):
        with pytest.raises(InputError, match=r"row 3: image "):
            table(parquet(inner, {"file": [*good[:2], bad, *good[3:]], "kind": ["a", "b"] * 6}))
    _, raw, _ = table(parquet(inner, {"file": good, "kind": ["a", "b"] * 6}))
    assert raw.num_rows == 12


def test_images_are_part_of_the_digest(tmp_path):
    """Those that rows name, each once, and no others; spaces around a path are none of it."""
    for i in range(12):
        Image.fromarray(np.full((9, 9, 3), 20 * i, np.uint8)).save(tmp_path / f"{i}.png")
    path = csv(tmp_path, "file,kind\n" + "".join(f" {i % 10}.png ,{'ab'[i % 2]}\n" for i in range(20)))
    task, raw, options = table(path, image_size=4, cache=str(tmp_path / "cache"))
    assert raw.num_rows == 20
    assert [name for name, _ in raw_files(task, options, tmp_path)] == ["t.csv", *(f"{i}.png" for i in range(10))]
    before = raw_digest(task, options, tmp_path)
    (tmp_path / "11.png").write_bytes((tmp_path / "1.png").read_bytes())
    assert raw_digest(task, options, tmp_path) == before
    (tmp_path / "3.png").write_bytes((tmp_path / "1.png").read_bytes())
    assert raw_digest(task, options, tmp_path) != before
    assert status(task, options).found
