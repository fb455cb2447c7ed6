"""Where server and clients run: the seam between the round loop and Ray.

``SerialExecutor`` is the reference: everything in this process. ``RayExecutor`` (pipeline/execution/ray_executor.py)
gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import Answer, Cohort, Failure, RoundOutcome
from anchorfl.pipeline.training.client import CPU, ClientRunner, device_for
from anchorfl.pipeline.training.errors import RejectedError, fault_kind, one_line
from anchorfl.pipeline.training.evaluation import mean_of_models
from anchorfl.pipeline.training.local_training import FitResult
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.metrics.scores import Scores

NEXT = 0
"""Round of a broadcast that is for no training: what clients would be sent now, to score their own models with."""


Watch = Callable[[int, int, int], None]
"""Called while a round goes: (clients busy, done, failed)."""


class Executor(Protocol):
    """What the round loop needs of the place where a run happens."""

    def round(
        self, round_: int, selected: Sequence[int], watch: Watch, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        """Broadcast, fit the selected clients, merge what came back. stand_ins: who takes the place of those that are
        given up, in this order. QuorumError below the quorum, state unchanged; LostError where the server is gone.
        """

    def expect(self, clients: Sequence[int]) -> None:
        """These clients come next: start what they need, without waiting for it."""

    def ahead(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int] = ()) -> None:
        """This round comes next, for certain: begin it, without waiting for it. Scores, snapshot and memories are still
        those of the round before, and may be asked for meanwhile.
        """

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        """Scores on these of the server's splits: of the current weights, or the mean over all clients of their own
        models' (``Method.evaluate_on``).
        """

    def snapshot(self) -> Tensors:
        """The server's state as path -> tensor."""

    def memory(self, client: int) -> Tensors:
        """The client's memory as the run keeps it."""

    def restore(self, state: Tensors, memories: dict[int, Tensors]) -> None:
        """Continue from a checkpoint."""

    def recover(self) -> None:
        """After a LostError: what was lost is there again, as it was before round 1."""

    def close(self) -> None:
        """Give back workers and memory."""


def server_of(run_spec: RunSpec, runner: ClientRunner | None = None) -> Server:
    """A server in this process that has the clients' initial messages. host: of all clients, where the caller has
    one.
    """
    device = runner.device if runner else CPU
    if not run_spec.experiment.method.sends_initial_message:
        return Server(run_spec, device=device)
    runner = runner or ClientRunner(run_spec)
    initial_messages = [runner.initial_message(client) for client in range(run_spec.experiment.task.clients)]
    return Server(run_spec, initial_messages, device)


def runner_of(run_spec: RunSpec) -> ClientRunner:
    """Of all clients in this process: on the GPU where the options give clients or server a share of one. InputError
    where there is none.
    """
    cluster = run_spec.experiment.cluster
    return ClientRunner(run_spec, device_for(max(cluster.client_gpus, cluster.server_gpus), must=True))


def scored_as(clients: int, memories: Mapping[int, Any]) -> list[int]:
    """For every client, the one whose model is scored for it: itself, or, of those that have not been trained yet and
    so have equal models, the first.
    """
    untrained = [client for client in range(clients) if client not in memories]
    return [client if client in memories else untrained[0] for client in range(clients)]


class InProcess:
    """What executors in this process have in common: a server and what clients keep, nothing to start or give back."""

    server: Server
    memories: dict[int, Tensors]

    def expect(self, clients: Sequence[int]) -> None:
        """Nothing to start."""

    def ahead(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int] = ()) -> None:
        """One thing after the other."""

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        return self.server.scores(splits)

    def snapshot(self) -> Tensors:
        return self.server.snapshot()

    def memory(self, client: int) -> Tensors:
        return self.memories.get(client, {})

    def restore(self, state: Tensors, memories: dict[int, Tensors]) -> None:
        self.server.restore(state)
        self.memories = dict(memories)

    def recover(self) -> None:
        """Nothing is ever lost."""

    def close(self) -> None:
        """Nothing to give back."""


class SerialExecutor(InProcess):
    """Server and clients in this process, one after the other: for tests, the debugger, and as the reference."""

    def __init__(self, run_spec: RunSpec) -> None:
        one_thread()
        self.federation, self.clients = run_spec.experiment.federation, run_spec.experiment.task.clients
        self.runner = runner_of(run_spec)
        self.server = server_of(run_spec, self.runner)
        self.memories: dict[int, Tensors] = {}

    def round(
        self, round_: int, selected: Sequence[int], watch: Watch, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        sent = self.server.broadcast(round_)
        cohort = Cohort(selected, backup_clients, self.federation.retries, self.federation.quorum)
        fitted: dict[int, FitResult[Any]] = {}
        merged = False
        while not merged:
            for client in cohort.take():
                watch(1, len(cohort.answers), len(cohort.failed))
                try:
                    client_message = self.server.client_message(client)
                    fitted[client] = one = self.runner.fit(
                        client, round_, sent, self.memories.get(client, {}), client_message
                    )
                except Exception as error:  # any fault of a client costs that client only
                    cohort.fault(Failure(client, one_line(error), fault_kind(error)))
                    continue
                cohort.answers[client] = Answer(
                    one.loss, one.seconds, messages.nbytes(one.update), messages.nbytes(client_message)
                )
            cohort.check_quorum()
            answered = sorted(cohort.answers)
            try:
                counts = self.server.aggregate(round_, answered, [fitted[c].update for c in answered])
                merged = True
            except RejectedError as error:
                cohort.refuse(error)
        self.memories |= {c: fitted[c].memory for c in answered}
        return cohort.outcome(messages.nbytes(sent), system_metrics.peak("process"), counts)

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        if self.server.method.evaluate_on == "server":
            return super().scores(splits)
        sent, models = self.server.broadcast(NEXT), scored_as(self.clients, self.memories)
        each = {c: self.runner.scores(sent, self.memories.get(c, {}), splits) for c in dict.fromkeys(models)}
        return mean_of_models([each[c] for c in models])
