"""Tables at an address, through a file system in memory in place of a store's."""

from __future__ import annotations

import io
import json
import stat
from importlib import import_module

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import remote_table
from anchorfl.tasks.files.remote_table import table_path
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.tabular.table import table_task

ADDRESS = "hf://datasets/owner/pets/data/train.parquet"


class Store(MemoryFileSystem):
    """Stands in for the file system of a hub."""

    protocol = "hf"
    store: dict = {}  # noqa: RUF012
    asked = 0

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("hf://").lstrip("/")

    def get_file(self, *arguments, **options):
        type(self).asked += 1
        return super().get_file(*arguments, **options)


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Store, "store", {})
    monkeypatch.setattr(Store, "asked", 0)
    monkeypatch.setitem(import_module("fsspec.registry")._registry, "hf", Store)
    return Store


def put(store, address, content):
    with store(skip_instance_cache=True).open(address, "wb") as stream:
        stream.write(content)


def parquet(columns, features=None):
    table = pa.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def picture(level, kind="PNG"):
    out = io.BytesIO()
    Image.new("L", (8, 8), level).save(out, kind)
    return out.getvalue()


def pets(labels):
    images = [{"bytes": picture(i * 5, "JPEG" if i % 2 else "PNG"), "path": None} for i in range(len(labels))]
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return parquet({"image": pa.array(images, kind), "label": pa.array(labels, pa.int64())}, features)


def test_images_and_class_names_of_a_hub(store):
    put(store, ADDRESS, pets([0, 1] * 19 + [-1, None]))
    options = TaskOptions(file=ADDRESS, label_columns="label", image_size=8)
    path = table_path(options)
    table = pq.read_table(path)
    assert table["label"].to_pylist() == ["cat", "dog"] * 19 + [None, None]
    assert table["image"].to_pylist()[:2] == ["images/image-0000000.png", "images/image-0000001.jpg"]
    assert (path.parent / "images/image-0000000.png").read_bytes() == picture(0)
    task = table_task(options)
    assert (task.name, task.class_names, task.payload) == ("table-train", ("cat", "dog"), "image")
    assert task.read(path.parent, options).num_rows == 40
    assert store.asked == 1, "once"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, "rows are for their owner alone"


def test_sounds_stay_as_they_are_and_images_of_columns_of_like_names_stay_apart(store):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    sounds = pa.array([{"bytes": b"RIFF", "path": "a.wav"}] * 2, kind)
    one, two = (pa.array([{"bytes": picture(level), "path": None}] * 2, kind) for level in (10, 200))
    columns = {"audio": sounds, "im-1": one, "im 1": two, "label": ["a", "b"]}
    features = {"audio": {"_type": "Audio"}, "im-1": {"_type": "Image"}, "im 1": {"_type": "Image"}}
    put(store, ADDRESS, parquet(columns, features))
    path = table_path(TaskOptions(file=ADDRESS))
    table = pq.read_table(path)
    assert table["audio"].to_pylist() == sounds.to_pylist()
    first, second = (table[name].to_pylist()[0] for name in ("im-1", "im 1"))
    assert first == "images/im-1-0000000.png"
    assert (path.parent / first).read_bytes() == picture(10)
    assert (path.parent / second).read_bytes() == picture(200)


def test_many_rows_are_written_in_few_groups(store):
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    put(store, ADDRESS, parquet({"x": list(range(3000)), "label": [0, 1] * 1500}, features))
    path = table_path(TaskOptions(file=ADDRESS))
    assert pq.ParquetFile(path).num_row_groups == 3
    assert pq.read_table(path)["label"].to_pylist() == ["cat", "dog"] * 1500


def test_notes_of_classes_over_texts_are_one_line(store):
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    put(store, ADDRESS, parquet({"label": ["cat", "dog"]}, features))
    with pytest.raises(InputError, match="column 'label' is of classes, by its notes, and holds string"):
        table_path(TaskOptions(file=ADDRESS))


def test_lists_of_classes(store):
    features = {"tags": {"feature": {"names": ["a", "b", "c"], "_type": "ClassLabel"}, "_type": "Sequence"}}
    put(store, ADDRESS, parquet({"x": [1.0, 2.0], "tags": [[0, 2], []]}, features))
    assert pq.read_table(table_path(TaskOptions(file=ADDRESS)))["tags"].to_pylist() == [["a", "c"], []]


@pytest.mark.parametrize("metadata", [None, "none of ours", {"x": 3}, {"x": {"names": 3, "_type": "ClassLabel"}}])
def test_another_table_stays_as_it_is(store, metadata):
    content = parquet({"x": [1.0, 2.0], "kind": ["a", "b"]}, metadata)
    put(store, ADDRESS, content)
    assert table_path(TaskOptions(file=ADDRESS)).read_bytes() == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pets([0, 7]), "column 'label' holds class 7, and names 2"),
        (b"no table", "train.parquet is no Parquet file"),
        (parquet({"image": [{"bytes": b"<svg>", "path": "a.svg"}]}), "row 1: column 'image' holds bytes"),
        (None, "no such file there"),
    ],
)
def test_a_fault_leaves_no_folder(store, tmp_path, content, message):
    if content is not None:
        put(store, ADDRESS, content)
    with pytest.raises(InputError, match=message):
        table_path(TaskOptions(file=ADDRESS))
    assert [p for p in (tmp_path / "cache" / remote_table.TABLES).iterdir() if not p.name.endswith(".lock")] == []


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://host/a.parquet", "no scheme 'ftp'; known: hf, az, abfs"),
        ("hf://datasets/owner/set/*.parquet", "the address of one file"),
        ("az://container/a.parquet?sig=secret", "without a key"),
        ("az://container/folder/", "the address of one file"),
        ("az://container/folder/..", "the address of one file"),
    ],
)
def test_what_is_no_address(store, address, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        table_path(TaskOptions(file=address))


def test_a_library_that_is_not_installed(store, monkeypatch):
    def lacking(*_, **__):
        raise ImportError("Install adlfs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", lacking)
    with pytest.raises(InputError, match=r"pip install 'anchorfl\[azure\]'"):
        table_path(TaskOptions(file="abfs://container@account.dfs.core.windows.net/a.parquet"))


def test_a_store_that_does_not_answer(store, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no route\nto host")

    monkeypatch.setattr(Store, "get_file", broken)
    with pytest.raises(InputError, match=r"cannot be read \(RuntimeError: no route\)"):
        table_path(TaskOptions(file=ADDRESS))
