"""The process of a worker, forked by ``worker_host.py``: it serves clients of one run, one call after the other."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.exact_sums import Grid
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import Failure, FitMetrics
from anchorfl.pipeline.execution.shared_memory import Placed, SharedMemory
from anchorfl.pipeline.training.client import ClientRunner, FitCall, device_for
from anchorfl.pipeline.training.errors import UpdateError, fault_kind, fault_line
from anchorfl.pipeline.training.gathering import Gathering
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.secure_round import SecureRound
from anchorfl.tasks.errors import PreparedDataError
from anchorfl.tasks.metrics.scores import Scores


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The first word to a worker, which does not answer it."""

    run_spec: Placed
    """The run's specification, pickled."""
    folder: str
    """The driver's working directory."""
    path: Sequence[str]
    """Where the driver imports from."""
    environment: Mapping[str, str]
    """The driver's, with the GPU of this worker."""


@dataclass(frozen=True, slots=True)
class FitRequest:
    """A call to train clients."""

    round: int
    broadcast: Placed
    """In the memory that all workers read."""
    clients: Sequence[int]
    memories: Sequence[Placed | None]
    client_messages: Sequence[Placed | None]
    grid: Grid | None
    """On which several clients' updates are summed here; None: the server gets each."""
    secure: SecureRound | None
    """Where the server gets each under masks."""


@dataclass(frozen=True, slots=True)
class FitReply:
    """The trained clients of a call, in their order, up to the first that failed."""

    sums: Placed | None
    """``ExactSums.message`` of several clients."""
    norms: Mapping[int, float]
    """Norms of the weights of those in the sums."""
    whole: Mapping[int, Placed]
    """Updates of the other clients."""
    memories: Sequence[Placed]
    metrics: Sequence[FitMetrics]
    failure: Failure | None
    peak: dict[str, float]
    """Peak memory of the process in MB, under the name ``worker``."""


@dataclass(frozen=True, slots=True)
class ScoresRequest:
    """A call to score a client's own model."""

    broadcast: Placed
    memory: Placed | None
    splits: Sequence[str]


@dataclass(frozen=True, slots=True)
class InitialMessageRequest:
    """A call for a client's message before round 1."""

    client: int


def serve(connection: int, *descriptors: int) -> None:
    """Answer calls until the driver closes the connection. descriptors: of shared memory, as ``Worker`` takes it."""
    Worker(Connection(connection), *map(SharedMemory, descriptors)).serve()


class Worker:
    """A worker's connection and memory, and the clients of its run."""

    def __init__(
        self,
        connection: Connection,
        specification: SharedMemory,
        broadcast: SharedMemory,
        into: SharedMemory,
        out: SharedMemory,
    ) -> None:
        """Take the memory that the driver writes for all workers (specification, broadcast) and for this one (into),
        and that of its answers.
        """
        one_thread()
        self.connection, self.specification = connection, specification
        self.broadcast, self.into, self.out = broadcast, into, out
        self.space: dict[str, npt.NDArray[Any]] = {}
        self._copied: Placed | None = None  # whose message lies in ``space``
        self.round = -1

    def serve(self) -> None:
        """Answer calls, until there are no more, with (True, answer) or (False, fault): damaged data, which are no
        client's fault, as the exception, and any other as (reason, kind).
        """
        answers: dict[type, Callable[[Any], object]] = {
            FitRequest: self.fit,
            ScoresRequest: self.scores,
            InitialMessageRequest: self.initial_message,
        }
        with suppress(EOFError, BrokenPipeError):  # the driver is done, or gone
            self.opened: OpenRequest = self.connection.recv()
            with suppress(Exception):  # the first call meets it again, and reports it
                _ = self.runner
            while True:
                request = self.connection.recv()
                try:
                    self.connection.send((True, answers[type(request)](request)))
                except BrokenPipeError:
                    raise
                except Exception as error:  # whose fault it is, the driver knows
                    damaged = isinstance(error, PreparedDataError)
                    self.connection.send((False, error if damaged else (fault_line(error), fault_kind(error))))

    @cached_property
    def runner(self) -> ClientRunner:
        """The clients."""
        os.chdir(self.opened.folder)
        sys.path[:] = self.opened.path
        os.environ.update(self.opened.environment)
        run_spec: RunSpec = pickle.loads(self.specification.get(self.opened.run_spec).buffers["uint8"].data)
        return ClientRunner(run_spec, device_for(run_spec.experiment.cluster.client_gpus, must=True))

    @cached_property
    def gathering(self) -> Gathering:
        """Sums over the clients of a call."""
        return Gathering(self.runner.training.method, self.runner.all_cards)

    def fit(self, request: FitRequest) -> FitReply:
        if request.grid is not None or request.round != self.round:  # the server is done with what lies there
            self.round = request.round
            self.out.clear()
        gathering, whole, failure = self.gathering, dict[int, Placed](), None
        gathering.begin(request.grid)
        memories, metrics = list[Placed](), list[FitMetrics]()
        calls = (
            FitCall(client, self._copy(request.broadcast), self._own(kept), self._own(sent), request.secure)
            for client, kept, sent in zip(request.clients, request.memories, request.client_messages, strict=True)
        )
        for call, result in self.runner.fit_all(request.round, calls):
            client = call.client
            if isinstance(result, Exception):  # any other fault of a client costs that client only
                failure = Failure(client, fault_line(result), fault_kind(result))
                break
            sizes = [messages.nbytes(m) for m in (result.update, call.client_message, result.memory)]
            if request.grid is None or len(request.clients) == 1:
                whole[client] = self._answer(result.update)
            else:
                try:
                    gathering.add(client, result.update)
                except UpdateError as error:
                    failure = Failure(client, fault_line(error), fault_kind(error))
                    break
            memories.append(self._answer(result.memory))
            metrics.append(FitMetrics(result.loss, result.seconds, *sizes))
        part = gathering.part()
        whole |= {client: self._answer(update) for client, update in part.whole.items()}
        sums = self._answer(part.sums) if part.sums else None
        return FitReply(sums, part.norms, whole, memories, metrics, failure, system_metrics.peak("worker"))

    def scores(self, request: ScoresRequest) -> dict[str, Scores]:
        return self.runner.scores(self._copy(request.broadcast), self._own(request.memory), request.splits)

    def initial_message(self, request: InitialMessageRequest) -> Placed:
        self.out.clear()
        return self._answer(self.runner.initial_message(request.client))

    def _copy(self, placed: Placed) -> Any:
        """Return what the server sends, each client a copy, in memory that the client before is done with."""
        if placed is not self._copied:
            sent = self.broadcast.get(placed)
            kept = {kind: self._space(kind, buffer) for kind, buffer in sent.buffers.items()}
            self._copied, self._sent = placed, sent
            self._message = messages.unpack(messages.Packed(sent.skeleton, kept), copy=False)
        for kind, buffer in self._sent.buffers.items():
            np.copyto(self.space[kind], buffer)
        return self._message

    def _space(self, kind: str, buffer: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if kind not in self.space or len(self.space[kind]) != len(buffer):
            self.space[kind] = np.empty_like(buffer)
        return self.space[kind]

    def _own(self, placed: Placed | None) -> Any:
        return {} if placed is None else messages.unpack(self.into.get(placed))

    def _answer(self, message: object) -> Placed:
        return self.out.put(messages.pack(message, copy=False))
