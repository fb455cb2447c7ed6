"""The Ray actors of a run, or of several that take turns on them: a server and clients.

A client's memory is an object that the driver keeps a reference to, so an actor may die, move or serve another client
without changing a result.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, Failure, FitMetrics
from anchorfl.pipeline.training.client import ClientRunner, device_for
from anchorfl.pipeline.training.errors import fault_kind
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import PreparedDataError, first_line
from anchorfl.tasks.metrics.scores import Scores


@dataclass(frozen=True, slots=True)
class UpdateRef:
    """The position of a client's update in the batches of updates that the server is given, one batch per call."""

    batch: int
    """Index of the batch."""
    index: int
    """Index of the update in the batch."""


@ray.remote
class ServerActor:
    """The server's state, alone in its process; one state per run where runs share it."""

    def __init__(self, gpus: float) -> None:
        one_thread()
        # torch's word on arrays of the object store, which the server only reads
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        self.device = device_for(gpus)
        self.without_gpu = gpus > 0 and self.device.type == "cpu"
        self.servers: dict[str, Server] = {}

    def open(self, run: str, run_spec: RunSpec, *initial_messages: messages.Packed) -> None:
        self.servers[run] = Server(run_spec, [messages.unpack(t) for t in initial_messages], self.device)

    def broadcast(self, run: str, round_: int) -> tuple[messages.Packed, int]:
        sent = self.servers[run].broadcast(round_)
        return messages.pack(sent, copy=False), messages.nbytes(sent)

    def client_message(self, run: str, client: int) -> messages.Packed:
        return messages.pack(self.servers[run].client_message(client))

    def aggregate(
        self, run: str, round_: int, refs: dict[int, UpdateRef], *batches: Sequence[messages.Packed]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Aggregate the updates of the clients of ``refs``; return the server's counts and its peak memory.

        batches: top-level arguments, because Ray resolves only those.
        """
        clients = sorted(refs)
        packed = [batches[refs[client].batch][refs[client].index] for client in clients]
        # read where they lie in the object store, which nobody else will read any more
        counts = self.servers[run].aggregate(round_, clients, [messages.unpack(u, copy=False) for u in packed])
        return counts | ({WITHOUT_GPU: 1.0} if self.without_gpu else {}), system_metrics.peak("server")

    def scores(self, run: str, splits: Sequence[str]) -> dict[str, Scores]:
        return self.servers[run].scores(splits)

    def snapshot(self, run: str) -> messages.Packed:
        return messages.pack(self.servers[run].snapshot())

    def restore(self, run: str, state: messages.Packed) -> None:
        self.servers[run].restore(messages.unpack(state))

    def release_run(self, run: str) -> None:
        self.servers.pop(run, None)


@dataclass(frozen=True, slots=True)
class CallReply:
    """The small part of what a call gives, which the driver reads."""

    metrics: tuple[FitMetrics, ...]
    """Metrics of its clients, in their order, up to the first that failed."""
    failure: Failure | None
    """Failure of the first client that failed; those after it have not been trained."""
    memory: dict[str, float]
    """Peak memory of the process in MB, as ``RoundOutcome.memory``, under the name ``client``."""
    without_gpu: bool
    """The process has a share of a GPU by Ray, and its torch sees none."""


@ray.remote
class ClientActor:
    """The process of one client, or of several that take turns; of one run, or of several that share it."""

    def __init__(self, gpus: float) -> None:
        one_thread()
        self.device = device_for(gpus)
        self.without_gpu = gpus > 0 and self.device.type == "cpu"
        self.runners: dict[str, ClientRunner] = {}
        self._broadcast: tuple[str, int, Any] = ("", -1, None)  # run, round, what is sent in it

    def open(self, run: str, run_spec: list[Any]) -> None:
        """Get ready for ``run``, ahead of ``fit``, which meets any error again and reports it.

        run_spec: a reference, in a list so that Ray does not fetch it for every call.
        """
        if run not in self.runners:
            self.runners[run] = ClientRunner(ray.get(run_spec[0]), self.device)

    def ping(self) -> None:
        """Answer: a process that dies in the next call was alive before it."""

    def fit(
        self,
        run: str,
        run_spec: list[Any],
        clients: Sequence[int],
        round_: int,
        broadcast: list[Any],
        *inputs: messages.Packed | None,
    ) -> tuple[Any, ...]:
        """Return the updates of the clients, then the memory of each, then a ``CallReply``.

        broadcast: a reference in a list, like ``run_spec``, which is fetched once a round. inputs: every client's
        memory, None where it has none yet; then, where the method sends any, the message to each client alone. They
        are top-level arguments, because Ray resolves only those.
        """
        self.open(run, run_spec)
        count = len(clients)
        memories, client_messages = inputs[:count], inputs[count:] or (None,) * count
        packed = self._fetch_broadcast(run, round_, broadcast)
        updates, metrics, failure = list[messages.Packed](), list[FitMetrics](), None
        new_memories: list[messages.Packed | None] = [None] * count
        for index, client in enumerate(clients):
            memory, client_message = _unpack(memories[index]), _unpack(client_messages[index])
            try:
                # each client gets a copy of its own
                result = self.runners[run].fit(client, round_, messages.unpack(packed), memory, client_message)
            except PreparedDataError:
                raise
            except Exception as error:  # any other fault of a client costs that client only
                failure = Failure(client, first_line(error), fault_kind(error))
                break
            sizes = [messages.nbytes(m) for m in (result.update, client_message, result.memory)]
            updates.append(messages.pack(result.update, copy=False))
            new_memories[index] = messages.pack(result.memory, copy=False)
            metrics.append(FitMetrics(result.loss, result.seconds, *sizes))
        reply = CallReply(tuple(metrics), failure, system_metrics.peak("client"), self.without_gpu)
        return updates, *new_memories, reply

    def _fetch_broadcast(self, run: str, round_: int, reference: list[Any]) -> messages.Packed:
        """Return what the server sends in a round, fetched once."""
        if self._broadcast[:2] != (run, round_):
            self._broadcast = run, round_, ray.get(reference[0])
        out: messages.Packed = self._broadcast[2]
        return out

    def scores(
        self,
        run: str,
        run_spec: list[Any],
        sent: messages.Packed,
        memory: messages.Packed | None,
        splits: Sequence[str],
    ) -> dict[str, Scores]:
        self.open(run, run_spec)
        return self.runners[run].scores(messages.unpack(sent), _unpack(memory), splits)

    def initial_message(self, run: str, run_spec: list[Any], client: int) -> messages.Packed:
        self.open(run, run_spec)
        return messages.pack(self.runners[run].initial_message(client))

    def release_run(self, run: str) -> None:
        self.runners.pop(run, None)
        self._broadcast = ("", -1, None)


def _unpack(packed: messages.Packed | None) -> Any:
    return {} if packed is None else messages.unpack(packed)
