"""Logical GPUs, and a cluster that somebody else started; in processes of their own, as each needs its own Ray."""

from __future__ import annotations

import pytest

import anchorfl
from anchorfl.pipeline.run.lifecycle import run
from tests.processes import checksum_of, python
from tests.runs import quiet

pytestmark = [pytest.mark.ray, pytest.mark.apart]
OPTIONS = ("federation.rounds", 1, "federation.epochs", 1, "tracking.uri", "none", "cluster.clients_per_actor", 5)
SMALL = ", ".join(repr(f"--{o}" if i % 2 == 0 else str(o)) for i, o in enumerate(OPTIONS))


@pytest.fixture(scope="module")
def serial_checksum(tmp_path_factory):
    given = dict(zip(OPTIONS[::2], OPTIONS[1::2], strict=True)) | {"cluster.executor": "serial"}
    experiment = anchorfl.read_preset("digits/fedavg", given)
    return run(experiment, tmp_path_factory.mktemp("serial") / "run", quiet).checksum


@pytest.mark.slow
def test_logical_gpus_are_shared_out(tmp_path, serial_checksum):
    """Two actors of half a GPU on one logical GPU; three quarters are refused. No GPU is real, so the bits stay."""
    code = f"""
import ray
ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, logging_level='ERROR', log_to_driver=False)
from anchorfl.pipeline.cli.main import main
print(main(['run', 'digits/fedavg', '--cluster.client_gpus', '0.5', {SMALL}]))
print(main(['run', 'digits/fedavg', '--cluster.client_gpus', '0.75', {SMALL}]))
"""
    done = python(code, tmp_path, CUDA_VISIBLE_DEVICES="0")
    assert checksum_of(done) == serial_checksum
    assert "2 client actors of 0.75 GPU and a server of 0 need 1.5 GPUs, the cluster has 1" in done.stderr
    assert done.stdout.rstrip().endswith("2")


def test_a_running_cluster_is_joined_and_left_alone(tmp_path, serial_checksum):
    """``--cluster.address``: same bits, and the cluster stays."""
    code = f"""
import ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={{'num_cpus': 2, 'include_dashboard': False}})
from anchorfl.pipeline.cli.main import main
print(main(['run', 'digits/fedavg', '--cluster.address', cluster.address, {SMALL}]))
ray.init(cluster.address, logging_level='ERROR')
print('nodes', len(ray.nodes()))
ray.shutdown()
cluster.shutdown()
"""
    done = python(code, tmp_path)
    assert checksum_of(done) == serial_checksum
    assert "nodes 1" in done.stdout


def test_where_no_cluster_runs_one_line_says_so(tmp_path):
    """Ray of other tests may run here, which 'auto' would join, so the process is told that there is none."""
    code = f"""
from functools import cache
from ray._private import services
services.find_gcs_addresses, services.find_bootstrap_address = cache(set), lambda *_: None
from anchorfl.pipeline.cli.main import main
print(main(['run', 'digits/fedavg', '--cluster.address', 'auto', {SMALL}]))
"""
    done = python(code, tmp_path)
    assert "cluster.address = 'auto': no Ray cluster that can be used answers there" in done.stderr
    assert done.stdout.rstrip().endswith("2")
