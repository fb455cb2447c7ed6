"""A cluster of three nodes: a head without CPUs and two workers, each with 2 CPUs and 1 logical GPU.

Each node is a ``ray start --block`` of its own. Where the machine allows it (Linux, root, ``ip netns``), every node has
a network namespace with an address of its own, and the driver runs on the head, as on a real cluster; elsewhere all
nodes share loopback. The property ``network`` of each test, and a line of its output, say which.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import MAIN, checksum_of, end, free_port
from tests.ray.nodes import LOG, Node, start_node, wait_for_start

pytestmark = [pytest.mark.ray, pytest.mark.cluster]
ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--federation.rounds", "2", "--federation.epochs", "1")
UNTRACKED = ("--tracking.uri", "none")
SUBNET = "192.0.2"  # set aside for documentation (RFC 5737); here it exists only inside the namespaces of the test
PLACES = """
import json, sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
from ray.util.state import list_actors
heads = [n["NodeID"] for n in ray.nodes() if not n["Resources"].get("CPU")]
workers = [n["NodeID"] for n in ray.nodes() if n["Resources"].get("CPU")]
actors = [(a.class_name, a.node_id, a.job_id) for a in list_actors(address=sys.argv[1], limit=1000)]
print(json.dumps({"heads": heads, "workers": workers, "actors": actors}))
"""


def ip(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)


def nodes_of(places: dict, kind: str) -> set[str]:
    return {node for name, node, _ in places["actors"] if name == kind}


@dataclass
class Cluster:
    network: str
    head: Node
    address: str
    env: dict[str, str]
    folder: Path

    def python(self, code: str, *words: str, timeout: float = 240) -> subprocess.CompletedProcess:
        """Run code on the head, in a session of its own that ends with the call."""
        command = [*self.head.prefix, sys.executable, "-c", code, *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )

    def anchorfl(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess:
        return self.python(MAIN, *words, timeout=timeout)

    def places(self) -> dict:
        done = self.python(PLACES, self.address)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


def namespaces(stack: ExitStack) -> list[Node]:
    """Make three namespaces joined by a bridge that lies in the first; [] where the machine refuses."""
    names = [f"anchorfl-{os.getpid()}-{n}" for n in ("head", "one", "two")]
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return []
    steps = []
    for name in names:
        stack.callback(ip, "netns", "del", name)  # takes the links in it along; of one that is not there, no matter
        steps += [("netns", "add", name), ("-n", name, "link", "set", "lo", "up")]
    head, *workers = names
    steps += [
        ("-n", head, "link", "add", "bridge", "type", "bridge"),
        ("-n", head, "addr", "add", f"{SUBNET}.1/24", "dev", "bridge"),
        ("-n", head, "link", "set", "bridge", "up"),
    ]
    for i, name in enumerate(workers, start=2):
        steps += [
            ("-n", head, "link", "add", f"port{i}", "type", "veth", "peer", "name", "uplink", "netns", name),
            ("-n", head, "link", "set", f"port{i}", "master", "bridge", "up"),
            ("-n", name, "addr", "add", f"{SUBNET}.{i}/24", "dev", "uplink"),
            ("-n", name, "link", "set", "uplink", "up"),
        ]
    for step in steps:
        done = ip(*step)
        if done.returncode:
            print(f"no namespaces: ip {' '.join(step)}: {done.stderr.strip()}")
            return []
    return [Node(("ip", "netns", "exec", name), f"{SUBNET}.{i}") for i, name in enumerate(names, start=1)]


@pytest.fixture(scope="module")
def cluster():
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="afl-", dir="/tmp"))  # Ray's sockets lie there: their paths must be short
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        nodes = namespaces(stack)
        network = "namespaces" if nodes else "loopback"
        print(f"network of the cluster: {network}")
        nodes = nodes or [Node((), "127.0.0.1")] * 3
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        env = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),  # as if AnchorFL were installed on every node
            "ANCHORFL_CACHE": str(folder / "cache"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "CUDA_VISIBLE_DEVICES": "99",  # a logical GPU with no device behind it, also on a machine that has one
        }
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "ANCHORFL_DATA", "MLFLOW_TRACKING_URI"):
            env.pop(name, None)
        port = free_port()
        address = f"{nodes[0].address}:{port}"
        words = ("--port", str(port), "--num-cpus", "0", "--num-gpus", "0", "--include-dashboard", "true")
        words += ("--dashboard-host", "127.0.0.1", "--dashboard-port", str(free_port()))
        running = {folder / "h" / LOG: start_node(nodes[0], env, folder / "h", "--head", *words)}
        stack.callback(end, running.values())
        wait_for_start(running)
        running = {}
        stack.callback(end, running.values())  # before the head, of which they take leave
        for name, node in zip(("a", "b"), nodes[1:], strict=True):
            words = ("--address", address, "--num-cpus", "2", "--num-gpus", "1")
            running[folder / name / LOG] = start_node(node, env, folder / name, *words)
        wait_for_start(running)
        yield Cluster(network, nodes[0], address, env, folder)


@pytest.fixture(scope="module")
def serial_checksum(cluster):
    done = cluster.anchorfl("run", "digits/fedavg", "--cluster.executor", "serial", *SHORT, *UNTRACKED)
    return checksum_of(done)


def test_clients_train_on_both_workers_and_none_on_the_head(cluster, serial_checksum, record_property):
    """Same bits as in one process. Four actors and the server: shares that went by the sum of all CPUs, 4/5 each,
    would fit two to a node, and the fifth would wait for ever.
    """
    record_property("network", cluster.network)
    done = cluster.anchorfl(
        "run", "digits/fedavg", "--cluster.address", cluster.address, "--cluster.client_gpus", "0.1",
        "--cluster.clients_per_actor", "3", *SHORT, *UNTRACKED,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert checksum_of(done) == serial_checksum
    assert done.stdout.count("their torch sees none") == 1  # the nodes' GPUs are logical ones
    places = cluster.places()
    assert len(places["heads"]) == 1
    assert len(places["workers"]) == 2
    assert nodes_of(places, "ClientActor") == set(places["workers"])
    assert nodes_of(places, "ServerActor") <= set(places["workers"])


def test_each_node_sums_for_its_clients(cluster, serial_checksum, record_property):
    record_property("network", cluster.network)
    before = {tuple(actor) for actor in cluster.places()["actors"]}
    done = cluster.anchorfl(
        "run", "digits/fedavg", "--cluster.address", cluster.address, "--cluster.clients_per_actor", "3",
        "--cluster.sum_on_nodes", "True", *SHORT, *UNTRACKED,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert checksum_of(done) == serial_checksum
    places = cluster.places()
    places["actors"] = [actor for actor in places["actors"] if tuple(actor) not in before]
    assert nodes_of(places, "NodeSumActor") == nodes_of(places, "ClientActor") == set(places["workers"])


def test_a_batched_run_trains_on_a_worker_with_its_gpu(cluster, record_property):
    """The head has neither CPUs nor GPUs; the bits are those of one process."""
    record_property("network", cluster.network)
    words = ("run", "digits/fedavg", "--method.name", "fedavg-positive", "--task.partition", "one_class",
             "--task.clients", "10", "--federation.clients_per_round", "0", "--federation.batched_clients", "True",
             "--optimizer.name", "sgd", "--optimizer.batch_size", "0", *SHORT, *UNTRACKED)  # fmt: skip
    here = cluster.anchorfl(*words, "--cluster.executor", "serial")
    before = {tuple(actor) for actor in cluster.places()["actors"]}
    there = cluster.anchorfl(*words, "--cluster.address", cluster.address, "--cluster.client_gpus", "0.5")
    assert there.returncode == 0, there.stderr
    assert checksum_of(there) == checksum_of(here)
    assert there.stdout.count("their torch sees none") == 1
    places = cluster.places()
    places["actors"] = [actor for actor in places["actors"] if tuple(actor) not in before]
    (node,) = nodes_of(places, "BatchedActor")
    assert node in places["workers"]


@pytest.mark.slow
def test_the_trials_of_a_sweep_run_on_both_workers(cluster, record_property):
    record_property("network", cluster.network)
    before = {tuple(actor) for actor in cluster.places()["actors"]}
    done = cluster.anchorfl(
        "sweep", "digits/fedalign", "--trials", "3", "--seeds", "1", "--rounds", "2", "--scheduler", "none",
        "--finals", "1", "--output", "sweep", "--cluster.client_gpus", "0.25", "--cluster.address", cluster.address,
        *SHORT, *UNTRACKED,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (cluster.folder / "sweep" / "ledger.jsonl").read_text().splitlines()]
    ends = [e["status"] + e["error"] for e in events if e["event"] == "end"]
    assert ends == ["finished"] * 3, done.stdout[-3000:]
    places = cluster.places()
    places["actors"] = [actor for actor in places["actors"] if tuple(actor) not in before]
    assert nodes_of(places, "ClientActor") == set(places["workers"])
    assert nodes_of(places, "ImplicitFunc") == set(places["workers"])  # what Tune calls the process of a trial
