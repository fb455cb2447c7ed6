"""``deploy/slurm.sh`` on two nodes, with stand-ins for Slurm's ``srun`` and ``scontrol``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import checksum_of
from tests.ray import namespaces

pytestmark = [pytest.mark.ray, pytest.mark.cluster]
ROOT = Path(__file__).resolve().parents[2]
SRUN = f"""#!/bin/sh
exec unshare --net {sys.executable} -m tests.ray.namespaces "$SLURM_JOB_NUM_NODES" \\
    sh -c 'export SLURM_TMPDIR="$TMPDIR"; exec "$@"' sh "$@"
"""
SCONTROL = f"#!/bin/sh\nprintf '%s\\n' {namespaces.address(0)} {namespaces.address(1)}\n"
ANCHORFL = f'#!/bin/sh\nexec {sys.executable} -m anchorfl "$@"\n'
TRAIN = ("run", "digits/fedavg", "--federation.rounds", "2", "--federation.epochs", "1", "--tracking.uri", "none")


@pytest.fixture
def sbatch(tmp_path):
    """Return what runs the script as ``sbatch`` does; skip where there can be no nodes."""
    if why := namespaces.possible():
        pytest.skip(f"no network namespaces here: {why}")
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "anchorfl": ANCHORFL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    env = os.environ | {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HOME": str(home), "ANCHORFL_CACHE": str(tmp_path / "cache"),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "15",  # so long after its head a worker ends, 60 s else
    }  # fmt: skip
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_URI", "ANCHORFL_IN"):
        env.pop(name, None)

    def run(*words: str) -> subprocess.CompletedProcess:
        command = ["bash", str(ROOT / "deploy/slurm.sh"), *words]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.mark.slow
def test_two_nodes_train_the_bits_of_one_process(sbatch, tmp_path):
    done = sbatch(*TRAIN, "--cluster.clients_per_actor", "1", "--cluster.wait_for_cpus", "4", "--output", "there")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "On worker node. Connecting to Ray cluster" in done.stdout
    token = tmp_path / "home/.ray/auth_token"
    assert token.stat().st_mode & 0o077 == 0
    here = subprocess.run(
        [sys.executable, "-m", "anchorfl", *TRAIN, "--cluster.executor", "serial", "--output", "here"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert checksum_of(done) == checksum_of(here)


@pytest.mark.parametrize(
    ("command", "takes"),
    [("run digits/fedavg", True), ("sweep digits/fedavg --trials 2", True), ("table fedalign --show", True),
     ("data prepare digits", True), ("sweep --resume runs/run", False), ("resume runs/run", False),
     ("resume run x", False), ("compare runs/a runs/b", False), ("data check run .csv", False)],
)  # fmt: skip
def test_only_commands_that_train_are_given_the_cluster(sbatch, tmp_path, command, takes):
    srun = tmp_path / "bin" / "srun"
    srun.write_text('#!/bin/sh\nwhile [ "$1" != bash ]; do shift; done\nshift 3\necho "$@"\n')
    srun.chmod(0o755)
    (tmp_path / "home/.ray").mkdir()
    (tmp_path / "home/.ray/auth_token").write_text("token")
    done = sbatch(*command.split())
    assert done.stdout == f"bash anchorfl {command}{' --cluster.address auto' * takes}\n", done.stderr


@pytest.mark.slow
def test_a_command_that_fails_gives_its_exit_code_and_a_run_is_resumed(sbatch):
    bad = sbatch("run", "digits/fedavg", "--federation.rounds", "0")
    assert bad.returncode == 2, bad.stdout[-3000:] + bad.stderr[-3000:]
    assert "federation.rounds" in bad.stderr
    first = sbatch(*TRAIN, "--output", "a")
    assert first.returncode == 0, first.stderr[-3000:]
    again = sbatch("resume", "a")
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]


def test_without_a_command_it_says_what_it_wants(sbatch):
    done = sbatch()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "slurm.sh: give it what you would give to anchorfl, such as: run digits/fedavg\n"
