"""A Ray of our own that dies: one line that says how to go on, exit code 3, records closed, the same bits after it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from anchorfl.pipeline.storage.run_folder import CONFIG
from benchmarks.chaos import in_peace, rows_of, start, strike
from tests.processes import ROOT, end, free_port
from tests.ray.nodes import LOG, Node, start_node, wait_for_start

pytestmark = [pytest.mark.ray, pytest.mark.apart]
ROUNDS = ("--federation.rounds", "40", "--federation.epochs", "1", "--cluster.clients_per_actor", "5")
SHORT = ("--federation.rounds", "2", "--federation.epochs", "1", "--cluster.clients_per_actor", "5")
SWEEP = ("--trials", "4", "--federation.rounds", "20", "--tracking.uri", "none")
TABLE = ("table", "fedalign", "--data", "r8-8", "--rows", "fedavg", "--seeds", "4321", "--tracking.uri", "none")
WORDS = ("run", "digits/fedavg", "--tracking.uri", "none")


def last_line(log):
    """Return the last line, which may be said after the end."""
    until = time.monotonic() + 20
    while "go on with: " not in log.read_text() and time.monotonic() < until:
        time.sleep(0.1)
    return log.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    "target", ["agent", *(pytest.param(t, marks=pytest.mark.slow) for t in ("raylet", "gcs", "environment_agent"))]
)
def test_the_death_of_a_process_of_rays_is_one_line(tmp_path, target):
    run, log = tmp_path / "run", tmp_path / "log"
    process = start([*WORDS, *ROUNDS, "--output", str(run)], log)
    while process.poll() is None and not rows_of(run):
        time.sleep(0.1)
    assert strike(process, target, wait_s=60)
    code = process.wait(60)
    assert code in (3, 1)
    last = last_line(log)
    assert last.startswith("anchorfl: ")
    assert f"anchorfl resume {run}" in last
    assert "Traceback" not in log.read_text()
    if code == 3:  # else Ray's C++ was first, which asks nobody
        assert json.loads((run / "run.json").read_text())["status"] == "FAILED"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["sweep", "digits/fedavg", *SWEEP, "--output", "out"], "anchorfl sweep --resume "),
        pytest.param([*TABLE, "--federation.rounds", "20"], "anchorfl table fedalign ", marks=pytest.mark.data),
    ],
)
def test_a_sweep_and_a_table_name_the_command_that_goes_on(tmp_path, words, command):
    log = tmp_path / "log"
    process = start(words, log)
    while process.poll() is None and not [*tmp_path.rglob(CONFIG)]:
        time.sleep(0.1)
    assert strike(process, "raylet", wait_s=60)
    assert process.wait(60) in (3, 1)
    assert f"go on with: {command}" in last_line(log)


@pytest.mark.slow
def test_a_run_goes_on_after_the_death_of_ray_with_the_same_bits(tmp_path):
    (tmp_path / "peace").mkdir()
    peace = in_peace([*WORDS, *SHORT], tmp_path / "peace")
    run, log = tmp_path / "run", tmp_path / "log"
    process = start([*WORDS, *SHORT, "--output", str(run)], log)
    while process.poll() is None and not (run / CONFIG).exists():
        time.sleep(0.1)
    assert strike(process, "raylet", wait_s=60)
    assert process.wait(60) in (3, 1)
    assert start(["resume", str(run)], log).wait(300) == 0
    assert json.loads((run / "result.json").read_text())["checksum"] == peace.checksum


@pytest.mark.slow
@pytest.mark.parametrize("target", ["raylet", "gcs_server"])
def test_a_cluster_that_dies_leaves_the_line_that_goes_on(tmp_path, target):
    """Of a cluster that the run has joined. Ray ends the process itself: at once, or a minute after its GCS is gone."""
    with ExitStack() as stack:
        place, port = Path(tempfile.mkdtemp(prefix="afg-", dir="/tmp")), free_port()  # Ray's sockets need short paths
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        words = ("--head", "--port", str(port), "--num-cpus", "2", "--include-dashboard", "false")
        env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "RAY_AUTH_MODE": "disabled"}
        head = start_node(Node((), "127.0.0.1"), env, place / "h", *words)
        stack.callback(end, [head])
        wait_for_start({place / "h" / LOG: head})
        run, log = tmp_path / "run", tmp_path / "log"
        process = start([*WORDS, *ROUNDS, "--output", str(run), "--cluster.address", f"127.0.0.1:{port}"], log)
        while process.poll() is None and not rows_of(run):
            time.sleep(0.1)
        (victim,) = (p for p in psutil.Process(head.pid).children(recursive=True) if p.name() == target)
        victim.kill()
        assert process.wait(150) in (3, 1)
        assert f"anchorfl resume {run}" in last_line(log)
        assert "Traceback" not in log.read_text()
