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
from anchorfl.pipeline.execution.actor_pool import Crew
from anchorfl.pipeline.execution.cohort import WITHOUT_GPU, Failure, Roster, RoundOutcome
from anchorfl.pipeline.execution.executor import NEXT, Watch, scored_as
from anchorfl.pipeline.execution.ray_actors import Stats
from anchorfl.pipeline.execution.ray_errors import is_lost, lost, node_died, one_line, ray_kind
from anchorfl.pipeline.execution.scheduler import LOOK_EVERY, Dispatch, Given, Job, Round, Start, patience
from anchorfl.pipeline.training.errors import LostError, QuorumError, RejectedError
from anchorfl.pipeline.training.evaluation import mean_of_models
from anchorfl.pipeline.training.run_spec import Setup
from anchorfl.tasks.metrics.scores import Scores


class RayExecutor:
    """One run on a crew. Same bits as SerialExecutor on CPUs.

    crew: shared with other runs, and left to its owner; None: a crew of its own, which ends with the run.
    """

    def __init__(self, setup: Setup, crew: Crew | None = None) -> None:
        e = setup.experiment
        self.setup, self.federation, self.clients = setup, e.federation, e.task.clients
        self.sends_client_messages, self.at_clients = e.method.sends_client_messages, e.method.evaluate_on == "clients"
        self.own = crew is None
        self.crew = crew or Crew(layout(e.cluster, e.task.clients))
        self.layout = self.crew.layout
        self.rows = setup.data().cards().rows
        self.dispatch = self._dispatch(several=not e.federation.deadline)
        self._next: Round | None = None
        self._open()

    def _dispatch(self, *, several: bool) -> Dispatch:
        return Dispatch(self.layout.actors, self.layout.concurrent, self.rows, several)

    def _open(self) -> None:
        self.run, self._opened = self.crew.open(self.setup)
        self.server = self.crew.server
        self.memories: dict[int, Any] = {}

    def ahead(self, round_: int, selected: Sequence[int], stand_ins: Sequence[int] = ()) -> None:
        if self.at_clients:  # they are about to score their models
            return self.expect(selected)
        self._next = self._begin(round_, selected, stand_ins)
        self._submit(self._next.roster.waiting, self._next.running, self.dispatch, self._next.fit)
        return None

    def _begin(self, round_: int, selected: Sequence[int], stand_ins: Sequence[int]) -> Round:
        sent, size = self.server.broadcast.options(num_returns=2).remote(self.run, round_)

        def fit(actor: Any, clients: Sequence[int]) -> Sequence[Any]:
            own = [self.memories.get(c) for c in clients]
            own += (
                [self.server.client_message.remote(self.run, c) for c in clients] if self.sends_client_messages else []
            )
            refs: Sequence[Any] = actor.fit.options(num_returns=2 + len(clients)).remote(
                self.run, self.crew.setups[self.run], clients, round_, [sent], *own
            )
            return refs

        roster = Roster(selected, stand_ins, self.federation.retries, self.federation.quorum)
        roster.waiting = self.dispatch.ordered(selected)
        return Round(round_, roster, fit, self._get(size))  # a fault of the server is none of a client

    def round(self, round_: int, selected: Sequence[int], watch: Watch, stand_ins: Sequence[int] = ()) -> RoundOutcome:
        if self._next is not None and self._next.number != round_:
            self._drop()
        going, self._next = self._next or self._begin(round_, selected, stand_ins), None
        roster, given, peak, merged = going.roster, dict[int, Given](), dict[str, float](), None
        without_gpu = set[int]()
        while merged is None:
            for job, stats in self._answers(roster, self.dispatch, going.fit, going.running, watch):
                given |= self._take(job, stats, roster)
                peak |= {k.replace("client", f"actor_{job.slot:03d}"): v for k, v in stats.memory.items()}
                without_gpu |= {job.slot} if stats.without_gpu else set()
            roster.check_quorum()
            try:
                merged = self._merge(round_, {c: given[c] for c in sorted(roster.answers)})
            except RejectedError as error:
                roster.refuse(error)
        self.memories |= {c: given[c].memory for c in roster.answers}
        self.dispatch.learn(roster.answers.values())
        counts, of_server = merged
        if without_gpu:
            counts = counts | {WITHOUT_GPU: len(without_gpu) + counts.get(WITHOUT_GPU, 0.0)}
        return roster.outcome(going.sent, peak | of_server, counts)

    def _take(self, job: Job, stats: Stats, roster: Roster) -> dict[int, Given]:
        """The answers of a call. Where a client failed, those after it have not been asked yet."""
        roster.answers |= dict(zip(job.clients, stats.answers, strict=False))
        if stats.failure is not None:
            self.crew.retire(job.slot)  # the next attempt gets a fresh process
            roster.fault(stats.failure)
            roster.waiting.extend(job.clients[len(stats.answers) + 1 :])
        updates, *memories = job.parts
        return {c: Given(updates, place, memories[place]) for place, c in enumerate(job.clients[: len(stats.answers)])}

    def _merge(self, round_: int, given: Mapping[int, Given]) -> Any:
        """Of the server, over what these clients gave."""
        calls = list(dict.fromkeys(g.updates for g in given.values()))
        places = {client: (calls.index(g.updates), g.place) for client, g in given.items()}
        return self._get(self.server.aggregate.remote(self.run, round_, places, *calls))

    def _answers(
        self,
        roster: Roster,
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
            while roster.waiting or running:
                self._submit(roster.waiting, running, dispatch, start)
                if watch is not None:
                    watch(sum(len(job.clients) for job in running.values()), len(roster.answers), len(roster.failed))
                ready, _ = ray.wait(list(running), num_returns=1, timeout=patience(running))
                if not ready:
                    self._overdue(running, roster)
                    continue
                job = running.pop(ready[0])
                try:
                    answer = ray.get(ready[0])
                except RayError as error:
                    self._fault(job, roster, error)
                    continue
                yield job, answer
        finally:
            self._end(running)

    def _end(self, running: dict[Any, Job]) -> None:
        """Calls in flight, and their processes with them."""
        for job in running.values():
            self.crew.retire(job.slot)
        running.clear()

    def _drop(self) -> None:
        """A round that was begun ahead, and will not be asked for."""
        if self._next is not None:
            self._end(self._next.running)
        self._next = None

    def _overdue(self, running: dict[Any, Job], roster: Roster) -> None:
        """Nothing came for a while: look for answers that are overdue, and for actors that can never start."""
        for ref, job in list(running.items()):
            if time.monotonic() >= job.until:
                self._fault(running.pop(ref), roster, None)
            elif self.crew.stuck(job.slot):  # no fault of the client's
                running.pop(ref)
                self.crew.retire(job.slot)
                roster.waiting.extend(job.clients)

    def _submit(self, waiting: deque[int], running: dict[Any, Job], dispatch: Dispatch, start: Start) -> None:
        """Hand out work: at most one call per actor in flight, at most ``concurrent`` in all."""
        busy = {job.slot for job in running.values()}
        while (call := dispatch.next(waiting, busy, self.crew.up)) is not None:
            slot, clients = call
            busy.add(slot)
            actor = self.crew.client(slot, self.run)
            *parts, answer = start(actor, clients)
            until = time.monotonic() + (self.federation.deadline or math.inf)
            running[answer] = Job(clients, slot, actor, tuple(parts), until)

    def _fault(self, job: Job, roster: Roster, error: RayError | None) -> None:
        """Retire the actor, whatever happened to it: the next attempt gets a fresh process. error: None where the
        answer is overdue.
        """
        self.crew.retire(job.slot)
        first, *others = job.clients
        if error is None:
            reason = f"no answer within {self.federation.deadline:g} s"
            roster.fault(Failure(first, reason, "deadline"))
            return
        if is_lost(error, job.actor):
            raise lost(error)
        reason = one_line(error)
        if others:  # whose fault it was will show when each has a call of its own
            reason += f" (or a fault of clients {', '.join(map(str, others))}, of the same call)"
            self.dispatch.part(job.clients)
            roster.waiting.extend(others)
        roster.fault(Failure(first, reason, ray_kind(error)), counted=not others and not node_died(error))

    def _get(self, ref: Any) -> Any:
        try:
            while not ray.wait([self._opened], timeout=LOOK_EVERY)[0]:
                if self.crew.server_stuck:
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
            self.setup.experiment.method.sends_initial_message
        ):  # what is gone may be a client that sent an initial message
            for slot in list(self.crew.up):
                self.crew.retire(slot)
        self.crew.renew(self.server)
        self.crew.forget(self.run)
        self._open()

    def expect(self, clients: Sequence[int]) -> None:
        waiting, busy = self.dispatch.ordered(clients), set[int]()
        while (call := self.dispatch.next(waiting, busy, self.crew.up)) is not None:
            busy.add(call[0])
            self.crew.client(call[0], self.run)

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
        roster = Roster(list(dict.fromkeys(models)), (), self.federation.retries, 1.0)

        def score(actor: Any, clients: Sequence[int]) -> Sequence[Any]:
            memory, setup = self.memories.get(clients[0]), self.crew.setups[self.run]
            return [actor.scores.remote(self.run, setup, sent, memory, list(splits))]

        alone = self._dispatch(several=False)
        each = {job.clients[0]: scores for job, scores in self._answers(roster, alone, score, {})}
        for failure in roster.failed:
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
            self.crew.close()
        else:
            self.crew.forget(self.run)
