"""The files of a run folder: what ``resume``, ``compare``, ``predict`` and ``diagnose`` read."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from anchorfl.pipeline.diagnosis.analysis import open_analysis
from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.results.predict import model_of, predict, write_to
from anchorfl.pipeline.run.lifecycle import resume, run
from anchorfl.pipeline.storage.checkpoint import Checkpoints
from anchorfl.pipeline.storage.restore import backup_status, fetch_run
from anchorfl.pipeline.storage.run_folder import read_experiment
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.contract import Objective
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.options import TaskOptions
from anchorfl.tasks.registry import find_task
from anchorfl.tuning.tables.runs import RunIndex, index_runs
from tests.fuzz.parsers import Parser
from tests.fuzz.promise import QUICK
from tests.fuzz.runs import finished, seal, small, unfinished
from tests.runs import quiet
from tests.tasks.own_tables import trees


def mended(folder: Path, path: Path) -> None:
    """Correct the checksums of a changed part and of the index, as one would who wants them read."""
    index = path.parent / "checkpoint.json"
    if path.suffix == ".safetensors" and index.exists() and path.exists():
        content = json.loads(index.read_text())
        for name, entry in content["files"].items():
            if name == path.name:
                entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        index.write_text(json.dumps(content))
    if index.exists():
        with suppress(ValueError, AttributeError, RecursionError):  # no JSON object any more
            seal(index)


def kept(folder: Path, made: Path) -> None:
    for round_ in Checkpoints(folder).kept():
        Checkpoints(folder).read_kept(round_)


def tables(folder: Path, made: Path) -> None:
    found = index_runs(folder)
    assert isinstance(found, RunIndex)
    found.notes([])


def restore_if_remote(folder: Path, made: Path) -> None:
    backup_status(str(folder))
    fetch_run(str(folder), made)


def texts(folder: Path) -> None:
    """Write a model of texts, and some for it."""
    finished(folder)
    (folder / "samples.txt").write_text("alpha beta gamma\nbeta beta alpha\n")


def tables_of_one(folder: Path) -> None:
    """Write a model of a table, and a table for it."""
    table = pa.table({k: v for k, v in trees().items() if k in ("height", "girth", "kind")})
    pq.write_table(table, folder / "samples.parquet")
    e = small(task=TaskOptions(file=str(folder / "samples.parquet"), label_columns="kind", clients=3, validation=0.1))
    run(e, folder / "run", quiet)
    for path in (folder / "run" / "model").iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(folder / "run")


def digits(folder: Path) -> None:
    """Write a model of images, and a CSV file for it."""
    finished(folder, task=TaskOptions(name="digits", clients=3, classes_per_client=4, validation=0.1))
    header = ",".join(["label", *(f"p{n}" for n in range(64))])
    lines = [header, *(",".join(["zero", *(str(n % 17) for n in range(64))]) for _ in range(3))]
    (folder / "samples.csv").write_text("\n".join(lines) + "\n")


def predicted(name: str, folder: Path, made: Path) -> None:
    write_to(predict(model_of(folder), folder / name), str(made / "scores.csv"))


def prepared(folder: Path) -> None:
    """Prepare data in their cache."""
    options = TaskOptions(name="toy-multi", cache=str(folder), clients=3, validation=0.1)
    prepare(find_task("toy-multi"), options, 1, engine="local")


def all_of(folder: Path, made: Path) -> None:
    """Read every file of prepared data, as a run does."""
    (manifest,) = folder.rglob("manifest.json")
    found = Prepared.load(manifest.parent)
    objective = Objective(found.manifest.kind)
    found.plan()
    found.cards()
    for client in range(len(found.manifest.examples)):
        found.client(client, objective)
        found.sparse_client(client)
    found.class_histogram()
    found.split("test", objective)
    found.sparse_split("validation")


PARSERS = [
    # read only: what is asked for may be a run of years, and on Ray
    Parser("config.json", unfinished, lambda folder, made: read_experiment(folder), ("config.json",)),
    Parser(
        "resume, checkpoint", unfinished, lambda folder, made: resume(folder, quiet),
        ("checkpoint.json", "*.safetensors"), mended,
    ),
    Parser(
        "resume, checkpoint before", partial(unfinished, kept=2), lambda folder, made: resume(folder, quiet),
        ("checkpoint*.json", "*.safetensors"),
    ),
    Parser("resume, records", unfinished, lambda folder, made: resume(folder, quiet), ("run.json", "metrics.jsonl")),
    Parser("resume, result", finished, lambda folder, made: resume(folder, quiet), ("result.json",)),
    Parser("kept rounds", finished, kept, ("0*.safetensors",)),
    Parser(
        "compare", finished, lambda folder, made: compare([folder], made),
        ("run.json", "metrics.jsonl", "result.json"),
    ),
    Parser("metrics.jsonl", finished, lambda folder, made: read_records(folder), ("metrics.jsonl",)),
    Parser("table", finished, tables, ("run.json", "config.json", "result.json")),
    Parser("backup", finished, restore_if_remote, ("run.json", "checkpoint.json", "metrics.jsonl"), leaves=True),
    Parser("diagnose", finished, lambda folder, made: open_analysis(folder, quiet), ("run.json", "checkpoint.json")),
    *(
        Parser(
            f"predict, {what}", write, partial(predicted, name), (name, "model.json", "weights.safetensors")
        )
        for what, write, name in (
            ("texts", texts, "samples.txt"), ("table", tables_of_one, "samples.parquet"),
            ("images", digits, "samples.csv"),
        )
    ),
    Parser("prepared data", prepared, all_of, ("*.json", "*.parquet")),
]  # fmt: skip


@QUICK
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(bench, data):
    bench.check_changed(data.draw(bench.case()))
