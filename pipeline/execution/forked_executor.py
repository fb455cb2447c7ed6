"""The executor of one machine: the server in this process, clients in workers forked from one that has all imported.

Messages lie in memory that the processes share; faults, deadlines, retries and bits are those of the Ray executor.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.algorithm.exact_sums import Grid
from anchorfl.pipeline.cluster.placement import own_cpus
from anchorfl.pipeline.config.cluster import ClusterOptions
from anchorfl.pipeline.execution import system_metrics
from anchorfl.pipeline.execution.cohort import Cohort, Failure, RoundOutcome
from anchorfl.pipeline.execution.executor import NEXT, InProcess, OnProgress, scored_as
from anchorfl.pipeline.execution.scheduler import Dispatch
from anchorfl.pipeline.execution.shared_memory import Placed, SharedMemory
from anchorfl.pipeline.execution.worker import FitReply, FitRequest, InitialMessageRequest, OpenRequest, ScoresRequest
from anchorfl.pipeline.execution.worker_host import WorkerHost
from anchorfl.pipeline.training.client import device_for
from anchorfl.pipeline.training.errors import FaultKind, QuorumError, RejectedError
from anchorfl.pipeline.training.evaluation import mean_of_models
from anchorfl.pipeline.training.gathering import Part
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.secure_round import SecureRound
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import InputError, PreparedDataError
from anchorfl.tasks.metrics.scores import Scores


def worker_gpus(options: ClusterOptions) -> list[str]:
    """Return the GPU of every worker that fits the devices of this machine beside the server, which is on the first, as
    ``CUDA_VISIBLE_DEVICES`` names it. InputError where there is none.
    """
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    devices = devices if devices != [""] else [str(i) for i in range(torch.cuda.device_count())]
    if not devices:
        device_for(options.client_gpus, must=True)
    room = [1.0 - options.server_gpus, *[1.0] * (len(devices) - 1)]
    counts = [int(free / options.client_gpus + 1e-9) for free in room]
    if not any(counts):
        raise InputError(
            f"cluster.server_gpus = {options.server_gpus:g} leaves a client of cluster.client_gpus ="
            f" {options.client_gpus:g} no room on the GPU: lower one of them"
        )
    return [device for device, count in zip(devices, counts, strict=True) for _ in range(count)]


def worker_count(options: ClusterOptions, clients: int) -> int:
    """Return the number of workers of a run: of clients that train at one time."""
    most = options.max_concurrent_clients or max(1, int(own_cpus()))
    if options.clients_per_actor:
        most = min(most, math.ceil(clients / options.clients_per_actor))
    return min(most, clients)


@dataclass
class _Worker:
    """A worker as the driver sees it."""

    host: WorkerHost
    number: int
    connection: Connection
    into: SharedMemory
    """What the driver writes for this worker alone."""
    out: SharedMemory
    """What the worker answers."""

    def end(self) -> str:
        """End the process, and return how it ended, in words."""
        try:
            self.host.kill(self.number)
            status = self.host.reap(self.number)
        except OSError:
            return "the process that starts workers is gone"
        finally:
            self.connection.close()
            self.into.close()
            self.out.close()
        code = os.waitstatus_to_exitcode(status)
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


@dataclass
class _Call:
    """A call that has not been answered yet."""

    clients: Sequence[int]
    slot: int
    until: float
    """When its answer is overdue, by ``time.monotonic``."""


@dataclass
class _Pending:
    """A round that has begun."""

    number: int
    cohort: Cohort
    broadcast: Placed
    size: int
    """Bytes of the broadcast."""
    grid: Grid | None
    """On which workers sum."""
    secure: SecureRound | None
    running: dict[Connection, _Call] = field(default_factory=dict)


Request = Callable[[_Worker, Sequence[int]], object]
"""Makes the call of a worker for clients."""


class ForkedExecutor(InProcess):
    """The executor of a run in forked workers."""

    def __init__(self, run_spec: RunSpec) -> None:
        one_thread()
        self.run_spec, experiment = run_spec, run_spec.experiment
        self.federation, self.clients = experiment.federation, experiment.task.clients
        self.at_clients = experiment.method.evaluate_on == "clients"
        self.count = worker_count(experiment.cluster, self.clients)
        self.gpus = [""] * self.count
        if experiment.cluster.client_gpus:
            self.gpus = worker_gpus(experiment.cluster)[: self.count]
            self.count = len(self.gpus)
        self.rows = run_spec.data().cards().rows
        self.dispatch = self._dispatch(several=not self.federation.deadline)
        self.workers: dict[int, _Worker] = {}
        self.specification, self.shared = SharedMemory(), SharedMemory()
        pickled = np.frombuffer(cloudpickle.dumps(run_spec), np.uint8)
        self.opened = self.specification.put(messages.Packed(None, {"uint8": pickled}))
        self.memories: dict[int, Tensors] = {}
        self._next: _Pending | None = None
        self.server = Server(run_spec, self._initial_messages(), device_for(experiment.cluster.server_gpus, must=True))

    def _dispatch(self, *, several: bool) -> Dispatch:
        return Dispatch(self.count, self.count, self.rows, several, self.run_spec.sums_on_workers)

    # ---- Rounds.

    def start_next_round(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int] = ()) -> None:
        if self.at_clients:  # they are about to score their models
            return self.warm_up(selected)
        self._next = self._begin(round_, selected, backup_clients)
        self._submit(self._next.cohort, self._next.running, self.dispatch, self._fit_request(self._next))
        return None

    def _begin(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int]) -> _Pending:
        sent = self.server.broadcast(round_)
        cohort = Cohort(selected, backup_clients, self.federation.retries, self.federation.quorum)
        cohort.waiting = self.dispatch.ordered(selected)
        secure = self.server.secure_round(round_, selected)
        return _Pending(round_, cohort, self._share(sent), messages.nbytes(sent), self.server.grid(round_), secure)

    def _share(self, sent: object) -> Placed:
        """Write what the server sends where all workers read it; no call that reads the last one is in flight."""
        self.shared.clear()
        return self.shared.put(messages.pack(sent, copy=False))

    def _fit_request(self, pending: _Pending) -> Request:
        def request(worker: _Worker, clients: Sequence[int]) -> FitRequest:
            memories = [_placed(worker.into, self.memories.get(c, {})) for c in clients]
            sent = [_placed(worker.into, self.server.client_message(c)) for c in clients]
            return FitRequest(pending.number, pending.broadcast, clients, memories, sent, pending.grid, pending.secure)

        return request

    def round(
        self, round_: int, selected: Sequence[int], on_progress: OnProgress, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        pending = self._take_prefetched(round_) or self._begin(round_, selected, backup_clients)
        cohort, memories, peaks = pending.cohort, dict[int, Tensors](), dict[str, float]()
        request = self._fit_request(pending)
        while True:
            for call, worker, reply in self._replies(cohort, self.dispatch, request, pending.running, on_progress):
                done = call.clients[: len(reply.metrics)]
                self.server.collect_part(round_, self._part(worker, reply))
                memories |= {c: messages.unpack(worker.out.get(p)) for c, p in zip(done, reply.memories, strict=True)}
                peaks |= {k.replace("worker", f"worker_{call.slot:03d}"): v for k, v in reply.peak.items()}
                self._record(call, reply, cohort)
            cohort.check_quorum()
            answered = cohort.answered
            try:
                counts = self.server.aggregate(round_, answered)
                self._own_state()
                break
            except RejectedError as error:
                cohort.reject(error)
        self.memories |= {c: memories[c] for c in answered}
        self.dispatch.update_timings(cohort.metrics.values())
        return cohort.outcome(pending.size, peaks | system_metrics.peak("server"), counts)

    @staticmethod
    def _part(worker: _Worker, reply: FitReply) -> Part:
        """Return what a worker made of its clients, where it lies: until its next call; without a grid, until its
        first call in the next round.
        """
        whole = {c: messages.unpack(worker.out.get(place), copy=False) for c, place in reply.whole.items()}
        sums = messages.unpack(worker.out.get(reply.sums), copy=False) if reply.sums else {}
        return Part(sums, reply.norms, whole)

    def _own_state(self) -> None:
        """Copy what the server's state took over from an update as it was: the worker will write there."""
        state = self.server.state
        if any(self._is_shared(t) for _, t in messages.tensors(state)):
            self.server.state = messages.rebuild(state, lambda _, t: t.clone() if self._is_shared(t) else t)

    def _is_shared(self, t: torch.Tensor) -> bool:
        return any(worker.out.holds(t.untyped_storage().data_ptr()) for worker in self.workers.values())

    def _record(self, call: _Call, reply: FitReply, cohort: Cohort) -> None:
        """Note in the cohort what a call gave. Where a client failed, those after it have not been trained yet, and
        wait again.
        """
        done = len(reply.metrics)
        cohort.metrics |= dict(zip(call.clients, reply.metrics, strict=False))
        if reply.failure is not None:
            self._end(call.slot)  # the next attempt gets a fresh process
            cohort.fail(reply.failure)
            cohort.waiting.extend(call.clients[done + 1 :])

    # ---- Calls.

    def _worker(self, slot: int) -> _Worker:
        """Return the worker of a slot, which is started where there is none."""
        if slot not in self.workers:
            into, out = SharedMemory(), SharedMemory()
            memory = [m.descriptor for m in (self.specification, self.shared, into, out)]
            host, number, connection = WorkerHost.forked(memory)
            environment = os.environ | ({"CUDA_VISIBLE_DEVICES": self.gpus[slot]} if self.gpus[slot] else {})
            connection.send(OpenRequest(self.opened, os.getcwd(), sys.path, environment))
            self.workers[slot] = _Worker(host, number, connection, into, out)
        return self.workers[slot]

    def _end(self, slot: int) -> str:
        return self.workers.pop(slot).end()

    def _submit(self, cohort: Cohort, running: dict[Connection, _Call], dispatch: Dispatch, request: Request) -> None:
        """Hand out work: one call per worker."""
        busy, retried = {call.slot for call in running.values()}, {failure.client for failure in cohort.retried}
        while (next_call := dispatch.next(cohort.waiting, busy, self.workers.keys(), retried)) is not None:
            slot, clients, fresh = next_call
            busy.add(slot)
            if fresh and slot in self.workers:
                self._end(slot)
            if slot in self.workers and self.workers[slot].connection.poll():
                self._end(slot)  # it died while it was idle, which is no client's fault
            worker = self._worker(slot)
            until = time.monotonic() + (self.federation.deadline or math.inf)
            worker.into.clear()
            with suppress(BrokenPipeError):  # read where the answer is waited for
                worker.connection.send(request(worker, clients))
            running[worker.connection] = _Call(clients, slot, until)

    def _replies(
        self,
        cohort: Cohort,
        dispatch: Dispatch,
        request: Request,
        running: dict[Connection, _Call],
        on_progress: OnProgress | None = None,
    ) -> Iterator[tuple[_Call, _Worker, Any]]:
        """Call the workers for all who wait and yield the replies as they come in, also of the calls that are running
        already. The cohort gets the faults.

        Raises PreparedDataError where a fault is none of a client; no call is left running then, nor when the caller
        stops.
        """
        try:
            while cohort.waiting or running:
                self._submit(cohort, running, dispatch, request)
                if on_progress is not None:
                    busy = sum(len(call.clients) for call in running.values())
                    on_progress(busy, len(cohort.metrics), len(cohort.failed))
                until = min(call.until for call in running.values())
                ready = wait(list(running), None if until == math.inf else max(0.0, until - time.monotonic()))
                for connection in ready:
                    call = running.pop(connection)  # type: ignore[call-overload]  # what ``wait`` was given
                    try:
                        well, reply = self.workers[call.slot].connection.recv()
                    except (EOFError, OSError):
                        self._fail(call, cohort, f"its worker died ({self._end(call.slot)})", "crash")
                        continue
                    if well:
                        yield call, self.workers[call.slot], reply
                    elif isinstance(reply, PreparedDataError):
                        raise reply
                    else:
                        self._end(call.slot)
                        self._fail(call, cohort, *reply)
                for connection, call in list(running.items()):
                    if time.monotonic() >= call.until and not connection.poll():  # it may have answered meanwhile
                        del running[connection]
                        self._end(call.slot)
                        reason = f"no answer within {self.federation.deadline:g} s"
                        cohort.fail(Failure(call.clients[0], reason, "deadline"))
        finally:
            self._end_calls(running)

    def _end_calls(self, running: dict[Connection, _Call]) -> None:
        """End calls in flight, and their processes with them."""
        for call in running.values():
            self._end(call.slot)
        running.clear()

    def _fail(self, call: _Call, cohort: Cohort, reason: str, kind: FaultKind) -> None:
        """Note a call that gave nothing, of a worker that has been ended."""
        first, *others = call.clients
        if others:  # whose fault it was will show when each has a call of its own
            reason += f" (or a fault of clients {', '.join(map(str, others))}, of the same call)"
            self.dispatch.isolate(call.clients)
            cohort.waiting.extend(others)
        cohort.fail(Failure(first, reason, kind), counted=not others)

    def _take_prefetched(self, round_: int) -> _Pending | None:
        """Return the round that was begun ahead, if it is this one; cancel another one."""
        if self._next is not None and self._next.number != round_:
            self._cancel_prefetched()
        pending, self._next = self._next, None
        return pending

    def _cancel_prefetched(self) -> None:
        if self._next is not None:
            self._end_calls(self._next.running)
        self._next = None

    def warm_up(self, clients: Sequence[int]) -> None:
        waiting, busy = self.dispatch.ordered(clients), set[int]()
        while (next_call := self.dispatch.next(waiting, busy, self.workers.keys())) is not None:
            busy.add(next_call.slot)
            self._worker(next_call.slot)

    # ---- Messages before round 1, and scores of the clients' own models.

    def _initial_messages(self) -> list[Any]:
        if not self.run_spec.experiment.method.sends_initial_message:
            return []
        cohort = Cohort(range(self.clients), (), self.federation.retries, 1.0)
        each = {
            call.clients[0]: messages.unpack(worker.out.get(placed))
            for call, worker, placed in self._replies(
                cohort, self._dispatch(several=False), lambda _, clients: InitialMessageRequest(clients[0]), {}
            )
        }
        for failure in cohort.failed:
            raise InputError(f"client {failure.client} gave no message before round 1: {failure.reason}")
        return [each[client] for client in range(self.clients)]

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        if not self.at_clients:
            return super().scores(splits)
        broadcast, models = self._share(self.server.broadcast(NEXT)), scored_as(self.clients, self.memories)
        cohort = Cohort(list(dict.fromkeys(models)), (), self.federation.retries, 1.0)

        def request(worker: _Worker, clients: Sequence[int]) -> ScoresRequest:
            return ScoresRequest(broadcast, _placed(worker.into, self.memories.get(clients[0], {})), list(splits))

        alone = self._dispatch(several=False)
        each = {call.clients[0]: scores for call, _, scores in self._replies(cohort, alone, request, {})}
        for failure in cohort.failed:
            raise QuorumError(f"client {failure.client}'s model could not be scored: {failure.reason}")
        return mean_of_models([each[c] for c in models])

    # ---- Its end.

    def restore(self, state: Tensors, memories: Mapping[int, Tensors]) -> None:
        self._cancel_prefetched()
        super().restore(state, memories)

    def close(self) -> None:
        self._cancel_prefetched()
        for slot in list(self.workers):
            self._end(slot)
        self.specification.close()
        self.shared.close()


def _placed(memory: SharedMemory, message: Tensors) -> Placed | None:
    return memory.put(messages.pack(message, copy=False)) if message else None
