"""Commands that train nothing start without slow libraries: they answer in a fraction of a second."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from anchorfl.pipeline.run.lifecycle import run
from tests.runs import quiet

SLOW = ("torch", "ray", "mlflow", "pandas", "sklearn", "scipy")
PROGRAM = f"""
import json, sys
from anchorfl.tuning.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
print(json.dumps([code, [name for name in {SLOW} if name in sys.modules]]), file=sys.stderr)
"""


def slow_libraries(*words: str) -> list[str]:
    """Run a command in a process of its own; return the slow libraries that it imported."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    code, imported = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    assert done.stdout
    return imported


@pytest.mark.parametrize(
    "words",
    [
        "--help", "--version", "run --help", "sweep --help", "table --help", "data --help", "compare --help",
        "resume --help", "diagnose --help", "cluster check --help", "submit --help", "presets", "presets r8-8", "data",
        "env", "env --json", "runs", "runs --json", "new --help", "verify --help", "report --help",
        "data prepare --help", "data fetch --help",
    ],
)  # fmt: skip
def test_a_command_that_trains_nothing_imports_nothing_slow(words):
    assert slow_libraries(*words.split()) == []


def test_a_comparison_of_finished_runs_imports_no_torch(experiment, tmp_path):
    run(experiment("fedavg", "toy-single"), tmp_path / "run", quiet)
    assert slow_libraries("compare", str(tmp_path / "run"), "--out", str(tmp_path / "out")) == []
    assert (tmp_path / "out" / "comparison.md").exists()
