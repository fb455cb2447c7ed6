"""Preparation from raw rows: both engines, the cache, races and errors."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anchorfl.tasks.arrays.chunks import Chunks
from anchorfl.tasks.contract import InputSpec, Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest import encoding, ingest, rows_files
from anchorfl.tasks.ingest.cache_folder import cache_folder
from anchorfl.tasks.ingest.destination import Destination
from anchorfl.tasks.ingest.encoding import Encoding
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.raw_digest import raw_digest
from anchorfl.tasks.ingest.reader_digest import reader_digest
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task

FEDERATIONS = [
    ("toy-single", {"clients": 4, "classes_per_client": 2}),
    ("toy-multi", {"clients": 3, "partition": "dirichlet", "validation": 0.0}),
    ("toy-single", {"clients": 2, "partition": "iid"}),
    ("digits", {"clients": 5, "classes_per_client": 5}),
]


def contents(prepared):
    """Return every file of a prepared folder by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(prepared.folder).iterdir())}


@pytest.mark.parametrize(("name", "options"), FEDERATIONS)
def test_local_twice_gives_the_same_bytes(tmp_path, name, options):
    made = [
        prepare(find_task(name), TaskOptions(name=name, cache=str(tmp_path / n), **options), 3, engine="local")
        for n in "ab"
    ]
    assert contents(made[0]) == contents(made[1])
    assert sum(made[0].manifest.examples) + made[0].manifest.test + made[0].manifest.validation in (240, 1797)
    assert [path.name for path in (tmp_path / "a").iterdir()] == [Path(made[0].folder).name]  # nothing left over


@pytest.mark.parametrize(("name", "options"), FEDERATIONS)
def test_a_table_in_many_pieces_gives_the_same_bytes(tmp_path, monkeypatch, name, options):
    """As tables beyond a gigabyte are."""
    task, options = find_task(name), TaskOptions(name=name, **options)
    whole = prepare(task, replace(options, cache=str(tmp_path / "whole")), 3, engine="local")
    monkeypatch.setattr(ingest, "Chunks", SimpleNamespace(of=lambda table: Chunks.of(table, 2000)))
    assert contents(prepare(task, replace(options, cache=str(tmp_path / "cut")), 3, engine="local")) == contents(whole)


@pytest.mark.parametrize(("name", "options"), FEDERATIONS)
def test_rows_that_are_written_in_several_groups_are_the_same(tmp_path, monkeypatch, name, options):
    """As those of a split of two gigabytes are, of which one group is held at a time; also where several come along."""
    task, options = find_task(name), TaskOptions(name=name, **options)
    whole = prepare(task, replace(options, cache=str(tmp_path / "whole")), 3, engine="local")
    row_bytes = rows_files.FILE_BYTES // rows_files.rows_of_bytes(rows_files.FILE_BYTES, whole.manifest.spec)
    monkeypatch.setattr(encoding, "GROUP_BYTES", 7 * row_bytes)
    cut = prepare(task, replace(options, cache=str(tmp_path / "cut")), 3, engine="local")
    assert cut.manifest.data_digest == whole.manifest.data_digest
    groups = cut.manifest.extents["groups"].to_pylist()
    sizes = [*cut.manifest.examples, cut.manifest.test, cut.manifest.validation]
    assert groups == [max(1, -(-size // 7)) for size in sizes]
    for owner in range(len(groups)):
        assert cut.rows(owner).equals(whole.rows(owner))


@pytest.mark.parametrize(("name", "options"), FEDERATIONS)
def test_however_many_owners_a_file_has_their_rows_are_the_same(tmp_path, monkeypatch, name, options):
    """Every owner is read without the others, from a file of one, of two, or of all; and the data have one digest."""
    task, options, made = find_task(name), TaskOptions(name=name, **options), []
    for owners in (1, 2, 256):
        monkeypatch.setattr(rows_files, "OWNERS", owners)
        made.append(prepare(task, replace(options, cache=str(tmp_path / f"{owners}")), 3, engine="local"))
    number = len(made[0].manifest.extents)
    assert [len(list(Path(data.folder).glob("rows-*"))) for data in made] == [number, -(-number // 2), 1]
    for owner in range(number):
        assert made[0].rows(owner).equals(made[1].rows(owner))
        assert made[0].rows(owner).equals(made[2].rows(owner))
    assert len({data.manifest.data_digest for data in made}) == 1


def test_a_file_ends_where_it_has_bytes_enough(monkeypatch):
    spec = InputSpec("image", (1, 2, 2), levels=255)
    others = [InputSpec("tokens", (4,)), InputSpec("series", (2, 2)), InputSpec("sparse", (4,))]
    assert [rows_files.rows_of_bytes(40, of) for of in (spec, *others)] == [10, 2, 2, 1]
    monkeypatch.setattr(rows_files, "FILE_BYTES", 40)  # 10 rows
    sizes = np.array([3, 0, 7, 1, 25, 0, 4, 6, 1])
    assert rows_files.first_owners(sizes, spec).tolist() == [0, 3, 4, 5, 8, 9]
    monkeypatch.setattr(rows_files, "OWNERS", 2)
    assert rows_files.first_owners(sizes, spec).tolist() == [0, 2, 4, 5, 7, 9]
    assert rows_files.first_owners(np.array([0, 0, 0]), spec).tolist() == [0, 2, 3]


def test_a_process_that_does_not_see_the_folder_gives_the_bytes(tmp_path, monkeypatch):
    """As a worker with another disk does; and the folder of another preparation is not taken for it."""
    task, options = find_task("toy-single"), TaskOptions(name="toy-single", clients=3)
    here = prepare(task, replace(options, cache=str(tmp_path / "here")), 0, engine="local")
    monkeypatch.setattr(Destination, "is_here", lambda self: False)
    away = prepare(task, replace(options, cache=str(tmp_path / "away")), 0, engine="local")
    assert contents(away) == contents(here)
    monkeypatch.undo()
    ours = Destination.of(str(tmp_path))
    assert ours.is_here()
    assert not Destination(str(tmp_path / "elsewhere"), ours.builder).is_here()
    Destination.of(str(tmp_path))
    assert not ours.is_here()


def test_rows_or_labels_that_get_lost_are_noticed(tmp_path, monkeypatch):
    task, options = find_task("toy-multi"), TaskOptions(name="toy-multi", clients=3, cache=str(tmp_path))
    real = Encoding.encode
    monkeypatch.setattr(Encoding, "encode", lambda self, table: real(self, table).slice(1))
    with pytest.raises((RuntimeError, ValueError)):
        prepare(task, options, 0, engine="local")

    def unlabeled(self, table):
        encoded = real(self, table)
        nothing = pa.array([[]] * len(encoded), pa.list_(pa.int32()))
        return encoded.set_column(encoded.column_names.index("labels"), "labels", nothing)

    monkeypatch.setattr(Encoding, "encode", unlabeled)
    with pytest.raises(RuntimeError, match=r"0 positives were written, and the driver counts \d+"):
        prepare(task, options, 0, engine="local")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.parametrize(("name", "options"), FEDERATIONS)
def test_ray_gives_the_same_bytes(ray_running, tmp_path, monkeypatch, capfd, name, options):
    monkeypatch.setattr(ingest, "BLOCK_ROWS", 50)  # several blocks, so that groups really come together
    monkeypatch.setattr(rows_files, "OWNERS", 2)  # in several files
    task, options = find_task(name), TaskOptions(name=name, **options)
    local = prepare(task, replace(options, cache=str(tmp_path / "local")), 3, engine="local")
    capfd.readouterr()
    remote = prepare(task, replace(options, cache=str(tmp_path / "ray")), 3, engine="ray")
    assert remote.manifest == local.manifest
    assert contents(remote) == contents(local)
    files = list(Path(local.folder).glob("*.parquet"))
    assert files
    for file in files:
        assert pq.read_table(file).equals(pq.read_table(Path(remote.folder) / file.name))
    assert "it/s" not in "".join(capfd.readouterr())  # no progress bars


def test_a_second_start_reads_nothing_and_needs_no_ray(tmp_path):
    task, calls, lines = find_task("toy-single"), [], []
    spied = replace(task, read=lambda *args: calls.append("read") or task.read(*args))
    options = TaskOptions(name=task.name, clients=3, cache=str(tmp_path))
    first = prepare(spied, options, 0, engine="local", log=lines.append)
    second = prepare(spied, options, 0, engine="ray", log=lines.append)
    assert calls == ["read"]
    assert first == second
    assert "found in" in lines[-1]


def test_the_name_of_the_folder_depends_on_what_matters_only(tmp_path):
    options = TaskOptions(name="toy-single", cache=str(tmp_path))

    def name(seed=0, raw="", reader="", **change):
        return cache_folder(options.name, replace(options, **change), seed, raw, reader).name

    assert name() == name(root="/elsewhere") == name(cache="/other")
    others = [
        name(seed=1),
        name(raw="1"),
        name(reader="1"),
        name(clients=3),
        name(validation=0.2),
        name(max_tokens=5),
        name(beta=0.1),
    ]
    assert len({name(), *others}) == 8


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a writer of the module of a data set, in a package where told; it is imported anew each time."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name, **files):
        for file, text in files.items():
            path = tmp_path.joinpath(*name.split(".")[:-1], f"{file}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return write


READER = """import pyarrow as pa
def read(folder, options):
    from anchorfl.tasks.toy.single import read
    table = read(folder, options)
    labels = pa.array([[label % CLASSES] for [label] in table["labels"].to_pylist()], pa.list_(pa.int32()))
    return table.set_column(2, "labels", labels)
CLASSES = 4
"""


def test_an_edited_reader_prepares_anew(tmp_path, module):
    """Two classes become one, as in a reader that was corrected: the old labels are not trained on."""
    made, folders = [], set()
    for text in (READER, READER.replace("CLASSES = 4", "CLASSES = 2"), READER):
        task = replace(find_task("toy-single"), read=module("gestures", gestures=text).read)
        options = TaskOptions(name="toy-single", clients=2, partition="iid", cache=str(tmp_path / "cache"))
        data = prepare(task, options, 0, engine="local")
        made.append(data.split("test", Objective("single")).y_NC.sum(0).tolist())
        folders.add(data.folder)
    assert len(folders) == 2
    assert made[0] == made[2]
    assert made[1][2:] == [0, 0]


def test_the_digest_of_a_reader_covers_its_package(module):
    toy = find_task("toy-single")
    package = {"__init__": "", "gestures": READER, "lines": "SEPARATOR = ','"}
    task = replace(toy, read=functools.partial(module("own.gestures", **package).read, options=None))
    before = reader_digest(task)
    assert before == reader_digest(task)
    assert before != reader_digest(toy)
    module("own.gestures", lines="SEPARATOR = ';'")
    assert reader_digest(task) != before
    module("own.gestures", **package)
    assert reader_digest(task) == before
    assert reader_digest(replace(toy, encode=task.read)) != reader_digest(toy)


def test_a_reader_of_ones_own_goes_with_what_it_imports(tmp_path, monkeypatch):
    """A lone module with the modules beside it that it uses, a package whole: their rows are its rows."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_shared.py").write_text("import own_deep\nN = 1\n")
    (tmp_path / "own_deep.py").write_text("import os.path\ndef later():\n    import own_broken\n")
    (tmp_path / "own_broken.py").write_text("def (\n")
    (tmp_path / "own_other.py").write_text("")
    (tmp_path / "own_alone.py").write_text("from own_shared import N\ndef read(): return N\n")
    folder = tmp_path / "own_package" / "sets"
    folder.mkdir(parents=True)
    for path in (folder.parent / "__init__.py", folder / "__init__.py", folder.parent / "common.py"):
        path.write_text("N = 1\n")
    (folder / "t.py").write_text("from own_package.common import N\ndef read(): return N\n")
    for name, files in (
        ("own_alone", ("own_alone.py", "own_shared.py", "own_deep.py")),
        ("own_package.sets.t", ("own_package/sets/t.py", "own_package/common.py")),
    ):
        task = replace(find_task("toy-single"), read=importlib.import_module(name).read)
        seen = {reader_digest(task)}
        for file in files:
            with (tmp_path / file).open("a") as stream:
                stream.write("# edited\n")
            seen.add(reader_digest(task))
        assert len(seen) == len(files) + 1
        (tmp_path / "own_other.py").write_text("# edited\n")
        assert reader_digest(task) in seen


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.take(list(range(len(t)))[::-1]), "encode must give the rows that it is given, in their order"),
        (lambda t: t.slice(1), "encode must give the rows that it is given, in their order"),
        (
            lambda t: t.set_column(t.column_names.index("x"), "x", pa.array([[7] * 7] * len(t))),
            r"encode gives an x of 7 numbers, and a sample of the shape \(1, 8, 8\) in its InputSpec has 64",
        ),
    ],
    ids=["other order", "fewer", "too short"],
)
def test_what_a_task_encodes_is_looked_at(tmp_path, change, said):
    """Owners go by the place of a row: other rows would be other clients', those of the test split among them."""
    digits = find_task("digits")
    task = replace(digits, encode=lambda table, spec: change(digits.encode(table, spec)))
    with pytest.raises(InputError, match=said):
        prepare(task, TaskOptions(name="digits", clients=5, cache=str(tmp_path)), 0, engine="local")


def test_a_series_that_lacks_steps_is_refused(tmp_path):
    """It ended in a traceback, after all had been prepared."""
    toy = find_task("toy-single")
    short = pa.array([[1.0, 2.0, 3.0, 4.0]], pa.list_(pa.float32()))
    task = replace(
        toy,
        fit=lambda table, options: InputSpec("series", (3, 2)),
        encode=lambda t, spec: (e := toy.encode(t, toy.fit(t, OPTIONS))).set_column(
            e.column_names.index("x"), "x", pa.chunked_array([short.take(pa.array([0] * len(t)))])
        ),
    )
    with pytest.raises(InputError, match=r"an x of 4 numbers, .* shape \(3, 2\) in its InputSpec has 6, in steps of 2"):
        prepare(task, replace(OPTIONS, cache=str(tmp_path)), 0, engine="local")


OPTIONS = TaskOptions(name="toy-single", clients=3)


def test_a_form_of_no_kind_is_refused(tmp_path):
    toy = find_task("toy-single")
    task = replace(toy, fit=lambda table, options: replace(toy.fit(table, options), kind="video"))
    with pytest.raises(InputError, match="fit gives an InputSpec of kind 'video': there are "):
        prepare(task, TaskOptions(name="toy-single", clients=3, cache=str(tmp_path)), 0, engine="local")


def test_the_cache_folder_comes_from_the_environment(monkeypatch):
    options = TaskOptions()
    monkeypatch.setenv("ANCHORFL_CACHE", "/some/where")
    assert cache_folder("digits", options, 0, "", "").parent == Path("/some/where")
    monkeypatch.delenv("ANCHORFL_CACHE")
    assert cache_folder("digits", options, 0, "", "").parent == Path.home() / ".cache/anchorfl"


def test_a_lost_race_uses_the_winners_folder(tmp_path, monkeypatch):
    task, options = find_task("toy-single"), TaskOptions(name="toy-single", clients=3, cache=str(tmp_path))
    real = ingest.publish

    def late(building, folder):
        monkeypatch.setattr(ingest, "publish", real)
        prepare(task, options, 0, engine="local")  # the other process
        real(building, folder)

    monkeypatch.setattr(ingest, "publish", late)
    prepared = prepare(task, options, 0, engine="local")
    assert [path.name for path in tmp_path.iterdir()] == [Path(prepared.folder).name]


def test_an_error_leaves_nothing_behind(tmp_path):
    options = TaskOptions(name="toy-single", clients=3, classes_per_client=9, cache=str(tmp_path))
    with pytest.raises(InputError, match="classes_per_client = 9"):
        prepare(find_task("toy-single"), options, 0, engine="local")
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_cached_folder_is_an_error_with_its_mend(tmp_path):
    task, options = find_task("toy-single"), TaskOptions(name="toy-single", clients=3, cache=str(tmp_path))
    folder = Path(prepare(task, options, 0, engine="local").folder)
    (folder / "rows-00000.parquet").unlink()
    with pytest.raises(InputError, match=r"rows-00000\.parquet is missing; delete the folder"):
        prepare(task, options, 0, engine="local")


def test_ray_must_be_started_by_the_caller(tmp_path, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    options = TaskOptions(name="toy-single", clients=3, cache=str(tmp_path))
    with pytest.raises(RuntimeError, match=r"call ray\.init first"):
        prepare(find_task("toy-single"), options, 0, engine="ray")


def test_importing_the_tasks_does_not_import_ray_or_sklearn():
    modules = "tasks, anchorfl.tasks.ingest.ingest, anchorfl.tasks.files.raw_files"
    code = f"import sys, {modules}; assert not {{'ray', 'sklearn'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": pa.array([[0, 1]] * 240)}, InputError, "row 0 has not exactly one class"),
        ({"split": pa.array(["train"] * 240)}, InputError, "need the splits train and test"),
        ({"row": pa.array(np.zeros(240, np.int64))}, ValueError, "unique rows"),
    ],
)
def test_a_table_that_breaks_the_contract_is_refused(tmp_path, change, error, message):
    task = find_task("toy-single")

    def read(folder, options):
        table = task.read(folder, options)
        return pa.table({name: change.get(name, table[name]) for name in table.column_names})

    with pytest.raises(error, match=message):
        prepare(replace(task, read=read), TaskOptions(clients=3, cache=str(tmp_path)), 0, engine="local")


def test_a_settled_file_is_read_once_and_again_when_it_changes(tmp_path, monkeypatch):
    task = replace(find_task("r8"), source=replace(find_task("r8").source, files=("*.txt",)))
    options, folder = TaskOptions(name="r8", cache=str(tmp_path / "cache")), tmp_path / "raw"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(name)
        os.utime(folder / name, (1e9, 1e9))
    read, real = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda stream, kind: read.append(stream.name) or real(stream, kind))
    first = raw_digest(task, options, folder)
    assert raw_digest(task, options, folder) == first
    assert len(read) == 2
    (folder / "b.txt").write_text("c.txt")  # as long as before, and just written: read at every start
    changed = [raw_digest(task, options, folder) for _ in range(2)]
    assert changed[0] == changed[1] != first
    assert len(read) == 4


def test_a_file_of_the_same_size_and_time_is_another(tmp_path):
    """As a copy that keeps times leaves it."""
    task = replace(find_task("r8"), source=replace(find_task("r8").source, files=("*.txt",)))
    options, seen = TaskOptions(name="r8", cache=str(tmp_path / "cache")), set()
    (tmp_path / "raw").mkdir()
    for text in ("one", "two"):
        (tmp_path / "raw" / "a.txt").write_text(text)
        os.utime(tmp_path / "raw" / "a.txt", (1e9, 1e9))
        seen |= {raw_digest(task, options, tmp_path / "raw") for _ in range(2)}
    assert len(seen) == 2


def test_what_saves_time_alone_does_not_stop_a_run(tmp_path, monkeypatch):
    def refused(*_):
        raise InputError("no permission")

    monkeypatch.setattr("anchorfl.tasks.files.object_store.write_bytes", refused)
    task = replace(find_task("r8"), source=replace(find_task("r8").source, files=("*.txt",)))
    (tmp_path / "a.txt").write_text("one")
    os.utime(tmp_path / "a.txt", (1e9, 1e9))
    assert raw_digest(task, TaskOptions(name="r8", cache=str(tmp_path / "cache")), tmp_path)


def test_raw_files_that_change_while_they_are_read_are_refused(tmp_path):
    """The folder has the name of what was there at first."""
    toy = find_task("toy-single")
    source = replace(toy.source, files=("a.txt",))
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("one")

    def read(folder, options):
        (folder / "a.txt").write_text("another")
        return toy.read(folder, options)

    task = replace(toy, source=source, read=read)
    options = TaskOptions(name="toy-single", clients=3, cache=str(tmp_path / "cache"), root=str(tmp_path / "raw"))
    with pytest.raises(InputError, match="its files changed while they were read: prepare them again"):
        prepare(task, options, 0, engine="local")
    assert [path.name for path in (tmp_path / "cache").iterdir() if "toy-single-" in path.name] in ([], ["raw-digests"])
    assert prepare(replace(task, read=toy.read), options, 0, engine="local").manifest.test


def test_the_raw_digest_follows_the_bytes_of_the_files(tmp_path):
    task, options = find_task("r8"), TaskOptions(name="r8")
    for split in ("train", "test"):
        (tmp_path / f"r8-{split}-stemmed.txt").write_text("earn\tprofit up\n")
    before = raw_digest(task, options, tmp_path)
    os.utime(tmp_path / "r8-test-stemmed.txt", (0, 0))
    assert raw_digest(task, options, tmp_path) == before
    (tmp_path / "r8-test-stemmed.txt").write_text("earn\tprofit down\n")
    assert raw_digest(task, options, tmp_path) != before


def test_images_and_toys_are_what_they_say(tmp_path):
    digits = prepare(find_task("digits"), TaskOptions(partition="iid", cache=str(tmp_path)), 0, engine="local")
    test = digits.split("test", Objective("single"))
    assert test.x.shape == (359, 1, 8, 8)
    assert (test.x.min(), test.x.max()) == (0, 1)
    assert test.y_NC.sum(0).min() >= 34
    other = prepare(find_task("digits"), TaskOptions(partition="iid", cache=str(tmp_path)), 1, engine="local")
    assert (other.split("test", Objective("single")).x == test.x).all()  # the test rows do not depend on the seed
    multi = find_task("toy-multi").read(None, TaskOptions())
    assert {len(labels) for labels in multi["labels"].to_pylist()} >= {1, 2, 3}


def test_a_long_preparation_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorfl.tasks.ingest.ingest.PROGRESS_S", -1.0)
    monkeypatch.setattr(rows_files, "OWNERS", 1)
    said = []
    options = TaskOptions(name="toy-multi", clients=3, cache=str(tmp_path))
    prepare(find_task("toy-multi"), options, 0, engine="local", log=said.append)
    assert [line for line in said if "written" in line][:5] == [
        f"toy-multi: {n} of 5 files written" for n in range(1, 6)
    ]
