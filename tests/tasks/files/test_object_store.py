"""Places: the same verbs on a disk and on object storage, errors that say what to do, and files that are whole."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import types
from pathlib import Path

import pyarrow
import pytest

from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store


@pytest.fixture(params=["path", "file", "s3", "query"])
def location(request, tmp_path, monkeypatch):
    """Return an empty place of every kind; ``query``: an S3 endpoint that the address names itself."""
    if request.param == "path":
        return str(tmp_path / "some where")
    if request.param == "file":
        return f"file://{tmp_path}/some%20where"
    bucket = request.getfixturevalue("s3")
    if request.param == "s3":
        return f"{bucket}/some%20where"
    endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    return f"{bucket}/some%20where?endpoint_override={endpoint}&scheme=http"


def test_the_same_verbs_everywhere(location):
    assert object_store.sizes(location) == {}
    assert not object_store.exists(object_store.join(location, "a"))
    contents = {"a": b"1", "deep/er/b c%20=ü.txt": b"22", "empty": b"", "big": bytes(12 << 20)}
    for name, data in contents.items():
        object_store.write_bytes(object_store.join(location, *name.split("/", 1)), data)
    assert object_store.sizes(location) == {name: len(data) for name, data in contents.items()}
    assert {name: object_store.read_bytes(object_store.join(location, name)) for name in contents} == contents
    assert object_store.exists(object_store.join(location, "a"))
    assert not object_store.exists(object_store.join(location, "deep"))  # a folder is no file
    assert object_store.sizes(object_store.join(location, "deep")) == {"er/b c%20=ü.txt": 2}
    object_store.write_bytes(object_store.join(location, "a"), b"333")
    assert object_store.read_bytes(object_store.join(location, "a")) == b"333"
    for name in ("deep/er/b c%20=ü.txt", "a", "a"):  # what is gone is gone
        object_store.delete(object_store.join(location, name))
    assert set(object_store.sizes(location)) == {"empty", "big"}
    with pytest.raises(FileNotFoundError):
        object_store.read_bytes(object_store.join(location, "a"))


def test_what_only_looks_like_a_key_is_none():
    for location in (
        "s3://bucket/a:b@c/d",
        "s3://anonymous@bucket/x",
        "file:///a/b:c@d",
        "/a/b:c@d",
        "s3://b/x?k=a:b@c",
    ):
        object_store.check_location(location, "cluster.backup")
    assert object_store.shown("s3://bucket/a:b@c/d") == "s3://bucket/a:b@c/d"
    assert object_store.shown("s3://anonymous@bucket/x") == "s3://bucket/x"


def test_names():
    assert object_store.join("s3://b", "x", "y z") == "s3://b/x/y%20z"
    assert object_store.join("s3://b/x/?region=eu", "y") == "s3://b/x/y?region=eu"
    assert object_store.join("file:///a", "b/c") == "file:///a/b/c"
    assert object_store.join("/a", "b", "c") == "/a/b/c"
    assert [object_store.last_name(p) for p in ("s3://b/x/y%20z/?region=eu", "/a/b/", "gs://b/c")] == ["y z", "b", "c"]


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3://AKIAXX:sesame@bucket/x", r"holds a key.*leave keys to the environment .*s3://bucket"),
        ("S3://sesame@bucket/x", "holds a key"),
        ("s3://AKIAXX:sesame/open+me@bucket/x", r"holds a key.* give s3://bucket/x\Z"),
        ("s3://AKIAXX:a/sesame@b@bucket/x", r"holds a key.* give s3://bucket/x\Z"),
        ("http://host/x", "no scheme 'http'; known: s3, gs, file"),
        ("s3:///x", "must look like s3://bucket/folder"),
        ("file://tmp/x", "must look like file:///folder"),
        ("some/folder", "give s3://bucket/folder, gs://bucket/folder or an absolute path"),
    ],
)
def test_bad_locations(location, message):
    with pytest.raises(InputError, match=message) as caught:
        object_store.check_location(location, "cluster.backup")
    assert str(caught.value).startswith("cluster.backup")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("location", ["/a/b", "s3://bucket", "s3://b/x?region=eu", "gs://anonymous@b/x", "file:///a"])
def test_good_locations(location):
    object_store.check_location(location, "cluster.backup")


VERBS = {
    "sizes": object_store.sizes,
    "write": lambda location: object_store.write_bytes(object_store.join(location, "x"), b"1"),
    "delete": lambda location: object_store.delete(object_store.join(location, "x")),
    "read": lambda location: object_store.read_bytes(object_store.join(location, "x")),
    "exists": lambda location: object_store.exists(object_store.join(location, "x")),
}


@pytest.mark.parametrize("verb", ["sizes", "write"])
def test_no_bucket(s3, verb):
    with pytest.raises(
        InputError, match=r"^s3://nobody-has-it/x.*: there is no such bucket: make it or correct"
    ) as got:
        VERBS[verb]("s3://nobody-has-it/x")
    assert "\n" not in str(got.value)
    assert "Request ID" not in str(got.value)


@pytest.mark.parametrize("verb", VERBS)
def test_no_permission(s3, verb):
    """The server lets everything through until it is told to look at keys; ours is unknown to it."""
    import requests

    server = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
    assert requests.post(server, data=b"0", timeout=10).status_code == 200
    try:
        with pytest.raises(InputError, match=r"^s3://.*: no permission: give this machine credentials") as caught:
            VERBS[verb](f"{s3}/x")
    finally:
        requests.post(server, data=b"inf", timeout=10)
    assert "sesame" not in str(caught.value)
    assert "someone" not in str(caught.value)


def test_no_network(s3, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(
            InputError, match=r"^s3://.*/x: no answer: look at the network, the region and AWS_ENDPOINT"
        ):
            object_store.read_bytes(f"{s3}/x")


def test_a_file_that_is_replaced_meanwhile_is_read_whole(tmp_path, monkeypatch):
    """pyarrow reads as many bytes as there were when it asked for the size."""
    location = f"file://{tmp_path}/x"
    object_store.write_bytes(location, b"the new and longer content")
    opened, reads = object_store._open_store, [b"the new", b"the new and longer content"]

    @contextlib.contextmanager
    def stale(where):
        with opened(where) as (system, path):
            stream = lambda _: pyarrow.BufferReader(reads.pop(0))  # noqa: E731
            yield types.SimpleNamespace(open_input_stream=stream, get_file_info=system.get_file_info), path

    monkeypatch.setattr(object_store, "_open_store", stale)

    assert object_store.read_bytes(location) == b"the new and longer content"
    reads += [b"the new"] * object_store.READS
    with pytest.raises(InputError, match=r"^file://.*/x changes while it is read: end what writes it"):
        object_store.read_bytes(location)


def test_a_file_is_fetched_once_however_many_ask(s3, tmp_path, monkeypatch):
    location, path, asked = f"{s3}/data", tmp_path / "here" / "data", []
    object_store.write_bytes(location, b"content")
    real = object_store.read_bytes

    def slow(where):
        asked.append(where)
        time.sleep(0.2)
        return real(where)

    monkeypatch.setattr(object_store, "read_bytes", slow)
    threads = [threading.Thread(target=object_store.download, args=(location, path)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == [location]
    assert path.read_bytes() == b"content"
    assert {p.name for p in path.parent.iterdir()} == {"data", ".data.lock"}


def test_a_file_with_another_checksum_is_refused(tmp_path):
    object_store.write_bytes(f"file://{tmp_path}/there", b"content")
    with pytest.raises(InputError, match=r"there does not have the checksum that its manifest states: delete .*/here"):
        object_store.download(f"file://{tmp_path}/there", tmp_path / "here" / "x", sha256="0" * 64)
    assert not (tmp_path / "here" / "x").exists()


def test_a_draft_is_no_file(tmp_path):
    """Drafts that a kill leaves on a disk are not listed."""
    (Path(tmp_path) / ".a-1-ff.tmp").write_bytes(b"half")
    assert object_store.sizes(f"file://{tmp_path}") == {}
