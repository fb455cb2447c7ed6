"""Nodes of a Ray cluster on this machine, each a ``ray start --block`` of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.processes import free_port

LOG = "start.log"
ROOT = Path(__file__).resolve().parents[2]


def environment(disk: Path) -> dict[str, str]:
    """Return the environment of nodes on loopback with their cache on this disk, and no service of the user's in it."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "ANCHORFL_CACHE": str(disk / "cache")}
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "ANCHORFL_DATA", "MLFLOW_TRACKING_URI"):
        env.pop(name, None)
    return env | {"RAY_AUTH_MODE": "disabled"}


@dataclass
class Node:
    """A node: the words before its commands, and its address."""

    prefix: tuple[str, ...]
    address: str


def start_node(node: Node, env: dict[str, str], place: Path, *words: str) -> subprocess.Popen:
    """``ray start --block``."""
    place.mkdir()
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    shared = ["--node-ip-address", node.address, "--temp-dir", str(place), "--object-store-memory", "600000000"]
    shared += ["--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", str(free_port())]
    with (place / LOG).open("w") as log:
        return subprocess.Popen(
            [*node.prefix, *ray, *shared, *words],
            env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def wait_for_start(running: dict[Path, subprocess.Popen], seconds: float = 60) -> None:
    """Wait until all nodes run (log -> process); AssertionError with the end of a log where one does not."""
    until = time.monotonic() + seconds
    for log, process in running.items():
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, f"{log}: ended\n{log.read_text()[-2000:]}"
            assert time.monotonic() < until, f"{log}: not within {seconds:g} s\n{log.read_text()[-2000:]}"
            time.sleep(0.3)
