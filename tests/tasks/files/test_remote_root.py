"""Raw files at an address: the data that the same files give here, brought once, and again where they change."""

from __future__ import annotations

import stat
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store, remote_root
from anchorfl.tasks.files.remote_root import root_of
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of


@pytest.fixture
def photos(tmp_path):
    """Make a table with images in a folder of their own."""
    folder, rng = tmp_path / "raw", np.random.default_rng(0)
    (folder / "shots").mkdir(parents=True)
    lines = ["image,kind"]
    for i in range(40):
        Image.fromarray(rng.integers(0, 90 * (1 + i % 2), (9, 9), np.uint8)).save(folder / f"shots/{i}.png")
        lines.append(f"shots/{i}.png,{'ab'[i % 2]}")
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder


def upload(folder, address):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            object_store.write_bytes(object_store.join(address, name), path.read_bytes())


OPTIONS = TaskOptions(file="t.csv", label_columns="kind", image_size=8, clients=2, classes_per_client=1)


def test_the_data_are_those_of_a_folder_here(photos, s3, monkeypatch):
    upload(photos, f"{s3}/raw")
    read, asked = object_store.read_bytes, []
    monkeypatch.setattr(object_store, "read_bytes", lambda where: asked.append(where) or read(where))
    there, here = (replace(OPTIONS, root=root) for root in (f"{s3}/raw", str(photos)))
    prepared = [prepare(task_of(options), options, 1, engine="local") for options in (there, here)]
    assert prepared[0].folder == prepared[1].folder
    assert prepared[0].manifest.data_digest == prepared[1].manifest.data_digest
    assert len(asked) == 41, "each file once"
    assert not [path for path in root_of(there).rglob("*") if path.name.endswith(".lock")]
    assert stat.S_IMODE(root_of(there).stat().st_mode) == 0o700, "rows are for their owner alone"


def test_what_changes_there_is_brought_again(photos, s3, monkeypatch):
    monkeypatch.setattr(remote_root, "AGAIN_S", 0.0)
    address = f"{s3}/raw"
    upload(photos, address)
    options = replace(OPTIONS, root=address)
    first = prepare(task_of(options), options, 1, engine="local").folder
    time.sleep(1.1)  # a store's times are seconds
    text = (photos / "t.csv").read_text()
    object_store.write_bytes(f"{address}/t.csv", text.replace("0.png,a", "0.png,b", 1).encode())
    object_store.delete(f"{address}/shots/39.png")
    folder = root_of(options)
    assert (folder / "t.csv").read_text() != text
    assert not (folder / "shots/39.png").exists()
    with pytest.raises(InputError, match=r"shots/39\.png"):
        prepare(task_of(options), options, 1, engine="local")
    object_store.write_bytes(f"{address}/shots/39.png", (photos / "shots/39.png").read_bytes())
    assert prepare(task_of(options), options, 1, engine="local").folder != first


def test_a_data_set_of_several_files(made_up, s3, tmp_path):
    folder = made_up("yeast", 120, 1)
    upload(folder, f"{s3}/yeast")
    there, here = (TaskOptions(name="yeast", root=root, clients=5) for root in (f"{s3}/yeast", str(folder)))
    both = {prepare(task_of(options), options, 1, engine="local").folder for options in (there, here)}
    assert len(both) == 1


def test_names_that_would_leave_the_folder_are_refused(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "listing", lambda root: {"a.csv": (1, 1), "x/../../evil": (1, 1)})
    with pytest.raises(InputError, match=r"x/\.\./\.\./evil' is no name of a file of this folder"):
        root_of(TaskOptions(root=f"{s3}/raw"))


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("s4://bucket/x", "no scheme 's4'"),
        ("s3://KEY:SECRET@bucket/x", "task.root holds a key"),
        ("s3://no-such-bucket-anywhere/x", "no-such-bucket-anywhere"),
    ],
)
def test_an_address_that_is_none(s3, root, said):
    with pytest.raises(InputError, match=said):
        root_of(TaskOptions(root=root))


def test_an_empty_place_lacks_the_files(s3):
    options = replace(OPTIONS, root=f"{s3}/nothing")
    with pytest.raises(InputError, match=r"t\.csv"):
        prepare(task_of(options), options, 1, engine="local")
