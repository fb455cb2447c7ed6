"""The seam between the round loop and the processes of server and clients, which may be Ray's.

``SerialExecutor`` is the reference: everything in this process. ``RayExecutor`` (pipeline/execution/ray_executor.py)
gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ServerState, Tensors
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import Cohort, Failure, FitMetrics, RoundOutcome
from anchorfl.pipeline.training.client import CPU, ClientRunner, FitCall, device_for
from anchorfl.pipeline.training.errors import RejectedError, fault_kind, fault_line
from anchorfl.pipeline.training.evaluation import mean_of_models
from anchorfl.pipeline.training.local_training import FitResult
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.secure_round import SecureRound
from anchorfl.pipeline.training.server import Server
from anchorfl.pipeline.training.stacked_training import stack_size
from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.metrics.scores import Scores

NEXT = 0
"""Round of a broadcast that is for no training: what clients would be sent now, to score their own models with."""


OnProgress = Callable[[int, int, int], None]
"""Called while a round goes: (clients busy, done, failed)."""


class Executor(Protocol):
    """The interface between the round loop and the processes in which a run happens."""

    def round(
        self, round_: int, selected: Sequence[int], on_progress: OnProgress, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        """Broadcast, train the selected clients, aggregate what came back.

        backup_clients: take the place of those that are given up, in this order. Raises QuorumError below the quorum,
        state unchanged; LostError where the server is gone.
        """

    def warm_up(self, clients: Sequence[int]) -> None:
        """Start what these clients, which come next, need, without waiting for it."""

    def start_next_round(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int] = ()) -> None:
        """Begin a round that comes next for certain, without waiting for it.

        Scores, snapshot and memories are still those of the round before, and may be asked for meanwhile.
        """

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        """Return scores on these splits: of the server's weights, or the clients' mean (``Method.evaluate_on``)."""

    def snapshot(self) -> Tensors:
        """Return the server's state as path -> tensor."""

    def memory(self, client: int) -> Tensors:
        """Return the client's memory as the run keeps it."""

    def memory_later(self, client: int) -> Callable[[], Tensors]:
        """Return a function of any thread that gives the client's memory as it is now; LostError where it is gone."""

    def restore(self, state: Tensors, memories: Mapping[int, Tensors]) -> None:
        """Continue from a checkpoint; each memory is asked for once."""

    def recover(self) -> None:
        """Start again, after a LostError, what was lost; it is then as it was before round 1."""

    def close(self) -> None:
        """Give back workers and memory."""


def server_of(run_spec: RunSpec, runner: ClientRunner | None = None) -> Server:
    """Return a server in this process that has the clients' initial messages.

    runner: of all clients, where the caller has one.
    """
    device = runner.device if runner else CPU
    if not run_spec.experiment.method.sends_initial_message:
        return Server(run_spec, device=device)
    runner = runner or ClientRunner(run_spec)
    initial_messages = [runner.initial_message(client) for client in range(run_spec.experiment.task.clients)]
    return Server(run_spec, initial_messages, device)


def runner_of(run_spec: RunSpec) -> ClientRunner:
    """Return the runner of all clients in this process, on the GPU where client or server has a share of one.

    Raises InputError where there is no GPU.
    """
    cluster = run_spec.experiment.cluster
    return ClientRunner(run_spec, device_for(max(cluster.client_gpus, cluster.server_gpus), must=True))


def scored_as(clients: int, memories: Mapping[int, Any]) -> list[int]:
    """Return for every client the one whose model is scored for it.

    That is the client itself, or, of those that have not been trained yet and so have equal models, the first.
    """
    untrained = [client for client in range(clients) if client not in memories]
    return [client if client in memories else untrained[0] for client in range(clients)]


class InProcess:
    """The common half of executors in this process: a server and clients' memories, nothing to start or give back."""

    server: Server
    memories: dict[int, Tensors]

    def warm_up(self, clients: Sequence[int]) -> None:
        """Do nothing: there is nothing to start."""

    def start_next_round(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int] = ()) -> None:
        """Do nothing: one thing goes after the other here."""

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        return self.server.scores(splits)

    def snapshot(self) -> Tensors:
        return self.server.snapshot()

    def memory(self, client: int) -> Tensors:
        return self.memories.get(client, {})

    def memory_later(self, client: int) -> Callable[[], Tensors]:
        memory = self.memory(client)
        return lambda: memory

    def restore(self, state: Tensors, memories: Mapping[int, Tensors]) -> None:
        self.server.restore(state)
        self.memories = dict(memories)

    def recover(self) -> None:
        """Do nothing: nothing is ever lost here."""

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


class SerialExecutor(InProcess):
    """Server and clients in this process, one after the other: for tests, the debugger, and as the reference."""

    def __init__(self, run_spec: RunSpec) -> None:
        one_thread()
        self.federation, self.clients = run_spec.experiment.federation, run_spec.experiment.task.clients
        self.runner = runner_of(run_spec)
        self.server = server_of(run_spec, self.runner)
        self.memories: dict[int, Tensors] = {}
        self.stack = stack_size(run_spec.experiment, self.runner.model, self.runner.prepared.manifest.spec)

    def round(
        self, round_: int, selected: Sequence[int], on_progress: OnProgress, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        broadcast = self.server.broadcast(round_)
        secure = self.server.secure_round(round_, selected)
        cohort = Cohort(selected, backup_clients, self.federation.retries, self.federation.quorum)
        memories: dict[int, Tensors] = {}
        while True:
            while cohort.waiting:
                at_once = max(self.stack, self.runner.lanes.count)
                clients = [cohort.waiting.popleft() for _ in range(len(cohort.waiting) if at_once > 1 else 1)]
                on_progress(min(len(clients), at_once), len(cohort.metrics), len(cohort.failed))
                for client, result, message_bytes in self._fit(clients, round_, broadcast, secure):
                    if isinstance(result, Exception):  # costs this client only
                        cohort.fail(Failure(client, fault_line(result), fault_kind(result)))
                        continue
                    self.server.collect(round_, client, result.update)
                    memories[client] = result.memory
                    update_bytes = messages.nbytes(result.update)
                    cohort.metrics[client] = FitMetrics(result.loss, result.seconds, update_bytes, message_bytes)
            cohort.check_quorum()
            answered = cohort.answered
            try:
                counts = self.server.aggregate(round_, answered)
                break
            except RejectedError as error:
                cohort.reject(error)
        self.memories |= {c: memories[c] for c in answered}
        return cohort.outcome(messages.nbytes(broadcast), system_metrics.peak("process"), counts)

    def _fit(
        self, clients: Sequence[int], round_: int, broadcast: ServerState, secure: SecureRound | None
    ) -> Iterator[tuple[int, FitResult[Any] | Exception, int]]:
        """Yield each client, its result or what went wrong with it, and the bytes of the message to it alone."""
        sent = dict[int, Tensors]()
        for client in clients:
            try:
                sent[client] = self.server.client_message(client)
            except PreparedDataError:
                raise
            except Exception as error:
                yield client, error, 0
        if self.stack > 1:
            done = self.runner.fit_stacked(round_, broadcast, self.memories, sent, self.stack, secure)
        else:
            calls = (FitCall(client, broadcast, self.memories.get(client, {}), sent[client], secure) for client in sent)
            done = ((call.client, result) for call, result in self.runner.fit_all(round_, calls))
        for client, result in done:
            yield client, result, messages.nbytes(sent[client])

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        if self.server.method.evaluate_on == "server":
            return super().scores(splits)
        sent, models = self.server.broadcast(NEXT), scored_as(self.clients, self.memories)
        each = {c: self.runner.scores(sent, self.memories.get(c, {}), splits) for c in dict.fromkeys(models)}
        return mean_of_models([each[c] for c in models])
