"""The executor that drives a run's Ray actors (pipeline/execution/ray_actors.py) from the round loop.

Updates go from client to server as object references and never pass through the driver.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.cluster.layout import layout
from anchorfl.pipeline.execution.actor_pool import ActorPool
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, Cohort, Failure, RoundOutcome
from anchorfl.pipeline.execution.executor import NEXT, Watch, scored_as
from anchorfl.pipeline.execution.ray_actors import Stats
from anchorfl.pipeline.execution.ray_errors import is_lost, lost, node_died, one_line, ray_kind
from anchorfl.pipeline.execution.scheduler import LOOK_EVERY, Dispatch, Given, Job, Round, Start, patience
from anchorfl.pipeline.training.errors import LostError, QuorumError, RejectedError
from anchorfl.pipeline.training.evaluation import mean_of_models
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.metrics.scores import Scores


class RayExecutor:
    """One run on a crew. Same bits as SerialExecutor on CPUs.

    crew: shared with other runs, and left to its owner; None: a crew of its own, which ends with the run.
    """

    def __init__(self, run_spec: RunSpec, actor_pool: ActorPool | None = None) -> None:
        experiment = run_spec.experiment
        self.run_spec, self.federation, self.clients = run_spec, experiment.federation, experiment.task.clients
        self.sends_client_messages, self.at_clients = (
            experiment.method.sends_client_messages,
            experiment.method.evaluate_on == "clients",
        )
        self.own = actor_pool is None
        self.actor_pool = actor_pool or ActorPool(layout(experiment.cluster, experiment.task.clients))
        self.layout = self.actor_pool.layout
        self.rows = run_spec.data().cards().rows
        self.dispatch = self._dispatch(several=not experiment.federation.deadline)
        self._next: Round | None = None
        self._open()

    def _dispatch(self, *, several: bool) -> Dispatch:
        return Dispatch(self.layout.actors, self.layout.concurrent, self.rows, several)

    def _open(self) -> None:
        self.run, self._opened = self.actor_pool.open(self.run_spec)
        self.server = self.actor_pool.server
        self.memories: dict[int, Any] = {}

    def ahead(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int] = ()) -> None:
        if self.at_clients:  # they are about to score their models
            return self.expect(selected)
        self._next = self._begin(round_, selected, backup_clients)
        self._submit(self._next.cohort.waiting, self._next.running, self.dispatch, self._next.fit)
        return None

    def _begin(self, round_: int, selected: Sequence[int], backup_clients: Sequence[int]) -> Round:
        sent, size = self.server.broadcast.options(num_returns=2).remote(self.run, round_)

        def fit(actor: Any, clients: Sequence[int]) -> Sequence[Any]:
            own = [self.memories.get(c) for c in clients]
            own += (
                [self.server.client_message.remote(self.run, c) for c in clients] if self.sends_client_messages else []
            )
            refs: Sequence[Any] = actor.fit.options(num_returns=2 + len(clients)).remote(
                self.run, self.actor_pool.run_specs[self.run], clients, round_, [sent], *own
            )
            return refs

        cohort = Cohort(selected, backup_clients, self.federation.retries, self.federation.quorum)
        cohort.waiting = self.dispatch.ordered(selected)
        return Round(round_, cohort, fit, self._get(size))  # a fault of the server is none of a client

    def round(
        self, round_: int, selected: Sequence[int], watch: Watch, backup_clients: Sequence[int] = ()
    ) -> RoundOutcome:
        if self._next is not None and self._next.number != round_:
            self._drop()
        going, self._next = self._next or self._begin(round_, selected, backup_clients), None
        cohort, given, peak, merged = going.cohort, dict[int, Given](), dict[str, float](), None
        without_gpu = set[int]()
        while merged is None:
            for job, stats in self._answers(cohort, self.dispatch, going.fit, going.running, watch):
                given |= self._take(job, stats, cohort)
                peak |= {k.replace("client", f"actor_{job.slot:03d}"): v for k, v in stats.memory.items()}
                without_gpu |= {job.slot} if stats.without_gpu else set()
            cohort.check_quorum()
            try:
                merged = self._merge(round_, {c: given[c] for c in sorted(cohort.answers)})
            except RejectedError as error:
                cohort.refuse(error)
        self.memories |= {c: given[c].memory for c in cohort.answers}
        self.dispatch.learn(cohort.answers.values())
        counts, of_server = merged
        if without_gpu:
            counts = counts | {WITHOUT_GPU: len(without_gpu) + counts.get(WITHOUT_GPU, 0.0)}
        return cohort.outcome(going.sent, peak | of_server, counts)

    def _take(self, job: Job, stats: Stats, cohort: Cohort) -> dict[int, Given]:
        """The answers of a call. Where a client failed, those after it have not been asked yet."""
        cohort.answers |= dict(zip(job.clients, stats.answers, strict=False))
        if stats.failure is not None:
            self.actor_pool.kill_actor(job.slot)  # the next attempt gets a fresh process
            cohort.fault(stats.failure)
            cohort.waiting.extend(job.clients[len(stats.answers) + 1 :])
        updates, *memories = job.parts
        return {c: Given(updates, place, memories[place]) for place, c in enumerate(job.clients[: len(stats.answers)])}

    def _merge(self, round_: int, given: Mapping[int, Given]) -> Any:
        """Of the server, over what these clients gave."""
        calls = list(dict.fromkeys(g.updates for g in given.values()))
        places = {client: (calls.index(g.updates), g.place) for client, g in given.items()}
        return self._get(self.server.aggregate.remote(self.run, round_, places, *calls))

    def _answers(
        self,
        cohort: Cohort,
        dispatch: Dispatch,
        start: Start,
        running: dict[Any, Job],
        watch: Watch | None = None,
    ) -> Iterator[tuple[Job, Any]]:
        """Call the actors of all who wait and yield the answers as they come in, also of the calls that are running
        already; the roster gets the faults. LostError where a fault is none of a client; no call is left running then,
        nor when the caller stops.
        """
        try:
            while cohort.waiting or running:
                self._submit(cohort.waiting, running, dispatch, start)
                if watch is not None:
                    watch(sum(len(job.clients) for job in running.values()), len(cohort.answers), len(cohort.failed))
                ready, _ = ray.wait(list(running), num_returns=1, timeout=patience(running))
                if not ready:
                    self._overdue(running, cohort)
                    continue
                job = running.pop(ready[0])
                try:
                    answer = ray.get(ready[0])
                except RayError as error:
                    self._fault(job, cohort, error)
                    continue
                yield job, answer
        finally:
            self._end(running)

    def _end(self, running: dict[Any, Job]) -> None:
        """Calls in flight, and their processes with them."""
        for job in running.values():
            self.actor_pool.kill_actor(job.slot)
        running.clear()

    def _drop(self) -> None:
        """A round that was begun ahead, and will not be asked for."""
        if self._next is not None:
            self._end(self._next.running)
        self._next = None

    def _overdue(self, running: dict[Any, Job], cohort: Cohort) -> None:
        """Nothing came for a while: look for answers that are overdue, and for actors that can never start."""
        for ref, job in list(running.items()):
            if time.monotonic() >= job.until:
                self._fault(running.pop(ref), cohort, None)
            elif self.actor_pool.unschedulable(job.slot):  # no fault of the client's
                running.pop(ref)
                self.actor_pool.kill_actor(job.slot)
                cohort.waiting.extend(job.clients)

    def _submit(self, waiting: deque[int], running: dict[Any, Job], dispatch: Dispatch, start: Start) -> None:
        """Hand out work: at most one call per actor in flight, at most ``concurrent`` in all."""
        busy = {job.slot for job in running.values()}
        while (call := dispatch.next(waiting, busy, self.actor_pool.up)) is not None:
            slot, clients = call
            busy.add(slot)
            actor = self.actor_pool.client(slot, self.run)
            *parts, answer = start(actor, clients)
            until = time.monotonic() + (self.federation.deadline or math.inf)
            running[answer] = Job(clients, slot, actor, tuple(parts), until)

    def _fault(self, job: Job, cohort: Cohort, error: RayError | None) -> None:
        """Retire the actor, whatever happened to it: the next attempt gets a fresh process. error: None where the
        answer is overdue.
        """
        self.actor_pool.kill_actor(job.slot)
        first, *others = job.clients
        if error is None:
            reason = f"no answer within {self.federation.deadline:g} s"
            cohort.fault(Failure(first, reason, "deadline"))
            return
        if is_lost(error, job.actor):
            raise lost(error)
        reason = one_line(error)
        if others:  # whose fault it was will show when each has a call of its own
            reason += f" (or a fault of clients {', '.join(map(str, others))}, of the same call)"
            self.dispatch.part(job.clients)
            cohort.waiting.extend(others)
        cohort.fault(Failure(first, reason, ray_kind(error)), counted=not others and not node_died(error))

    def _get(self, ref: Any) -> Any:
        try:
            while not ray.wait([self._opened], timeout=LOOK_EVERY)[0]:
                if self.actor_pool.server_stuck:
                    raise LostError("the server actor waits for CPUs that left with a node")
            ray.get(self._opened)  # whatever went wrong there is the error to show
            return ray.get(ref)
        except RayError as error:
            if is_lost(error):
                raise lost(error) from error
            raise (error.cause if isinstance(error, RayTaskError) else error) from error

    def _ask(self, verb: str, *arguments: Any) -> Any:
        """What the server says. It is asked once it is open: before, the call would have a fault of its own."""
        self._get(self._opened)
        return self._get(getattr(self.server, verb).remote(self.run, *arguments))

    def recover(self) -> None:
        self._drop()
        if (
            self.run_spec.experiment.method.sends_initial_message
        ):  # what is gone may be a client that sent an initial message
            for slot in list(self.actor_pool.up):
                self.actor_pool.kill_actor(slot)
        self.actor_pool.restart_server(self.server)
        self.actor_pool.release_run(self.run)
        self._open()

    def expect(self, clients: Sequence[int]) -> None:
        waiting, busy = self.dispatch.ordered(clients), set[int]()
        while (call := self.dispatch.next(waiting, busy, self.actor_pool.up)) is not None:
            busy.add(call[0])
            self.actor_pool.client(call[0], self.run)

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        if self.at_clients:
            return self._own_scores(splits)
        out: dict[str, Scores] = self._ask("scores", list(splits))
        return out

    def _own_scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        """Of the clients' own models, where they are; QuorumError where one of them cannot be scored."""
        sent, size = self.server.broadcast.options(num_returns=2).remote(self.run, NEXT)
        self._get(size)  # a fault of the server is none of a client
        models = scored_as(self.clients, self.memories)
        cohort = Cohort(list(dict.fromkeys(models)), (), self.federation.retries, 1.0)

        def score(actor: Any, clients: Sequence[int]) -> Sequence[Any]:
            memory, run_spec = self.memories.get(clients[0]), self.actor_pool.run_specs[self.run]
            return [actor.scores.remote(self.run, run_spec, sent, memory, list(splits))]

        alone = self._dispatch(several=False)
        each = {job.clients[0]: scores for job, scores in self._answers(cohort, alone, score, {})}
        for failure in cohort.failed:
            raise QuorumError(f"client {failure.client}'s model could not be scored: {failure.reason}")
        return mean_of_models([each[c] for c in models])

    def snapshot(self) -> Tensors:
        out: Tensors = messages.unpack(self._ask("snapshot"))
        return out

    def memory(self, client: int) -> Tensors:
        ref = self.memories.get(client)
        out: Tensors = {} if ref is None else messages.unpack(self._get(ref))
        return out

    def restore(self, state: Tensors, memories: dict[int, Tensors]) -> None:
        self._ask("restore", messages.pack(state))
        self.memories = {c: ray.put(messages.pack(m)) for c, m in memories.items()}

    def close(self) -> None:
        self._drop()
        self.memories.clear()
        if self.own:
            self.actor_pool.close()
        else:
            self.actor_pool.release_run(self.run)
