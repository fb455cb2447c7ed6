"""One import name: foreign modules with our folders' names do no harm, and no file is loaded under two names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import python

ROOT = Path(__file__).resolve().parents[2]
TWICE = """
import os, sys

FOLDERS = ("src/", "pipeline/", "tasks/", "models/", "tuning/")

def twice():
    names = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and os.path.realpath(file).startswith(tuple(ROOT + f for f in FOLDERS)):
            names.setdefault(os.path.realpath(file), []).append(name)
    ours = [name for found in names.values() for name in found]
    return [found for found in names.values() if len(found) > 1], len(ours)
"""


def hostile_in(folder: Path) -> Path:
    """Write modules of the four names that end whoever imports them; return the folder."""
    for name in ("models", "tasks", "pipeline", "tuning"):
        (folder / f"{name}.py").write_text("raise SystemExit('a foreign module was imported')\n")
    return folder


def loaded(code: str, folder: Path) -> str:
    """Run code where foreign modules come first; return what it prints."""
    whole = f"ROOT = {str(ROOT) + os.sep!r}\n{TWICE}\n{code}"
    done = python(whole, folder, PYTHONPATH=os.pathsep.join([str(folder), str(ROOT / "src")]))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SMALL = ["--federation.rounds", "1", "--federation.epochs", "1", "--tracking.uri", "none"]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what a process prints that uses Python's functions, the command and all rooms beside foreign modules."""
    code = f"""
import anchorfl
assert not {{"torch", "ray", "mlflow", "pandas"}} & set(sys.modules), "slow"
assert all(getattr(anchorfl, name) is not None for name in anchorfl.__all__)
run = anchorfl.run("digits/fedavg", {{"federation.rounds": 1, "federation.epochs": 1, "cluster.executor": "serial",
                                     "tracking.uri": "none"}}, folder="mine")
assert anchorfl.resume("mine").checksum == run.checksum
assert anchorfl.load_model(run.folder).class_names == anchorfl.load_model("mine/model").class_names
print("version", anchorfl.__version__)
from anchorfl.tuning.cli import main
assert main({["run", "digits/fedalign", "--cluster.executor", "serial", *SMALL]!r}) == 0
import anchorfl.tuning.sweep.sweep, anchorfl.tuning.clusters.check, anchorfl.tuning.tables.command
doubles, count = twice()
print("doubles", doubles, "many", count > 150)
"""
    return loaded(code, hostile_in(tmp_path_factory.mktemp("hostile")))


def test_the_public_api_is_what_it_says(said):
    """Every public name is there, ``import anchorfl`` alone loads no slow library, and a run takes five lines."""
    assert "version 0.1.0" in said


def test_a_run_beside_foreign_modules_loads_every_file_under_one_name(said):
    assert "doubles [] many True" in said


@pytest.mark.ray
@pytest.mark.apart
def test_a_ray_worker_beside_foreign_modules_loads_every_file_under_one_name(tmp_path):
    code = """
from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
ray_cluster.start(ClusterOptions())
import ray

def worker(source):
    import anchorfl.pipeline.training.client, anchorfl.pipeline.execution.ray_actors
    scope = {}
    exec(source, scope)
    return scope["twice"]()

doubles, count = ray.get(ray.remote(num_cpus=1)(worker).remote(f"ROOT = {ROOT!r}\\n" + SOURCE))
print("doubles", doubles, "many", count > 30)
"""
    assert "doubles [] many True" in loaded(f"SOURCE = {TWICE!r}\n{code}", hostile_in(tmp_path))
