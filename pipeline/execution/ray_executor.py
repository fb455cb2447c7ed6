"""The executor that drives a run's Ray actors (pipeline/execution/ray_actors.py) from the round loop.

Updates go from client to server as object references and never pass through the driver.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.cluster.layout import layout
from anchorfl.pipeline.execution.actor_pool import ActorPool
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, Cohort, Failure, RoundOutcome
from anchorfl.pipeline.execution.executor import NEXT, OnProgress, scored_as
from anchorfl.pipeline.execution.kept_memories import KeptMemories
from anchorfl.pipeline.execution.ray_actors import CallReply
from anchorfl.pipeline.execution.ray_errors import (
    cause_of,
    died_before,
    is_lost,
    lost,
    missing_code,
    node_died,
    put_object,
    ray_kind,
)
from anchorfl.pipeline.execution.scheduler import (
    LOOK_EVERY,
    Dispatch,
    InFlightCall,
    PendingRound,
    StartCall,
    patience,
)
from anchorfl.pipeline.training.errors import LostError, QuorumError, RejectedError
from anchorfl.pipeline.training.evaluation import mean_of_models
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError, PreparedDataError, first_line
from anchorfl.tasks.metrics.scores import Scores


@dataclass
class _Collected:
    """What was handed on in a round, and not waited for."""

    calls: list[Any] = field(default_factory=list)
    """References of calls that take parts in."""
    nodes: dict[str, Any] = field(default_factory=dict)
    """Actors that have a node's sums, by node."""


class RayExecutor:
    """The executor of a run on a pool of actors. Same bits as SerialExecutor on CPUs."""

    def __init__(self, run_spec: RunSpec, actor_pool: ActorPool | None = None) -> None:
        """actor_pool: shared with other runs, and left to its owner; None: one of its own, which ends with the run."""
        experiment = run_spec.experiment
        self.run_spec, self.federation, self.clients = run_spec, experiment.federation, experiment.task.clients
        self.sends_client_messages = experiment.method.sends_client_messages
        self.sums_on_nodes = experiment.cluster.sum_on_nodes and run_spec.sums_on_workers
        self.at_clients = experiment.method.evaluate_on == "clients"
        self.owns_pool = actor_pool is None
        sites = experiment.task.site_resources
        self.actor_pool = actor_pool or ActorPool(layout(experiment.cluster, experiment.task.clients, sites))
        self.layout = self.actor_pool.layout
        if self.layout.sites != sites:
            raise InputError("task.sites: shared actors, as a sweep's trials have, are pinned to no site: run it alone")
        self.rows = run_spec.data().cards().rows
        self.dispatch = self._dispatch(several=not experiment.federation.deadline and not sites)
        self._next: PendingRound | None = None
        self._open()

    def _dispatch(self, *, several: bool) -> Dispatch:
        sums = self.run_spec.sums_on_workers
        pinned = bool(self.layout.sites)
        return Dispatch(self.layout.actors, self.layout.concurrent, self.rows, several, sums, pinned)

    def _open(self) -> None:
        self.memories: dict[int, Any] = {}  # first: what a run that began anew had takes the room of its next
        self.run, self._opened = self.actor_pool.open(self.run_spec)
        self._is_open = False
        self.server = self.actor_pool.server

    def start_next_round(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int] = ()) -> None:
        if self.at_clients:  # they are about to score their models
            return self.warm_up(selected)
        self._next = self._begin(round_, selected, backup_clients)
        self._submit(self._next.cohort, self._next.running, self.dispatch, self._next.fit)
        return None

    def _begin(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int]) -> PendingRound:
        broadcast, size, grid = self.server.broadcast.options(num_returns=3).remote(self.run, round_, selected)

        def fit(actor: Any, clients: Sequence[int]) -> Sequence[Any]:
            inputs = [self.memories.get(c) for c in clients]
            if self.sends_client_messages:
                inputs += [self.server.client_message.remote(self.run, c) for c in clients]
            refs: Sequence[Any] = actor.fit.options(num_returns=2 + len(clients)).remote(
                self.run, self.actor_pool.run_specs[self.run], clients, round_, [broadcast], *inputs
            )
            return refs

        cohort = Cohort(selected, backup_clients, self.federation.retries, self.federation.quorum)
        cohort.waiting = self.dispatch.ordered(selected)
        return PendingRound(round_, cohort, fit, self._get(size), grid)  # a fault of the server is none of a client

    def round(
        self, round_: int, selected: Sequence[int], on_progress: OnProgress, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        pending = self._take_prefetched(round_) or self._begin(round_, selected, backup_clients)
        cohort, memories, collected = pending.cohort, dict[int, Any](), _Collected()
        peaks, without_gpu = dict[str, float](), set[int]()
        while True:
            for call, reply in self._replies(cohort, self.dispatch, pending.fit, pending.running, on_progress):
                part, *kept = call.parts
                self._collect(pending, part, reply.node, collected)
                memories |= dict(zip(call.clients[: len(reply.metrics)], kept, strict=False))
                self._record(call, reply, cohort)
                peaks |= {k.replace("client", f"actor_{call.slot:03d}"): v for k, v in reply.memory.items()}
                without_gpu |= {call.slot} if reply.without_gpu else set()
            cohort.check_quorum()
            try:
                self._complete(pending, collected)
                counts, server_peak = self._get(self.server.aggregate.remote(self.run, round_, cohort.answered))
                break
            except RejectedError as error:
                cohort.reject(error)
        self.memories |= {c: memories[c] for c in cohort.metrics}
        self.dispatch.update_timings(cohort.metrics.values())
        if without_gpu:
            counts = counts | {WITHOUT_GPU: len(without_gpu) + counts.get(WITHOUT_GPU, 0.0)}
        return cohort.outcome(pending.sent, peaks | server_peak, counts)

    def _collect(self, pending: PendingRound, part: Any, node: str, collected: _Collected) -> None:
        """Hand what a call gave to the server, or to the sums of its node, which take it in while others train."""
        if not self.sums_on_nodes:
            collected.calls.append(self.server.collect.remote(self.run, pending.number, part))
            return
        actor = collected.nodes[node] = self.actor_pool.node_sum(node)
        key, run_spec = f"{self.run}-{pending.number}", self.actor_pool.run_specs[self.run]
        collected.calls.append(actor.collect.remote(key, run_spec, pending.grid, part))

    def _complete(self, pending: PendingRound, collected: _Collected) -> None:
        """Wait until the server has all that was collected."""
        for actor in collected.nodes.values():
            part = actor.part.remote(f"{self.run}-{pending.number}")
            collected.calls.append(self.server.collect.remote(self.run, pending.number, part))
        for call in collected.calls:
            try:
                self._get(call)
            except RayError as error:  # a node left before its sums could start
                raise lost(error) from error
        collected.calls.clear()
        collected.nodes.clear()

    def _take_prefetched(self, round_: int) -> PendingRound | None:
        """Return the round that was begun ahead, if it is this one; cancel another one."""
        if self._next is not None and self._next.number != round_:
            self._cancel_prefetched()
        pending, self._next = self._next, None
        return pending

    def _record(self, call: InFlightCall, reply: CallReply, cohort: Cohort) -> None:
        """Note in the cohort what a call gave. Where a client failed, those after it have not been trained yet, and
        wait again.
        """
        done = len(reply.metrics)
        cohort.metrics |= dict(zip(call.clients, reply.metrics, strict=False))
        if reply.failure is not None:
            self.actor_pool.kill_actor(call.slot)  # the next attempt gets a fresh process
            cohort.fail(reply.failure)
            cohort.waiting.extend(call.clients[done + 1 :])

    def _replies(
        self,
        cohort: Cohort,
        dispatch: Dispatch,
        start: StartCall,
        running: dict[Any, InFlightCall],
        on_progress: OnProgress | None = None,
    ) -> Iterator[tuple[InFlightCall, Any]]:
        """Call the actors of all who wait and yield the replies as they come in, also of the calls that are running
        already. The cohort gets the faults.

        Raises LostError or PreparedDataError where a fault is none of a client; no call is left running then, nor when
        the caller stops.
        """
        try:
            while cohort.waiting or running:
                self._submit(cohort, running, dispatch, start)
                if on_progress is not None:
                    busy = sum(len(call.clients) for call in running.values())
                    on_progress(busy, len(cohort.metrics), len(cohort.failed))
                ready, _ = ray.wait(list(running), num_returns=1, timeout=patience(running))
                if not ready:
                    self._end_overdue(running, cohort)
                    continue
                call = running.pop(ready[0])
                try:
                    reply = ray.get(ready[0])
                except RayError as error:
                    self._fail(call, cohort, error)
                    continue
                yield call, reply
        finally:
            self._end_calls(running)

    def _end_calls(self, running: dict[Any, InFlightCall]) -> None:
        """End calls in flight, and their processes with them."""
        for call in running.values():
            self.actor_pool.kill_actor(call.slot)
        running.clear()

    def _cancel_prefetched(self) -> None:
        """Cancel the round that was begun ahead, if there is one."""
        if self._next is not None:
            self._end_calls(self._next.running)
        self._next = None

    def _end_overdue(self, running: dict[Any, InFlightCall], cohort: Cohort) -> None:
        """End the calls whose replies are overdue, and those to actors that can never start.

        Called where no reply came for a while.
        """
        for ref, call in list(running.items()):
            if time.monotonic() >= call.until:
                self._fail(running.pop(ref), cohort, None)
            elif self.actor_pool.unschedulable(call.slot):  # no fault of the client's
                running.pop(ref)
                self.actor_pool.kill_actor(call.slot)
                cohort.waiting.extend(call.clients)

    def _submit(self, cohort: Cohort, running: dict[Any, InFlightCall], dispatch: Dispatch, start: StartCall) -> None:
        """Hand out work: at most one call per actor in flight, at most ``concurrent`` in all."""
        busy, retried = {call.slot for call in running.values()}, {failure.client for failure in cohort.retried}
        started = self.actor_pool.started_slots
        while (next_call := dispatch.next(cohort.waiting, busy, started, retried)) is not None:
            slot, clients, fresh = next_call
            busy.add(slot)
            if fresh and slot in started:
                self.actor_pool.kill_actor(slot)
            reused = slot in started
            actor = self.actor_pool.client(slot, self.run)
            alive = actor.ping.remote() if reused else None
            *parts, reply = start(actor, clients)
            until = time.monotonic() + (self.federation.deadline or math.inf)
            running[reply] = InFlightCall(clients, slot, actor, tuple(parts), until, alive)

    def _fail(self, call: InFlightCall, cohort: Cohort, error: RayError | None) -> None:
        """Retire the actor, whatever happened to it: the next attempt gets a fresh process.

        error: None where the reply is overdue.
        """
        self.actor_pool.kill_actor(call.slot)
        if error is not None and isinstance(cause := cause_of(error), PreparedDataError):
            raise cause from error
        if error is not None and (missing := missing_code(error)):
            raise missing from error
        first, *others = call.clients
        if error is None:
            reason = f"no answer within {self.federation.deadline:g} s"
            cohort.fail(Failure(first, reason, "deadline"))
            return
        if is_lost(error, call.actor):
            raise lost(error)
        reason = first_line(cause_of(error))
        if others:  # whose fault it was will show when each has a call of its own
            reason += f" (or a fault of clients {', '.join(map(str, others))}, of the same call)"
            self.dispatch.isolate(call.clients)
            cohort.waiting.extend(others)
        counted = not others and not node_died(error) and not died_before(call)
        cohort.fail(Failure(first, reason, ray_kind(error)), counted)

    def _get(self, ref: Any) -> Any:
        """Return what a call of the server gives, once the server is ready for this run.

        Raises LostError where the server or an object is gone; else the error of the server itself.
        """
        try:
            while not self._is_open and not ray.wait([self._opened], timeout=LOOK_EVERY)[0]:
                if self.actor_pool.server_stuck:
                    raise LostError("the server actor waits for CPUs that left with a node")
            if not self._is_open:
                ray.get(self._opened)  # whatever went wrong there is the error to show
                self._is_open = True
            return ray.get(ref)
        except RayError as error:
            if is_lost(error):
                raise lost(error) from error
            raise missing_code(error) or cause_of(error) from error

    def _ask(self, verb: str, *arguments: Any) -> Any:
        """Call the server once it is open, and return its answer: before, the call would have a fault of its own."""
        if not self._is_open:
            self._get(self._opened)
        return self._get(getattr(self.server, verb).remote(self.run, *arguments))

    def recover(self) -> None:
        self._cancel_prefetched()
        if self.run_spec.experiment.method.sends_initial_message:
            # what is gone may be a client that sent an initial message
            for slot in list(self.actor_pool.started_slots):
                self.actor_pool.kill_actor(slot)
        self.actor_pool.restart_server(self.server)
        self.actor_pool.release_run(self.run)
        self._open()

    def warm_up(self, clients: Sequence[int]) -> None:
        waiting, busy = self.dispatch.ordered(clients), set[int]()
        while (next_call := self.dispatch.next(waiting, busy, self.actor_pool.started_slots)) is not None:
            busy.add(next_call.slot)
            self.actor_pool.client(next_call.slot, self.run)

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        if self.at_clients:
            return self._scores_at_clients(splits)
        out: dict[str, Scores] = self._ask("scores", list(splits))
        return out

    def _scores_at_clients(self, splits: Sequence[str]) -> dict[str, Scores]:
        """Score the clients' own models where they are. Raise QuorumError where one of them cannot be scored."""
        broadcast, size, _ = self.server.broadcast.options(num_returns=3).remote(self.run, NEXT, [])
        self._get(size)  # a fault of the server is none of a client
        models = scored_as(self.clients, self.memories)
        cohort = Cohort(list(dict.fromkeys(models)), (), self.federation.retries, 1.0)

        def score(actor: Any, clients: Sequence[int]) -> Sequence[Any]:
            memory, run_spec = self.memories.get(clients[0]), self.actor_pool.run_specs[self.run]
            return [actor.scores.remote(self.run, run_spec, broadcast, clients[0], memory, list(splits))]

        alone = self._dispatch(several=False)
        each = {call.clients[0]: scores for call, scores in self._replies(cohort, alone, score, {})}
        for failure in cohort.failed:
            raise QuorumError(f"client {failure.client}'s model could not be scored: {failure.reason}")
        return mean_of_models([each[c] for c in models])

    def snapshot(self) -> Tensors:
        out: Tensors = messages.unpack(self._ask("snapshot"))
        return out

    def memory(self, client: int) -> Tensors:
        kept, places = self.memory_later(client)(), KeptMemories.of(self.run_spec)
        return kept if places is None else places.get(client, kept)

    def memory_later(self, client: int) -> Callable[[], Tensors]:
        ref = self.memories.get(client)

        def fetch() -> Tensors:
            out: Tensors = {} if ref is None else messages.unpack(self._get(ref))
            return out

        return fetch

    def restore(self, state: Tensors, memories: Mapping[int, Tensors]) -> None:
        self._ask("restore", messages.pack(state))
        self.memories = {c: put_object(messages.pack(m)) for c, m in memories.items()}

    def close(self) -> None:
        self._cancel_prefetched()
        self.memories.clear()
        if self.owns_pool:
            self.actor_pool.close()
        else:
            self.actor_pool.release_run(self.run)
