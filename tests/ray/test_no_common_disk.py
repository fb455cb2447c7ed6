"""A head without CPUs and a worker that share no disk: the worker's mounts are its own, and hide the head's folder.

Needs Linux and root (``unshare --mount``). Both share this machine's network; prepared data go through a folder that
stands for a bucket.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.processes import MAIN, checksum_of, end, free_port
from tests.ray.nodes import LOG, Node, environment, start_node, wait_for_start

pytestmark = [pytest.mark.ray, pytest.mark.cluster]
HIDDEN = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"')
"""Before a folder and a command: runs the command where that folder is empty, and nobody else's."""


@pytest.fixture(scope="module")
def head():
    """Yield what runs ``anchorfl`` on the head, and the head's folder; skip where mounts cannot be hidden."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="afd-", dir="/tmp"))  # Ray's sockets lie there: their paths must be short
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        disk = folder / "disk"
        disk.mkdir()
        tried = subprocess.run([*HIDDEN, str(disk), "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"no mount namespaces here: {tried.stderr.strip()}")
        env, port = environment(disk), free_port()
        address, here = f"127.0.0.1:{port}", Node((), "127.0.0.1")
        words = ("--head", "--port", str(port), "--num-cpus", "0", "--include-dashboard", "false")
        running = {folder / "h" / LOG: start_node(here, env, folder / "h", *words)}
        stack.callback(end, running.values())
        wait_for_start(running)
        there = Node((*HIDDEN, str(disk)), "127.0.0.1")
        running = {folder / "w" / LOG: start_node(there, env, folder / "w", "--address", address, "--num-cpus", "2")}
        stack.callback(end, running.values())
        wait_for_start(running)

        def anchorfl(*words: str, on_cluster: bool = True) -> subprocess.CompletedProcess:
            cluster = ("--cluster.address", address) if on_cluster else ("--cluster.executor", "serial")
            command = [sys.executable, "-c", MAIN, *words, *cluster, "--tracking.uri", "none"]
            return subprocess.run(command, cwd=disk, env=env, capture_output=True, text=True, timeout=240, check=False)

        yield anchorfl, disk


@pytest.fixture(scope="module")
def images(head):
    """Write images and their table on the head's disk; return the words that name them."""
    disk, rng = head[1], np.random.default_rng(0)
    lines = ["image,kind"]
    for i in range(60):
        Image.fromarray(rng.integers(0, 80 * (1 + i % 3), (12, 12), np.uint8)).save(disk / f"{i}.png")
        lines.append(f"{i}.png,{'abc'[i % 3]}")
    (disk / "shots.csv").write_text("\n".join(lines) + "\n")
    return [
        "run", "digits/fedavg", "--task.file", "shots.csv", "--task.label_columns", "kind", "--task.clients", "4",
        "--task.classes_per_client", "2", "--federation.rounds", "2", "--federation.epochs", "1",
    ]  # fmt: skip


def test_images_on_the_heads_disk_are_encoded_there(head, images):
    """Same bits as in one process; the head says why it does the work."""
    anchorfl, disk = head
    shared = f"file://{disk.parent}/bucket"
    there = anchorfl(*images, "--task.cache", shared, "--output", "there")
    assert there.returncode == 0, there.stderr[-3000:]
    assert there.stdout.count("1 of 1 other nodes do not see") == 1
    here = anchorfl(*images, "--output", "here", on_cluster=False)
    assert "do not see" not in here.stdout
    assert checksum_of(there) == checksum_of(here)


def test_a_bad_image_is_one_line(head, images):
    anchorfl, disk = head
    (disk / "bad.csv").write_text((disk / "shots.csv").read_text() + "broken.png,a\n")
    (disk / "broken.png").write_bytes((disk / "0.png").read_bytes()[:60])
    words = [word.replace("shots.csv", "bad.csv") for word in images]
    done = anchorfl(*words, "--task.cache", f"file://{disk.parent}/bucket", "--output", "bad")
    assert done.returncode == 2, done.stderr[-3000:]
    assert "broken.png: the image cannot be read" in done.stderr.splitlines()[-1]
    assert not (disk / "bad").exists()


@pytest.mark.slow
def test_without_a_place_that_both_see_the_run_says_what_to_give(head):
    anchorfl, _ = head
    words = ("run", "digits/fedavg", "--federation.rounds", "1", "--federation.epochs", "1", "--output", "without")
    done = anchorfl(*words)
    assert done.returncode == 2, done.stderr[-3000:]
    assert "nodes that share no disk need --task.cache s3://BUCKET/cache" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_what_clients_keep_is_on_the_heads_disk(head):
    """Stopped by the end of its rounds, resumed with its memories from there: the bits of one process."""
    anchorfl, disk = head
    cache = ("--task.cache", f"file://{disk.parent}/bucket")
    words = ("run", "suite-digits-masks-2/scaffold", "--federation.rounds", "2", "--federation.epochs", "1")
    there = anchorfl(*words, *cache, "--output", "kept")
    assert there.returncode == 0, there.stderr[-3000:]
    assert list((disk / "kept/checkpoint").glob("memory-000002*"))
    here = anchorfl(*words, "--output", "kept-here", on_cluster=False)
    assert checksum_of(there) == checksum_of(here)


@pytest.mark.slow
def test_a_sweep_keeps_its_final_runs_in_a_backup_or_is_refused(head):
    anchorfl, disk = head
    cache = ("--task.cache", f"file://{disk.parent}/bucket")
    words = ("sweep", "digits/fedavg", "--trials", "1", "--seeds", "1", "--rounds", "2", "--scheduler", "none",
             "--finals", "1", "--federation.rounds", "2", "--federation.epochs", "1", *cache)  # fmt: skip
    refused = anchorfl(*words, "--output", "sweep")
    assert refused.returncode == 2, refused.stderr[-3000:]
    assert "would be lost: give --cluster.backup" in refused.stderr.splitlines()[-1]
    backup = f"file://{disk.parent}/bucket/runs"
    done = anchorfl(*words, "--output", "sweep", "--cluster.backup", backup)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "test, chosen point" in done.stdout
    (final,) = (disk / "sweep/final").iterdir()
    assert (final / "result.json").exists(), "brought here from the backup"
