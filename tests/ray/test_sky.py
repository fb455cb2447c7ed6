"""The ``run`` of ``deploy/sky.yaml`` on two nodes, as SkyPilot runs it on each of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.ray import namespaces

pytestmark = [pytest.mark.ray, pytest.mark.cluster, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
SWEEP = "anchorfl sweep digits/fedalign --trials 40"
SMALL = (
    "anchorfl sweep digits/fedalign --trials 2 --scheduler none --seeds 1 --finals 1"
    " --federation.rounds 2 --federation.epochs 1 --task.validation 0.2 --tracking.uri none"
)


def test_a_sweep_runs_and_a_second_start_goes_on_from_its_copy(tmp_path):
    if why := namespaces.possible():
        pytest.skip(f"no network namespaces here: {why}")
    text = yaml.safe_load((ROOT / "deploy/sky.yaml").read_text())["run"]
    assert SWEEP in text
    text = text.replace("--cluster.client_gpus 0.1", "").replace(SWEEP, SMALL)  # no GPUs here
    script = f'export SKYPILOT_NODE_RANK=$NODE_RANK RAY_TMPDIR=$TMPDIR\ncd "$OLD"\n{text}'
    home = tmp_path / "home"
    (home / "anchorfl/bin").mkdir(parents=True)
    (home / "anchorfl/bin/ray").symlink_to(Path(sys.executable).parent / "ray")
    program = home / "anchorfl/bin/anchorfl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m anchorfl "$@"\n')
    program.chmod(0o755)
    env = os.environ | {
        "HOME": str(home), "OLD": str(tmp_path), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "RAY_AUTH_TOKEN": "0" * 64,
        "SKYPILOT_NODE_IPS": f"{namespaces.address(0)}\n{namespaces.address(1)}", "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "0", "NAME": "sweep", "RUNS": f"file://{tmp_path}/bucket/runs",
        "CACHE": f"file://{tmp_path}/bucket/cache",
    }  # fmt: skip

    def start() -> subprocess.CompletedProcess:
        nodes = ["unshare", "--net", sys.executable, "-m", "tests.ray.namespaces", "2", "bash", "-c", script]
        return subprocess.run(nodes, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400, check=False)

    first = start()
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    (tmp_path / "runs").rename(tmp_path / "lost")  # the machine is taken away, its disk with it
    again = start()
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    before, after = ((tmp_path / folder / "sweep/ledger.jsonl").read_text() for folder in ("lost", "runs"))
    assert after.startswith(before)  # nothing was trained again
    assert after.count("\n") <= before.count("\n") + 1
