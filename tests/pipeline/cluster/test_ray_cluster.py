"""Leaving Ray: no collection of garbage in another thread meanwhile."""

import gc
import weakref

import pytest
import ray

from anchorfl.pipeline.cluster import ray_cluster


class Cycle:
    """Stands for a reference to one of Ray's objects, in a cycle that only the garbage collector frees."""

    def __init__(self):
        self.itself = self


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
