"""Leaving Ray: no collection of garbage in another thread meanwhile. Starting it: a second time where it fails."""

import gc
import os
import signal
import subprocess
import weakref
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray
from ray.exceptions import AuthenticationError

from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.tasks.errors import InputError


class Cycle:
    """Stands for a reference to one of Ray's objects, in a cycle that only the garbage collector frees."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize(
    "error", [ConnectionError("a\nb"), ValueError("a\nb"), RuntimeError("a\nb"), AuthenticationError("a\nb")]
)
def test_an_address_where_ray_cannot_connect_is_one_line(monkeypatch, error):
    monkeypatch.setattr(ray, "init", Mock(side_effect=error))
    with pytest.raises(InputError, match=r"\Acluster.address = 'foo:bar': no Ray cluster .* \(a\); give 'auto'"):
        ray_cluster.start(ClusterOptions(address="foo:bar"))


def test_a_cluster_that_lacks_what_is_waited_for_is_left(monkeypatch):
    """The next run of the process would else be on it, whatever address it names."""
    joined = []
    monkeypatch.setattr(ray, "init", lambda **_: joined.append(True))
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(joined))
    monkeypatch.setattr(ray, "shutdown", joined.clear)
    monkeypatch.setattr(ray_cluster, "wait_for_nodes", Mock(side_effect=InputError("four nodes did not come")))
    monkeypatch.setattr(ray_cluster, "_wants_token", lambda: True)
    with pytest.raises(InputError, match="did not come"):
        ray_cluster.start(ClusterOptions(address="auto", wait_for_cpus=4))
    assert not joined


@pytest.mark.parametrize("automatic", [True, False], ids=["collector on", "collector off"])
@pytest.mark.parametrize("fault", [None, RuntimeError("no answer")], ids=["leaves", "fails"])
def test_nothing_of_rays_is_freed_while_it_shuts_down(monkeypatch, automatic, fault):
    """Ray ends the process where another thread frees a reference then: "The core worker has already been shutdown"."""
    held = weakref.ref(Cycle())
    seen = []

    def shutdown():
        seen.append((held() is None, gc.isenabled()))
        if fault:
            raise fault

    monkeypatch.setattr(ray, "shutdown", shutdown)
    before = gc.isenabled()
    try:
        (gc.enable if automatic else gc.disable)()
        if fault:
            with pytest.raises(RuntimeError, match="no answer"):
                ray_cluster.stop()
        else:
            ray_cluster.stop()
        assert seen == [(True, False)]  # freed before, the collector off meanwhile
        assert gc.isenabled() is automatic
    finally:
        (gc.enable if before else gc.disable)()


def failing_starts(monkeypatch, failures):
    """Let ``ray.init`` fail so often; return the list of its calls, each with the wait that Ray is told."""
    calls = []

    def init(**_):
        calls.append(os.environ.get(f"RAY_{ray_cluster.WAITS[0]}"))
        if len(calls) <= failures:
            raise Exception("The current node timed out during startup.\nThis could happen because")  # noqa: TRY002

    monkeypatch.setattr(ray_cluster.auth_token, "ensure_token", lambda: None)
    monkeypatch.setattr(ray_cluster, "_own_folder", lambda: None)
    monkeypatch.setattr(ray_cluster, "RayWatch", Mock)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    for name in ray_cluster.WAITS:
        monkeypatch.setenv(f"RAY_{name}", "0")  # so that it is put back
        monkeypatch.delenv(f"RAY_{name}")
    return calls


def test_a_ray_that_does_not_come_up_in_time_gets_a_second_start_with_a_longer_wait(monkeypatch, capsys):
    calls = failing_starts(monkeypatch, 1)
    assert ray_cluster.start(ClusterOptions())
    assert calls == [None, "150"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "timed out during startup" in line


def test_a_ray_that_does_not_start_twice_is_one_line(monkeypatch, capsys):
    calls = failing_starts(monkeypatch, 9)
    with pytest.raises(InputError, match=r"does not start.*timed out during startup.*--cluster.executor serial"):
        ray_cluster.start(ClusterOptions())
    assert len(calls) == 2


@pytest.mark.parametrize(("own", "given"), [(3.5, {"num_cpus": 3}), (0.5, {"num_cpus": 1}), (8.0, {})])
def test_ray_gets_the_cpus_that_this_process_may_use(monkeypatch, own, given):
    """Under Slurm and ``taskset`` it would count all of the machine; where they are all, it counts itself."""
    failing_starts(monkeypatch, 0)
    seen = dict[str, object]()
    monkeypatch.setattr(ray, "init", lambda **options: seen.update(options))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(ray_cluster, "own_cpus", lambda: own)
    ray_cluster.start(ClusterOptions())
    assert {name: value for name, value in seen.items() if name == "num_cpus"} == given


def test_a_failed_start_leaves_no_process(monkeypatch):
    """``ray.init`` does, and a ``ray.shutdown`` after it knows nothing of them."""
    gcs = Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server"
    started = []

    def init(**_):
        started.append(
            subprocess.Popen([gcs, "--redis_address=127.0.0.1", "--redis_port=1"], stderr=subprocess.DEVNULL)
        )
        raise RuntimeError("no answer")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(RuntimeError, match="no answer"):
        ray_cluster._init()
    assert started[0].wait(30) == -signal.SIGKILL
