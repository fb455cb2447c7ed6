"""Results are written aside and renamed: a kill at any instant leaves a file as it was, or whole."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import pytest

from anchorfl.pipeline.diagnosis.diagnose import DiagnoseOptions, diagnose
from anchorfl.pipeline.results.compare import compare
from anchorfl.pipeline.run.lifecycle import resume, run
from tests.runs import quiet

ROOT = Path(__file__).resolve().parents[2]
LOGS = {"metrics.jsonl", "ledger.jsonl"}
"""Files of lines that are appended to; a half-written last line is left out by who reads them."""
IN_PLACE = {
    ("pipeline/storage/atomic_files.py", "write_synced"): "the draft",
    ("pipeline/results/picture.py", "save"): "in memory",
    ("pipeline/results/picture.py", "svg"): "in memory",
    ("pipeline/diagnosis/generated.py", "generated"): "in memory",
    ("pipeline/storage/checkpoint.py", "_save"): "a draft, renamed in the next line",
    ("pipeline/results/predict.py", "write_to"): "a pipe or a device that the user named",
    ("pipeline/tracking/jsonl.py", "round"): "appends",
    ("pipeline/tracking/mlflow_upload.py", "_send"): "a copy in a temporary folder",
    ("pipeline/cluster/auth_token.py", "create"): "a draft",
    ("pipeline/mlmodel.py", "_load_pyfunc"): "a copy in a temporary folder",
    ("tuning/search/ledger.py", "_append"): "appends",
}
"""File and function -> why it may open a file for writing."""


def writes(path):
    """Yield (function, line) of every call that opens a file for writing."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = getattr(getattr(call.func, "value", None), "id", "")
        modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        opens = name in ("open", "fdopen") and any(set(mode) & set("wax+") and len(mode) < 4 for mode in modes)
        in_place = name in ("write_text", "savefig", "savez", "savez_compressed")
        if opens or in_place or (name == "write_bytes" and owner != "object_store"):
            within = [f for f in functions if f.lineno <= call.lineno <= (f.end_lineno or 0)]
            yield (max(within, key=lambda f: f.lineno).name if within else ""), call.lineno


def test_only_the_atomic_writer_opens_files_for_writing():
    found = {
        (path.relative_to(ROOT).as_posix(), function): line
        for package in ("pipeline", "tuning")
        for path in (ROOT / package).rglob("*.py")
        for function, line in writes(path)
    }
    assert found.keys() - IN_PLACE.keys() == set()
    assert IN_PLACE.keys() - found.keys() == set(), "no longer needed"


OPENED: list[tuple[Path, bool]] = []
"""Files opened for writing while ``WATCHED`` is true, and whether to append."""
WATCHED = [False]


def _watch(event, arguments):
    if event == "open" and WATCHED[0] and isinstance(arguments[0], str | bytes | os.PathLike):
        path, mode, flags = arguments
        writing = set(mode or "") & set("wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if writing:
            OPENED.append((Path(os.fsdecode(path)), "a" in (mode or "")))


@pytest.fixture
def opened():
    """Watch every file that Python opens for writing."""
    if not OPENED and not WATCHED[0]:
        sys.addaudithook(_watch)  # for ever, so it is asleep outside of this fixture
    OPENED.clear()
    WATCHED[0] = True
    yield OPENED
    WATCHED[0] = False


def in_place(opened, folder):
    """Return the files of ``folder`` that were opened under their own names, but for logs and locks."""
    own = [(path, appends) for path, appends in opened if path.is_relative_to(folder)]
    assert own, "something was written"
    return {
        path.relative_to(folder).as_posix()
        for path, appends in own
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not (appends and path.name in LOGS)
    }


@pytest.mark.usefixtures("pictures")
def test_a_run_and_what_is_made_of_it_write_nothing_in_place(experiment, tmp_path, opened):
    folder = tmp_path / "run"
    run(experiment("fedalign", evaluation={"save_state_every": 1}), folder, quiet)
    compare([folder], folder / "report")
    diagnose(folder, DiagnoseOptions(rows=20), quiet)
    assert (folder / "report" / "partition.png").stat().st_size
    assert in_place(opened, folder) == set()


@pytest.mark.usefixtures("pictures")
def test_a_resumed_run_that_is_finished_has_its_files_again(experiment, tmp_path):
    """Earlier versions could leave them empty, and a user may have deleted one."""
    folder = tmp_path / "run"
    run(experiment(), folder, quiet)
    names = ("per_class.csv", "report/comparison.md", "report/comparison.csv", "report/curves.png")
    before = {name: (folder / name).read_bytes() for name in names}
    (folder / "per_class.csv").write_bytes(b"")
    for name in names[1:]:
        (folder / name).unlink()
    resume(folder, quiet)
    assert {name: (folder / name).read_bytes() for name in names} == before
    stamp = (folder / "per_class.csv").stat().st_mtime_ns
    resume(folder, quiet)
    assert (folder / "per_class.csv").stat().st_mtime_ns == stamp, "what is there stays"
    assert json.loads((folder / "run.json").read_text())["status"] == "FINISHED"
