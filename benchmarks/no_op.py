"""A federation without training: clients load the weights that they are sent and send them back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.contract import (
    Averaging,
    AveragingTrainer,
    ClientContext,
    ClientTrainer,
    ServerState,
    Update,
)
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.config.experiment import Experiment, FederationOptions
from anchorfl.pipeline.config.tracking import TrackingOptions
from anchorfl.pipeline.execution.executor import Executor
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.options import TaskOptions

SIZES: Mapping[str, ModelOptions] = {
    "0.1": ModelOptions(width=38),
    "1.94": ModelOptions(width=915),
    "44": ModelOptions(network="resnet18", width=512),
}
"""Networks by the megabytes (10^6 bytes) of their weights: 10 tensors each, ResNet-18 62."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoOp(Averaging):
    """FedAvg without a step on the clients."""

    name = "fedavg"

    def trainer(self, ctx: ClientContext[ServerState]) -> ClientTrainer[ServerState, Update]:
        return NoOpTrainer(ctx)


class NoOpTrainer(AveragingTrainer):
    """A client that takes no step; its model holds what was sent."""

    def make_optimizers(self):
        return {}

    def epochs(self, count: int):
        return ()


def no_op_spec(population: int, clients: int, megabytes: str, actors: int = 0, forks: int = 0) -> RunSpec:
    """Return a run; each client has one or two digits. megabytes: of ``SIZES``; actors (which start Ray) or forks:
    workers, none for this process alone.
    """
    e = Experiment(
        task=TaskOptions(name="digits", partition="iid", clients=population, min_count=1),
        method=NoOp(),
        model=SIZES[megabytes],
        federation=FederationOptions(clients_per_round=clients, epochs=1),
        cluster=ClusterOptions(
            executor="ray" if actors else "forked" if forks else "serial",
            clients_per_actor=-(-population // actors) if actors else 0,
            max_concurrent_clients=forks,
        ),
        tracking=TrackingOptions(uri="none"),
    )
    if actors:
        from anchorfl.pipeline.cluster import ray_cluster  # the other ways need no Ray

        ray_cluster.start(e.cluster)  # which prepares the data, where they are not yet
    return make_run_spec(e, lambda line: None)


def no_op_executor(population: int, clients: int, megabytes: str, actors: int = 0, forks: int = 0) -> Executor:
    """Return the executor of ``no_op_spec``."""
    return executor_for(no_op_spec(population, clients, megabytes, actors, forks))
