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
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, Answer, Failure
from anchorfl.pipeline.training.client import ClientRunner, device_for
from anchorfl.pipeline.training.errors import fault_kind, one_line
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.metrics.scores import Scores


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
        self, run: str, round_: int, places: dict[int, tuple[int, int]], *calls: Sequence[messages.Packed]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """calls: the updates of every call; places: client -> which call, and which update of it."""
        clients = sorted(places)
        packed = [calls[call][place] for call, place in (places[c] for c in clients)]
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
class Stats:
    """The small part of what a call gives, which the driver reads. answers: of its clients, in their order, up to the
    first that failed; failure: of that one; memory: of the process; without_gpu: it has a share of one by Ray, and its
    torch sees none.
    """

    answers: tuple[Answer, ...]
    failure: Failure | None
    memory: dict[str, float]
    without_gpu: bool


@ray.remote
class ClientActor:
    """One client, or several that take turns; of one run, or of several that share it."""

    def __init__(self, gpus: float) -> None:
        one_thread()
        self.device = device_for(gpus)
        self.without_gpu = gpus > 0 and self.device.type == "cpu"
        self.runners: dict[str, ClientRunner] = {}
        self._sent: tuple[str, int, Any] = ("", -1, None)

    def open(self, run: str, run_spec: list[Any]) -> None:
        """Get ready for ``run``, ahead of ``fit``, which meets any error again and reports it. ``run_spec``: a
        reference, in a list so that Ray does not fetch it for every call.
        """
        if run not in self.runners:
            self.runners[run] = ClientRunner(ray.get(run_spec[0]), self.device)

    def fit(
        self,
        run: str,
        run_spec: list[Any],
        clients: Sequence[int],
        round_: int,
        broadcast: list[Any],
        *own: messages.Packed | None,
    ) -> tuple[Any, ...]:
        """Updates of the clients, then the memory of each, then ``Stats``. broadcast: a reference in a list, like
        ``run_spec``, which is fetched once a round; own: every client's memory, then, where there are any, the messages
        to each alone.
        """
        self.open(run, run_spec)
        sent = self._broadcast(run, round_, broadcast)
        updates, answers = list[messages.Packed](), list[Answer]()
        memories: list[messages.Packed | None] = [None] * len(clients)
        failure = None
        for place, client in enumerate(clients):
            given = [*own[place :: len(clients)], None]
            memory, client_message = ({} if m is None else messages.unpack(m) for m in given[:2])
            try:
                fitted = self.runners[run].fit(client, round_, messages.unpack(sent), memory, client_message)
            except Exception as error:  # any fault of a client costs that client only
                failure = Failure(client, one_line(error), fault_kind(error))
                break
            sizes = [messages.nbytes(m) for m in (fitted.update, client_message, fitted.memory)]
            updates.append(messages.pack(fitted.update, copy=False))
            memories[place] = messages.pack(fitted.memory, copy=False)
            answers.append(Answer(fitted.loss, fitted.seconds, *sizes))
        return updates, *memories, Stats(tuple(answers), failure, system_metrics.peak("client"), self.without_gpu)

    def _broadcast(self, run: str, round_: int, reference: list[Any]) -> messages.Packed:
        """What the server sends in a round, fetched once; each client gets a copy of its own."""
        if self._sent[:2] != (run, round_):
            self._sent = run, round_, ray.get(reference[0])
        out: messages.Packed = self._sent[2]
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
        own = {} if memory is None else messages.unpack(memory)
        return self.runners[run].scores(messages.unpack(sent), own, splits)

    def initial_message(self, run: str, run_spec: list[Any], client: int) -> messages.Packed:
        self.open(run, run_spec)
        return messages.pack(self.runners[run].initial_message(client))

    def release_run(self, run: str) -> None:
        self.runners.pop(run, None)
        self._sent = ("", -1, None)
