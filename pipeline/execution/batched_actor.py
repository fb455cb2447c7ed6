"""A batched run in one Ray actor, where this process is no place to train: it has no CPUs, or not the GPU share.

The actor has server, clients and rows; the driver has the round loop. A lost actor is started anew, and the loop goes
on from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from torch import Tensor

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.batched_executor import BatchedExecutor
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, RoundOutcome
from anchorfl.pipeline.execution.executor import OnProgress
from anchorfl.pipeline.execution.ray_errors import cause_of, is_lost, lost, missing_code, put_object
from anchorfl.pipeline.training.client import device_for
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.metrics.scores import Scores

Tensors = dict[str, Tensor]


@ray.remote
class BatchedActor:
    """Server and clients of a run."""

    def __init__(self, gpus: float) -> None:
        self.device = device_for(gpus)
        self.without_gpu = gpus > 0 and self.device.type == "cpu"

    def open(self, run_spec: RunSpec) -> None:
        """Read the rows. Raise InputError as ``BatchedExecutor`` does."""
        self.executor = BatchedExecutor(run_spec, self.device)

    def round(self, round_: int, selected: Sequence[int]) -> RoundOutcome:
        outcome = self.executor.round(round_, selected, lambda *_: None)
        return replace(outcome, counts={**outcome.counts, WITHOUT_GPU: 1.0}) if self.without_gpu else outcome

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        return self.executor.scores(splits)

    def snapshot(self) -> messages.Packed:
        return messages.pack(self.executor.snapshot())

    def restore(self, state: messages.Packed) -> None:
        self.executor.restore(messages.unpack(state), {})


class BatchedActorExecutor:
    """The executor of a run on such an actor; clients keep nothing."""

    def __init__(self, run_spec: RunSpec, share: tuple[float, float]) -> None:
        """share: CPUs and GPUs of the actor, for which the cluster has room. InputError as ``BatchedExecutor``."""
        self.run_spec, self.share = put_object(run_spec), share
        self.recover()

    def round(
        self, round_: int, selected: Sequence[int], on_progress: OnProgress, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        on_progress(len(selected), 0, 0)
        outcome: RoundOutcome = self._ask("round", round_, list(selected))
        return outcome

    def warm_up(self, clients: Sequence[int]) -> None:
        """Do nothing: the actor has everything."""

    def start_next_round(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int] = ()) -> None:
        """Do nothing: a round is one call."""

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        out: dict[str, Scores] = self._ask("scores", list(splits))
        return out

    def snapshot(self) -> Tensors:
        out: Tensors = messages.unpack(self._ask("snapshot"))
        return out

    def memory(self, client: int) -> Tensors:
        """Return nothing: clients keep nothing."""
        return {}

    def memory_later(self, client: int) -> Callable[[], Tensors]:
        return dict

    def restore(self, state: Tensors, memories: Mapping[int, Tensors]) -> None:
        self._ask("restore", messages.pack(state))

    def recover(self) -> None:
        self.close()
        remote: Any = BatchedActor
        cpus, gpus = self.share
        self.actor = remote.options(num_cpus=cpus, num_gpus=gpus).remote(gpus)
        self._ask("open", self.run_spec)

    def close(self) -> None:
        if (actor := getattr(self, "actor", None)) is not None:
            ray.kill(actor)

    def _ask(self, verb: str, *arguments: Any) -> Any:
        """Return what the actor answers. Raise LostError where it is gone, else the error of the run itself."""
        try:
            return ray.get(getattr(self.actor, verb).remote(*arguments))
        except RayError as error:
            if is_lost(error):
                raise lost(error) from error
            raise missing_code(error) or cause_of(error) from error
