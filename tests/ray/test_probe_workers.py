"""``anchorfl probe`` on Ray: a worker that nothing has used before, and a run with what was written."""

from __future__ import annotations

import json

import pytest
import torch

from tests.processes import python

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_a_fresh_ray_worker_and_what_became_of_it(tmp_path):
    code = """
import os, signal
from anchorfl.pipeline.cluster import ray_cluster as cluster; from anchorfl.pipeline.execution import system_metrics as
           usage
from anchorfl.pipeline.config.cluster import ClusterOptions
cluster.start(ClusterOptions())
import ray
def ballast(n):
    held = b'1' * n
    return os.getpid(), usage.peak_resident()
def wrong():
    raise MemoryError('too much\\nand more')
used = ray.get(ray.remote(num_cpus=1)(ballast).remote(900_000_000))
pid, peak = cluster.in_fresh_worker(ballast, 1)
print('GAVE', used[0] != pid, used[1] > 900e6 > peak)
for call in ((wrong,), (signal.raise_signal, signal.SIGKILL)):
    try:
        cluster.in_fresh_worker(lambda f, *a: f(*a), *call)
    except RuntimeError as error:
        print('GAVE', error)
print('GAVE', all(node.memory > 1e8 and node.cpus >= 1 for node in cluster.nodes()))
"""
    done = python(code, tmp_path)
    # Ray prints lines of its own when a worker is killed.
    lines = [line.removeprefix("GAVE ") for line in done.stdout.splitlines() if line.startswith("GAVE ")]
    assert lines[:2] == ["True True", "MemoryError: too much"], done.stderr
    assert lines[2].startswith("WorkerCrashedError: ")
    assert lines[3:] == ["True"]


@pytest.mark.slow
def test_probe_on_a_cluster_and_a_run_with_what_it_wrote(tmp_path):
    """One logical GPU that torch cannot see is refused, not passed over; without it, the run starts as was written."""
    code = """
import ray
ray.init(num_cpus=4, num_gpus=1, include_dashboard=False, logging_level='ERROR', log_to_driver=False)
from anchorfl.pipeline.cli.main import main
from anchorfl.pipeline.cli.probe import probe
from anchorfl.tasks.errors import InputError
SHORT = ['--federation.rounds', '1', '--federation.epochs', '1', '--tracking.uri', 'none']
try:
    probe(['digits/fedavg', *SHORT])
except InputError as error:
    print('REFUSED', error)
print('PROBE', probe(['digits/fedavg', *SHORT, '--cpu']))
print('RUN', main(['run', 'digits/fedavg', *SHORT, *open('probe.txt').read().split()]))
"""
    done = python(code, tmp_path, CUDA_VISIBLE_DEVICES="0")
    if not torch.cuda.is_available():
        assert (
            "REFUSED client 5 could not be measured: RuntimeError: the GPU's free memory cannot be read" in done.stdout
        )
        assert "(--cpu leaves GPUs out)" in done.stdout
    assert "PROBE 0" in done.stdout, done.stderr
    assert "RUN 0" in done.stdout, done.stderr
    figures = json.loads((tmp_path / "probe.json").read_text())
    assert figures["shares"]["by_cpus"] == 4
    assert figures["shares"]["actors"] == 4
    records = next(tmp_path.glob("runs/digits-*/metrics.jsonl")).read_text().splitlines()
    metrics = json.loads(records[-1])["metrics"]
    actors = [v for k, v in metrics.items() if k.startswith("system/actor_") and k.endswith("memory_megabytes")]
    assert actors
    # What the probe measured is what the actors of a real run needed.
    assert all(abs(v * 1e6 / figures["client"]["peak"] - 1) < 0.1 for v in actors)
    server = metrics["system/server_memory_megabytes"] * 1e6
    assert abs(server / figures["server"]["peak"] - 1) < 0.1
