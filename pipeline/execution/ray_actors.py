"""The Ray actors of a run, or of several that take turns on them: a server and clients.

A client's memory is an object that the driver keeps a reference to, so an actor may die, move or serve another client
without changing a result.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.exact_sums import Grid
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, Failure, FitMetrics
from anchorfl.pipeline.execution.executor import NEXT
from anchorfl.pipeline.execution.kept_memories import KeptMemories
from anchorfl.pipeline.training.client import ClientRunner, FitCall, device_for
from anchorfl.pipeline.training.errors import UpdateError, fault_kind, fault_line
from anchorfl.pipeline.training.gathering import Gathering, Part
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.secure_round import SecureRound
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.metrics.scores import Scores


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A ``Part`` on its way from an actor to the server's."""

    sums: messages.Packed | None
    norms: Mapping[int, float]
    whole: Mapping[int, messages.Packed]

    def unpack(self) -> Part:
        """Return it where it lies in the object store, which nobody else will read any more."""
        sums = messages.unpack(self.sums, copy=False) if self.sums is not None else {}
        return Part(sums, self.norms, {c: messages.unpack(u, copy=False) for c, u in self.whole.items()})


@dataclass(frozen=True, slots=True)
class Broadcast:
    """What is sent to all clients of a round."""

    sent: messages.Packed
    grid: Grid | None
    """On which to sum."""
    secure: SecureRound | None
    """Where the server is to learn the sum alone."""


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

    def broadcast(self, run: str, round_: int, clients: Sequence[int]) -> tuple[Broadcast, int, Grid | None]:
        """Return what is sent to all clients of a round, its size, and the grid once more. clients: that may answer."""
        server = self.servers[run]
        sent = server.broadcast(round_)
        grid, secure = (server.grid(round_), server.secure_round(round_, clients)) if round_ != NEXT else (None, None)
        return Broadcast(messages.pack(sent, copy=False), grid, secure), messages.nbytes(sent), grid

    def client_message(self, run: str, client: int) -> messages.Packed:
        return messages.pack(self.servers[run].client_message(client))

    def collect(self, run: str, round_: int, part: PackedPart) -> None:
        self.servers[run].collect_part(round_, part.unpack())

    def aggregate(self, run: str, round_: int, clients: Sequence[int]) -> tuple[dict[str, float], dict[str, float]]:
        """Aggregate the updates of the clients, which have come; return the server's counts and its peak memory."""
        counts = self.servers[run].aggregate(round_, clients)
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
    node: str
    """Node of the actor, by Ray's identifier."""
    memory: dict[str, float]
    """Peak memory of the process in MB, as ``RoundOutcome.memory``, under the name ``client``."""
    without_gpu: bool
    """The process has a share of a GPU by Ray, and its torch sees none."""


def packed(part: Part) -> PackedPart:
    """Return a part on its way, read where it lies until it is serialized."""
    whole = {client: messages.pack(update, copy=False) for client, update in part.whole.items()}
    return PackedPart(messages.pack(part.sums, copy=False) if part.sums else None, part.norms, whole)


@ray.remote
class NodeSumActor:
    """The sums over the clients of a node: a branch of the tree whose root is the server."""

    def __init__(self) -> None:
        one_thread()
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        self._gathering: tuple[str, Gathering] | None = None  # of a run in a round

    def ping(self) -> None:
        """Answer: the actor is alive."""

    def collect(self, key: str, run_spec: list[Any], grid: Grid | None, part: PackedPart) -> None:
        """Take in what a call gave. key: of run and round; another one begins anew. run_spec: a reference."""
        if self._gathering is None or self._gathering[0] != key:
            spec: RunSpec = ray.get(run_spec[0])
            self._gathering = key, Gathering(spec.experiment.method, spec.data().cards())
            self._gathering[1].begin(grid)
        gathering, received = self._gathering[1], part.unpack()
        gathering.add_part(received)
        for client, update in received.whole.items():
            try:
                gathering.add(client, update)
            except UpdateError:
                gathering.keep(client, update)
        gathering.flush()

    def part(self, key: str) -> PackedPart:
        """Return the sums of a round, and forget them."""
        assert self._gathering is not None
        assert self._gathering[0] == key
        gathering, self._gathering = self._gathering[1], None
        return packed(gathering.part())


@ray.remote
class ClientActor:
    """The process of one client, or of several that take turns; of one run, or of several that share it."""

    def __init__(self, gpus: float, pinned: bool = False) -> None:
        """pinned: it is at the site of its client, and what went wrong stays there."""
        one_thread()
        self.device, self.pinned = device_for(gpus), pinned
        self.memories: dict[str, KeptMemories | None] = {}
        self.without_gpu = gpus > 0 and self.device.type == "cpu"
        self.runners: dict[str, ClientRunner] = {}
        self._broadcast: tuple[str, int, Any] = ("", -1, None)  # run, round, what is sent in it
        self._gatherings: dict[str, Gathering] = {}

    def open(self, run: str, run_spec: list[Any]) -> None:
        """Get ready for ``run``, ahead of ``fit``, which meets any error again and reports it.

        run_spec: a reference, in a list so that Ray does not fetch it for every call.
        """
        if run not in self.runners:
            spec: RunSpec = ray.get(run_spec[0])
            self.runners[run] = ClientRunner(spec, self.device)
            self.memories[run] = KeptMemories.of(spec)

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
        """Return a ``PackedPart`` of the clients' updates, then the memory of each, then a ``CallReply``.

        broadcast: a reference in a list, like ``run_spec``, which is fetched once a round. inputs: every client's
        memory, None where it has none yet; then, where the method sends any, the message to each client alone. They
        are top-level arguments, because Ray resolves only those.
        """
        self.open(run, run_spec)
        count = len(clients)
        memories, client_messages = inputs[:count], inputs[count:] or (None,) * count
        received = self._fetch_broadcast(run, round_, broadcast)
        grid, gathering, whole = received.grid, self._gathering(run, received.grid), dict[int, messages.Packed]()
        metrics, failure = list[FitMetrics](), None
        new_memories: list[messages.Packed | None] = [None] * count
        calls = (  # each client gets a copy of what is sent
            FitCall(
                client,
                messages.unpack(received.sent),
                self._memory(run, client, memories[index]),
                _unpack(client_messages[index]),
                received.secure,
            )
            for index, client in enumerate(clients)
        )
        for index, (call, result) in enumerate(self.runners[run].fit_all(round_, calls)):
            client = call.client
            if isinstance(result, Exception):  # any other fault of a client costs that client only
                reason = self._at_site(result, run_spec) if self.pinned else fault_line(result)
                failure = Failure(client, reason, fault_kind(result))
                break
            sizes = [messages.nbytes(m) for m in (result.update, call.client_message, result.memory)]
            if grid is None or count == 1:
                whole[client] = messages.pack(result.update, copy=False)
            else:
                try:
                    gathering.add(client, result.update)
                except UpdateError as error:
                    failure = Failure(client, fault_line(error), fault_kind(error))
                    break
            keeps = self.memories[run]
            kept = result.memory
            if keeps is not None:
                kept = keeps.put(client, round_, kept, _unpack(memories[index]))
            new_memories[index] = messages.pack(kept, copy=False)
            metrics.append(FitMetrics(result.loss, result.seconds, *sizes))
        node = ray.get_runtime_context().get_node_id()
        reply = CallReply(tuple(metrics), failure, node, system_metrics.peak("client"), self.without_gpu)
        summed = packed(gathering.part())
        return replace(summed, whole={**summed.whole, **whole}), *new_memories, reply

    def _at_site(self, error: Exception, run_spec: list[Any]) -> str:
        """Return what leaves the site of an error; the rest is written down there."""
        from anchorfl.tasks.ingest.sites import write_fault  # no other client's process needs it

        spec: RunSpec = ray.get(run_spec[0])
        write_fault(spec.experiment.task.cache, error)
        return f"{type(error).__name__} at its site"

    def _memory(self, run: str, client: int, packed: messages.Packed | None) -> Any:
        memory, keeps = _unpack(packed), self.memories[run]
        return keeps.get(client, memory) if keeps is not None else memory

    def _gathering(self, run: str, grid: Grid | None) -> Gathering:
        """Return sums over the clients of a call, none yet, in memory that is used again."""
        if run not in self._gatherings:
            runner = self.runners[run]
            self._gatherings[run] = Gathering(runner.training.method, runner.all_cards)
        self._gatherings[run].begin(grid)
        return self._gatherings[run]

    def _fetch_broadcast(self, run: str, round_: int, reference: list[Any]) -> Broadcast:
        """Return what the server sends in a round, fetched once."""
        if self._broadcast[:2] != (run, round_):
            self._broadcast = run, round_, ray.get(reference[0])
        out: Broadcast = self._broadcast[2]
        return out

    def scores(
        self,
        run: str,
        run_spec: list[Any],
        broadcast: Broadcast,
        client: int,
        packed: messages.Packed | None,
        splits: Sequence[str],
    ) -> dict[str, Scores]:
        self.open(run, run_spec)
        memory = self._memory(run, client, packed)
        return self.runners[run].scores(messages.unpack(broadcast.sent), memory, splits)

    def initial_message(self, run: str, run_spec: list[Any], client: int) -> messages.Packed:
        self.open(run, run_spec)
        return messages.pack(self.runners[run].initial_message(client))

    def release_run(self, run: str) -> None:
        self.runners.pop(run, None)
        self.memories.pop(run, None)
        self._gatherings.pop(run, None)
        self._broadcast = ("", -1, None)


def _unpack(packed: messages.Packed | None) -> Any:
    return {} if packed is None else messages.unpack(packed)
