"""A malicious pickle in place of any file that is read is not run: what it says is refused, or not looked at."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from anchorfl.models import name_cache
from anchorfl.models.start import read_start
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.diagnosis.analysis import open_analysis
from anchorfl.pipeline.results.compare import compare as compare_runs
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.run.prepare import prepare_data
from anchorfl.pipeline.storage.atomic_files import read_json
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.storage.saved_model import load_model
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.files.raw_files import raw_folder
from anchorfl.tasks.images.arrays import load_arrays
from anchorfl.tasks.ingest.raw_table import validate_table
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import task_of
from anchorfl.tuning.clusters.check import _load as load_cluster_file
from anchorfl.tuning.search.ledger import Ledger
from anchorfl.tuning.sweep.plan import load_plan
from tests.runs import quiet


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path):
    """Return a folder that must not come into being."""
    path = tmp_path / "executed"
    pickle.loads(pickle.dumps(Evil(path)))
    assert path.is_dir(), "the payload works where it is unpickled"
    path.rmdir()
    yield path
    assert not path.exists(), "a pickle was run"


def plain(mark):
    return pickle.dumps(Evil(mark))


def torch_zip(mark):
    stream = io.BytesIO()
    torch.save({"weights": Evil(mark)}, stream)
    return stream.getvalue()


def numpy_zip(mark):
    stream = io.BytesIO()
    objects = np.array([Evil(mark)], dtype=object)
    names = ("vectors", "digest", "about", "train_images", "train_labels", "x")
    np.savez(stream, **dict.fromkeys(names, objects))
    return stream.getvalue()


def numpy_array(mark):
    stream = io.BytesIO()
    np.save(stream, np.array([Evil(mark)], dtype=object), allow_pickle=True)
    return stream.getvalue()


def yaml_tag(mark):
    return f"cluster_name: !!python/object/apply:os.mkdir ['{mark}']\n".encode()


PAYLOADS = [plain, torch_zip, numpy_zip, numpy_array, yaml_tag]


def table_of(columns, mark, rows):
    """Make a Parquet table each of whose columns is a pickled object, by the type that Ray Data registers, and whose
    metadata are pickles, too.
    """
    import ray.data  # noqa: F401  # registers the type
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectArray

    objects = [ArrowPythonObjectArray.from_objects([Evil(mark)] * rows) for _ in columns]
    stream = io.BytesIO()
    table = pa.table(objects, names=list(columns))
    kept = {**(table.schema.metadata or {}), b"pandas": plain(mark), b"huggingface": plain(mark)}
    pq.write_table(table.replace_schema_metadata(kept), stream)
    return stream.getvalue()


def old_extension(columns, mark, rows):
    """Make the extension type that pyarrow itself once unpickled (CVE-2023-47248)."""
    named = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": plain(mark)}
    fields = [pa.field(name, pa.binary(), metadata=named) for name in columns]
    stream = io.BytesIO()
    pq.write_table(pa.table([pa.array([b"x"] * rows)] * len(fields), schema=pa.schema(fields)), stream)
    return stream.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a run that ended, one that was interrupted, and their cache."""
    folder = tmp_path_factory.mktemp("finished")
    patch = pytest.MonkeyPatch()
    patch.setenv("ANCHORFL_CACHE", str(folder / "cache"))
    e = _experiment()
    run(e, folder / "run", quiet)
    shutil.copytree(folder / "run", folder / "stopped")
    (folder / "stopped" / "result.json").unlink()
    yield folder
    patch.undo()


def _experiment():
    from dataclasses import replace

    e = read_preset("digits/fedavg")
    return replace(
        e,
        federation=replace(e.federation, rounds=2, clients_per_round=2, epochs=1),
        evaluation=replace(e.evaluation, save_state_every=1),
        cluster=replace(e.cluster, executor="serial"),
        tracking=replace(e.tracking, uri="none"),
    )


def readers(folder, name):
    """Return the readers of a file of a run folder."""
    if name.parts[0] == "checkpoint":
        return [Checkpoints(folder).load]
    if name.parts[0] == "server_states":
        return [lambda: Checkpoints(folder).read_kept(int(name.stem))]
    if name.parts[0] == "model":
        return [lambda: load_model(folder / "model")]
    if name.name == "config.json":
        return [lambda: resume(folder, quiet), lambda: open_analysis(folder, quiet)]
    if name.name in ("run.json", "metrics.jsonl"):
        return [
            lambda: read_json(folder / "run.json"),
            lambda: read_records(folder),
            lambda: compare_runs([folder], None),
        ]
    return []


REFUSALS = (InputError, ValueError, KeyError, TypeError, AttributeError, LookupError, RuntimeError, OSError)
"""Which error a damaged file gives is the matter of other tests."""


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_run_folder_of_pickles_is_not_run(finished, tmp_path, mark, payload, monkeypatch):
    monkeypatch.setenv("ANCHORFL_CACHE", str(finished / "cache"))
    names = sorted(p.relative_to(finished / "stopped") for p in (finished / "stopped").rglob("*") if p.is_file())
    read = [n for n in names if readers(finished / "stopped", n)]
    assert {n.parts[0] for n in read} == {
        "checkpoint",
        "server_states",
        "model",
        "config.json",
        "run.json",
        "metrics.jsonl",
    }
    for name in read:
        folder = tmp_path / "copy" / "run"
        shutil.copytree(finished / "stopped", folder)
        (folder / name).write_bytes(payload(mark))
        for read_it in readers(folder, name):
            with contextlib.suppress(*REFUSALS):
                read_it()
            assert not mark.exists(), name
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_cache_of_pickles_is_not_run(finished, tmp_path, mark, payload, monkeypatch):
    """Manifest, plan and rows of prepared data; raw bytes that are no Parquet."""
    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / "cache"))
    (source,) = (finished / "cache").glob("digits-*")
    e = _experiment()
    for name in sorted(p.name for p in source.iterdir()):
        shutil.copytree(finished / "cache", tmp_path / "cache")
        (tmp_path / "cache" / source.name / name).write_bytes(payload(mark))
        with pytest.raises(REFUSALS):
            _read_all(prepare_data(e, quiet))
        shutil.rmtree(tmp_path / "cache")


def _read_all(prepared):
    prepared.plan()
    for client in range(len(prepared.manifest.examples)):
        prepared.client(client, Objective(prepared.manifest.kind))
        prepared.sparse_client(client)
    prepared.class_histogram()
    for split in ("validation", "test"):
        prepared.split(split, Objective(prepared.manifest.kind))
        prepared.sparse_split(split)


@pytest.mark.parametrize("make", [table_of, old_extension])
def test_rows_that_are_pickled_objects_are_not_run(finished, tmp_path, mark, make, monkeypatch):
    """Parquet whose columns or metadata are pickles, in the cache and as a user's table."""
    monkeypatch.setenv("ANCHORFL_CACHE", str(tmp_path / "cache"))
    (source,) = (finished / "cache").glob("digits-*")
    e = _experiment()
    for name in ("rows-00000.parquet", "clients.parquet"):
        shutil.copytree(finished / "cache", tmp_path / "cache")
        file = tmp_path / "cache" / source.name / name
        good = pq.ParquetFile(file)
        file.write_bytes(make(good.schema_arrow.names, mark, good.metadata.num_rows))
        with pytest.raises(REFUSALS):
            _read_all(prepare_data(e, quiet))
        shutil.rmtree(tmp_path / "cache")
    file = tmp_path / "mine.parquet"
    file.write_bytes(make(["a", "b", "kind", "site"], mark, 40))
    for inputs, labels, client in (("a,b", "kind", ""), ("a", "kind", "site"), ("a,b", "kind,site", "")):
        options = TaskOptions(file=str(file), input_columns=inputs, label_columns=labels, client_column=client)
        with pytest.raises(REFUSALS):
            validate_table(task_of(options).read(raw_folder(task_of(options), options), options), task_of(options))


def test_such_rows_would_run_elsewhere(mark):
    """Arrow would run them for somebody who asks it for the objects: what is refused above is not harmless."""
    column = pq.read_table(io.BytesIO(table_of(["a"], mark, 1)))["a"]
    column.to_pylist()
    assert mark.is_dir()
    mark.rmdir()


def test_a_user_s_table_with_one_bad_column_is_not_run(tmp_path, mark):
    """The other columns are good, so that the table is read to its end."""
    bad = pq.read_table(io.BytesIO(table_of(["kind", "note"], mark, 60)))
    rng = np.random.default_rng(0)
    for column in ("kind", "note"):
        good = pa.table({"height": rng.normal(size=60), "girth": rng.normal(size=60)})
        good = good.append_column("site", pa.array([f"s{i % 3}" for i in range(60)]))
        good = good.append_column("kind", bad["kind"] if column == "kind" else pa.array(list("ab") * 30))
        file = tmp_path / f"{column}.parquet"
        pq.write_table(good.append_column("note", bad["note"]), file)
        options = TaskOptions(file=str(file), input_columns="height,girth", label_columns="kind", client_column="site")
        with contextlib.suppress(*REFUSALS):
            task = task_of(options)
            validate_table(task.read(raw_folder(task, options), options), task)
        assert not mark.exists(), column


@pytest.mark.parametrize("payload", PAYLOADS)
def test_arrays_weights_and_files_of_the_cluster_are_not_run(tmp_path, mark, payload):
    file = tmp_path / "file.npz"
    file.write_bytes(payload(mark))
    with pytest.raises(name_cache.UnusableError):
        name_cache.read(file, "digest")
    with pytest.raises(InputError):
        load_arrays(file, {"train_images": 1, "train_labels": 1})
    for read in (
        lambda: read_start(file),
        lambda: Ledger(file).events,
        lambda: read_preset(str(_as(file, "preset.toml"))),
        lambda: load_plan(_as(file, "sweep.json").parent, {}),
    ):
        with contextlib.suppress(*REFUSALS):  # a ledger leaves out a last line that is not whole
            read()
    with contextlib.suppress(Exception):  # Flaw, where the bytes are text at all
        load_cluster_file(file.read_text(encoding="utf-8"))


def _as(file, name):
    return Path(shutil.copy(file, file.with_name(name)))


def test_object_arrays_are_refused_by_name(tmp_path, mark):
    """An .npz whose other arrays are good, and whose check sums are right."""
    file = tmp_path / "vectors.npz"
    np.savez(file, vectors=np.array([Evil(mark)], dtype=object), digest=np.array("digest"), about=np.array(""))
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
    with pytest.raises(name_cache.UnusableError, match="allow_pickle=False"):
        name_cache.read(file, "digest")
