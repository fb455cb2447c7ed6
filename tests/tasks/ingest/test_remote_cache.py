"""Prepared data on object storage: made once for all machines, and each file on a machine that needs it, once."""

from __future__ import annotations

import dataclasses
import re
import stat
from pathlib import Path

import pytest

from anchorfl.pipeline.run.lifecycle import run
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files import object_store
from anchorfl.tasks.ingest import ingest
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.ingest.rows_files import Extent, footer_start
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.partition.plan import plan_digest
from anchorfl.tasks.registry import find_task
from tests.processes import MAIN, python


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Go to a machine by its name: another cache folder."""

    def go(name: str) -> Path:
        monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / name))
        return tmp_path / name

    go("first")
    return go


def shared(cache: str, log=lambda _: None) -> Prepared:
    task = find_task("toy-single")
    return prepare(task, TaskOptions(name=task.name, clients=3, cache=cache), 0, engine="local", log=log)


def test_prepared_once_for_all_machines(s3, machine, monkeypatch):
    lines = []
    first = shared(f"{s3}/cache", lines.append)
    name = object_store.last_name(first.location)
    assert first.location == f"{s3}/cache/{name}"
    assert lines[-1] == f"toy-single: prepared data written to {first.location}"
    there = {
        n: object_store.read_bytes(object_store.join(first.location, n)) for n in object_store.sizes(first.location)
    }
    assert there.keys() == {"manifest.json", *first.manifest.files}

    here = machine("second")
    monkeypatch.setattr(ingest, "read_rows", lambda *_: pytest.fail("prepared again"))
    second = shared(f"{s3}/cache", lines.append)
    assert lines[-1] == f"toy-single: prepared data found in {first.location}"
    assert second.manifest == first.manifest
    assert second.folder != first.folder
    files = lambda: {path.name for path in here.rglob("*") if path.is_file() and not path.name.startswith(".")}  # noqa: E731
    account = {"manifest.json", "clients.parquet", "extents.parquet"}
    assert files() == account
    data, expected = (p.client(1, Objective("single")) for p in (second, first))
    assert (data.x == expected.x).all()
    assert len(second.cards()) == 3
    starts = [Extent.of(first.manifest.extents, owner).offset for owner in range(4)]
    footer = footer_start(first.manifest.extents, 0)
    parts = {f"rows-00000.parquet.{start}" for start in (starts[1], footer)}
    assert files() == account | parts  # no other client's
    second.split("test", Objective("single"))
    assert plan_digest(second.plan()) == plan_digest(first.plan())
    assert files() == account | parts | {f"rows-00000.parquet.{starts[3]}", "partition.parquet"}
    for part in parts:
        start = int(part.rpartition(".")[2])
        assert there["rows-00000.parquet"][start:].startswith((Path(second.folder) / part).read_bytes())


def test_each_file_is_asked_for_once(s3, machine, monkeypatch):
    location = shared(f"{s3}/cache").location
    machine("second")
    asked, whole, part = [], object_store.read_bytes, object_store.read_part
    monkeypatch.setattr(object_store, "read_bytes", lambda p: asked.append(object_store.last_name(p)) or whole(p))
    monkeypatch.setattr(
        object_store, "read_part", lambda p, *at: asked.append((object_store.last_name(p), *at)) or part(p, *at)
    )
    for _ in range(3):  # as several actors of one machine do
        Prepared.load(location).client(0, Objective("single"))
    extents = Prepared.load(location).manifest.extents
    rows = [("rows-00000.parquet", footer_start(extents, 0), -1), ("rows-00000.parquet", 0, extents["size"][0].as_py())]
    assert asked == ["manifest.json", "clients.parquet", "extents.parquet", *rows]


def test_the_manifest_comes_last(tmp_path, machine, monkeypatch):
    """A kill before it leaves nothing that anybody would take for prepared data."""
    order, real = [], object_store.write_bytes

    def killed(location, data):
        if location.endswith("manifest.json"):
            raise KeyboardInterrupt
        order.append(object_store.last_name(location))
        real(location, data)

    cache = f"file://{tmp_path}/shared"
    monkeypatch.setattr(object_store, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        shared(cache)
    names = ["class_counts.parquet", "clients.parquet", "extents.parquet", "partition.parquet", "rows-00000.parquet"]
    assert sorted(order) == names
    monkeypatch.undo()
    machine("second")
    lines = []
    shared(cache, lines.append)
    assert "written to" in lines[-1]


def test_a_damaged_or_missing_file_is_named(tmp_path, machine):
    location = shared(f"file://{tmp_path}/shared").location
    folder = Path(location.removeprefix("file://"))
    machine("second")
    (folder / "rows-00000.parquet").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"rows-00000\.parquet does not have the checksum that its manifest states"):
        Prepared.load(location).client(2, Objective("single"))
    (folder / "rows-00000.parquet").unlink()
    with pytest.raises(InputError, match=r"^file://.*: rows-00000\.parquet is missing; delete the folder"):
        Prepared.load(location).client(2, Objective("single"))
    with pytest.raises(InputError, match=r"^file://.*: rows-00000\.parquet is missing; delete the folder"):
        shared(f"file://{tmp_path}/shared")
    machine("third")
    with pytest.raises(InputError, match=r"holds no complete prepared data"):
        Prepared.load(f"file://{tmp_path}/elsewhere")


def test_a_cache_folder_of_this_machine_is_no_address(s3, monkeypatch):
    monkeypatch.setenv("ANCHORFL_CACHE", s3)
    with pytest.raises(InputError, match=r"must be a folder of this machine; give the address as task.cache"):
        shared(f"{s3}/cache")


def test_a_run_gives_the_same_bits(experiment, finished_run, s3, tmp_path, machine):
    """With a local cache, prepared here, and prepared elsewhere."""
    e = experiment("fedalign")
    sums = [finished_run(e).checksum]
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, cache=f"{s3}/cache"))
    for name in ("second", "third"):
        machine(name)
        sums.append(run(e, tmp_path / f"run-{name}", str.strip).checksum)
    assert len(set(sums)) == 1


@pytest.mark.ray
def test_actors_read_from_object_storage(experiment, finished_run, s3, tmp_path, machine):
    """A Ray of its own on a machine that has prepared nothing: every actor brings its own files, and the bits are those
    of a run in one process.
    """
    e = experiment("fedalign")
    expected = finished_run(e).checksum
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, cache=f"{s3}/cache"))
    assert run(e, tmp_path / "serial", str.strip).checksum == expected  # fills the bucket
    here = machine("second")
    from anchorfl.pipeline.config.schema import to_toml

    (tmp_path / "toy.toml").write_text(to_toml(e))
    words = ["run", "toy.toml", "--cluster.executor", "ray", "--cluster.clients_per_actor", "2"]
    done = python(MAIN, tmp_path, *words, ANCHORFL_CACHE=str(here))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"weights sha256 (\w+)", done.stdout) == [expected]
    assert "prepared data found in s3://" in done.stdout
    (fetched,) = (path for path in here.iterdir() if path.is_dir())
    assert "-fetched-" in fetched.name
    assert stat.S_IMODE(fetched.stat().st_mode) == 0o700, "rows are for their owner alone"
    assert {path.name for path in fetched.glob("*.parquet")} >= {"clients.parquet", "extents.parquet"}
    assert len(list(fetched.glob("rows-00000.parquet.*"))) > 4, "a footer and the rows of clients and splits"
