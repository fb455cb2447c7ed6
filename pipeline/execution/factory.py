"""The choice of a run's executor, above all of them, so that none imports another's choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from anchorfl.pipeline.execution.batched_executor import BatchedExecutor
from anchorfl.pipeline.execution.executor import Executor, SerialExecutor
from anchorfl.pipeline.training.run_spec import RunSpec

if TYPE_CHECKING:
    from anchorfl.pipeline.execution.actor_pool import ActorPool


def executor_for(
    run_spec: RunSpec, actor_pool: Callable[[], ActorPool] | None = None, *, placed: bool = False
) -> Executor:
    """Return the executor that a run's options ask for: batched, client by client in this process, in forked
    workers, or on Ray actors.

    actor_pool: gives the pool to share with other runs, called only where the run needs one; None: a pool of its own.
    placed: this process has what a batched run needs, as a trial's has. InputError where the cluster has no room.
    """
    experiment = run_spec.experiment
    if experiment.federation.batched_clients:
        if placed or not experiment.cluster.uses_ray:
            return BatchedExecutor(run_spec)
        from anchorfl.pipeline.cluster.layout import batched_share

        share = batched_share(experiment.cluster)
        if share is None:
            return BatchedExecutor(run_spec)
        from anchorfl.pipeline.execution.batched_actor import BatchedActorExecutor

        return BatchedActorExecutor(run_spec, share)
    if experiment.cluster.executor == "serial":
        return SerialExecutor(run_spec)
    if experiment.cluster.forks:
        from anchorfl.pipeline.execution.forked_executor import ForkedExecutor

        return ForkedExecutor(run_spec)
    from anchorfl.pipeline.execution.ray_executor import RayExecutor  # runs in this process need no Ray

    return RayExecutor(run_spec, None if actor_pool is None else actor_pool())
