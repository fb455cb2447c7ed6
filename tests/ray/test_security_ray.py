"""A Ray of our own: on loopback alone, for who has the token alone, in a folder that nobody else enters."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.tasks.errors import InputError

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[2]
LOOK = """
import http.client, json, os, stat, subprocess, sys, psutil
from concurrent.futures import ThreadPoolExecutor
from anchorfl.pipeline.cluster import ray_cluster as cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
cluster.start(ClusterOptions())
import ray

@ray.remote
class Worker:
    def ready(self):
        return os.environ.get("RAY_AUTH_MODE")

worker = Worker.remote()
seen = {"mode": ray.get(worker.ready.remote())}
us = psutil.Process()
seen["commands"] = [" ".join(process.cmdline()) for process in us.children(recursive=True)]
listening, ports = {}, set()
for process in (us, *us.children(recursive=True)):
    for c in process.net_connections(kind="inet"):
        if c.status == psutil.CONN_LISTEN or c.type == 2:
            listening.setdefault(process.name(), []).append(c.laddr.ip)
        if c.status == psutil.CONN_LISTEN:
            ports.add(c.laddr.port)

def asked_for_metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):  # no HTTP
        return 0

with ThreadPoolExecutor(len(ports)) as pool:
    seen["metrics"] = list(pool.map(asked_for_metrics, ports))
node = ray._private.worker._global_node
folder = node.get_session_dir_path()
seen |= {"listening": listening, "address": node.address_info["gcs_address"], "folder": folder}
around = os.path.dirname(os.path.dirname(folder))
seen["around"] = [around, stat.S_IMODE(os.stat(around).st_mode), os.stat(around).st_uid]
token = os.path.expanduser("~/.ray/auth_token")
seen["token"] = [open(token).read(), stat.S_IMODE(os.stat(token).st_mode)]
JOIN = '''
import sys, ray
try:
    ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
    print("joined", ray.get(ray.remote(lambda: 6 * 7).remote()))
except Exception as error:
    print("refused", type(error).__name__, " ".join(str(error).split())[:300])
'''
asking = {}
for name, home, change in (
    ("none", "/nowhere", {"RAY_AUTH_MODE": "disabled"}),
    ("wrong", "/nowhere", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}),
    ("right", os.environ["HOME"], {"RAY_AUTH_MODE": "token"}),
):  # at once: Ray asks for some twenty seconds before it gives up
    code = [sys.executable, "-c", JOIN, seen["address"]]
    # else Ray would look for 127.0.0.1 at the machine's own address, where nobody listens
    env = os.environ | {"HOME": home, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} | change
    asking[name] = subprocess.Popen(code, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
for name, process in asking.items():
    try:
        out, err = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    seen[name] = f"{out.strip()} {err[-300:]}"
print("SEEN " + json.dumps(seen))
cluster.stop()
"""


def python(code: str, home: Path, **env: str) -> subprocess.CompletedProcess:
    inherited = (
        os.environ | {"PYTHONPATH": str(ROOT / "src"), "HOME": str(home), "ANCHORFL_CACHE": str(home / "cache")} | env
    )
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR"):
        inherited.pop(name, None) if name not in env else None
    return subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=inherited, capture_output=True, text=True, timeout=550, check=False
    )


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    done = python(LOOK, home)
    line = next((line for line in done.stdout.splitlines() if line.startswith("SEEN ")), None)
    assert line is not None, done.stdout + done.stderr
    return json.loads(line.removeprefix("SEEN ")) | {"err": done.stderr}


def test_everything_listens_on_loopback(seen):
    """By the kernel's list of sockets, of every process that a start brings: driver, head, raylet, agents, workers."""
    assert {"gcs_server", "raylet"} <= set(seen["listening"])
    assert any(name.startswith("ray::Worker") for name in seen["listening"])
    for name, places in seen["listening"].items():
        for place in places:
            found = ipaddress.ip_address(place)
            found = getattr(found, "ipv4_mapped", None) or found
            assert found.is_loopback, (name, place)
    assert seen["address"].startswith("127.0.0.1:")


def test_processes_that_nobody_asks_are_not_started(seen):
    commands = "\n".join(seen["commands"])
    assert "raylet" in commands
    assert not [name for name in ("dashboard/dashboard.py", "/monitor.py", "log_monitor.py") if name in commands]


def test_nobody_gets_metrics_without_the_token(seen):
    """Ray's agent would give them to every user of the machine."""
    assert len(seen["metrics"]) > 4
    assert 200 not in seen["metrics"]


def test_who_has_no_token_is_refused(seen):
    assert seen["mode"] == "token"
    assert seen["right"].startswith("joined 42"), seen["right"]
    for name in ("none", "wrong"):
        assert "joined" not in seen[name]
        assert "InvalidAuthToken" in seen[name], seen[name]


def test_the_token_and_the_folder_are_nobody_else_s(seen):
    token, mode = seen["token"]
    assert len(token) == 64
    assert mode == 0o600
    around, mode, owner = seen["around"]
    assert mode == 0o700, around
    assert owner == os.getuid()
    for place in (Path(seen["folder"]) / "logs").rglob("*"):
        if place.is_file():
            assert token not in place.read_text(errors="replace"), place


def test_a_ray_without_a_token_is_said_aloud(tmp_path):
    code = (
        "from anchorfl.pipeline.cluster import ray_cluster;"
        " from anchorfl.pipeline.config.cluster import ClusterOptions;"
        " ray_cluster.start(ClusterOptions())"
    )
    done = python(code, tmp_path, RAY_AUTH_MODE="disabled")
    assert done.returncode == 0, done.stderr
    assert "RAY_AUTH_MODE = 'disabled': every user of this machine can run code in this Ray" in done.stderr
    assert not (tmp_path / ".ray").exists()


def test_a_long_folder_for_temporary_files_is_left(tmp_path, monkeypatch, capsys):
    """As of batch systems: a path of a socket has 107 characters at most."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 10)))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    assert ray_cluster._own_folder() == f"/tmp/ray-{os.getuid()}/r"
    assert "is too long for Ray's sockets, which go to /tmp; RAY_TMPDIR names another place" in capsys.readouterr().err
    path = f"{'x' * ray_cluster.LONGEST}/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
    assert len(path) <= 107


def test_a_folder_that_others_may_enter_is_refused(tmp_path, monkeypatch):
    """Somebody else may have made it first."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(ray_cluster, "LONGEST", 1000)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    around = tmp_path / f"ray-{os.getuid()}"
    assert ray_cluster._own_folder() == str(around / "r")
    assert stat.S_IMODE(around.stat().st_mode) == 0o700
    around.chmod(0o770)
    with pytest.raises(InputError, match="no folder that only you may enter"):
        ray_cluster._own_folder()
    around.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    around.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="no folder that only you may enter"):
        ray_cluster._own_folder()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert ray_cluster._own_folder() is None


def test_a_ray_that_listens_elsewhere_is_ended(monkeypatch):
    """As other versions of Ray may do."""
    ended = []
    monkeypatch.setattr(ray_cluster.auth_token, "ensure_token", lambda: None)
    monkeypatch.setattr(ray_cluster, "_own_folder", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")
    with pytest.raises(InputError, match=r"listens on 192\.0\.2\.7 and not on loopback alone"):
        ray_cluster.start(ClusterOptions())
    assert ended == [True]
