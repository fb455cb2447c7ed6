"""What can go wrong in a round, and who takes part in it after all.

An attempt of a client that goes wrong is made good by another one, up to ``federation.retries`` times; then the client
is given up for the round and, where ``federation.backup_fraction`` drew stand-ins, the next of them takes its place.
Which clients answer so depends on the faults alone, never on who was faster.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anchorfl.pipeline.config.federation import quorum_size
from anchorfl.pipeline.training.errors import FaultKind, QuorumError, RejectedError


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt of a client gave nothing: one line."""

    client: int
    reason: str
    kind: FaultKind = "exception"


WITHOUT_GPU = "system/without_gpu"
"""Metric: processes that have a share of a GPU by Ray and whose torch sees none; it is there where there are any."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """answered: clients whose updates were merged, ascending; failed: those left out; retried: attempts that went
    wrong and were made again; bytes: over all answering clients; loss: mean of their last local epoch; busy_seconds:
    sum of their training.
    """

    answered: tuple[int, ...]
    failed: tuple[Failure, ...] = ()
    retried: tuple[Failure, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    loss: float = float("nan")
    busy_seconds: float = 0.0
    memory: Mapping[str, float] = field(default_factory=dict)
    """Peak memory by worker so far, in MB: name of the worker -> resident memory; ``<name>_gpu`` where it has one."""
    backups: tuple[int, ...] = ()
    """Those of ``answered`` that were drawn as stand-ins."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """What ``Server.aggregate`` counted, by the name of its metric; ``WITHOUT_GPU``."""

    @property
    def kinds(self) -> Counter[str]:
        """How many attempts went wrong, by kind."""
        return Counter(f.kind for f in (*self.failed, *self.retried))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the round's record needs of a client's answer."""

    loss: float
    seconds: float
    bytes_up: int
    bytes_letter: int
    bytes_kept: int = 0
    """Of the client's memory."""


@dataclass
class Cohort:
    """Who is still to be asked in a round, and what came of those who were. ``waiting``: clients in the order in which
    they are asked.
    """

    selected: Sequence[int]
    backup_clients: Sequence[int]
    retries: int
    quorum: float
    answers: dict[int, Answer] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)
    retried: list[Failure] = field(default_factory=list)
    waiting: deque[int] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = deque(self.selected)
        self._backup_clients = deque(self.backup_clients)
        self._attempts: Counter[int] = Counter()

    def fault(self, failure: Failure, counted: bool = True) -> None:
        """An attempt went wrong: ask the client again, or give it up and ask the next stand-in. counted: among its
        attempts; not where its node was lost.
        """
        client = failure.client
        self.answers.pop(client, None)  # the server may refuse what had come
        self._attempts[client] += counted
        if self._attempts[client] <= self.retries:
            self.retried.append(failure)
            self.waiting.append(client)
            return
        self.failed.append(failure)
        if self._backup_clients:
            self.waiting.append(self._backup_clients.popleft())

    def take(self) -> Iterator[int]:
        """Those who wait, one after the other, until nobody does."""
        while self.waiting:
            yield self.waiting.popleft()

    def refuse(self, error: RejectedError) -> None:
        """The server refused some updates."""
        for client, reason in error.reasons.items():
            self.fault(Failure(client, reason, "rejected"))

    def check_quorum(self) -> None:
        """QuorumError where fewer than the quorum of the selected clients, or of their stand-ins, answered."""
        answered, selected = len(self.answers), len(self.selected)
        if answered < quorum_size(self.quorum, selected):
            reasons = "; ".join(f"client {f.client}: {f.reason}" for f in self.failed)
            raise QuorumError(f"{answered} of {selected} selected clients answered, quorum {self.quorum:g}: {reasons}")

    def outcome(
        self, bytes_down_each: int, memory: Mapping[str, float], counts: Mapping[str, float] | None = None
    ) -> RoundOutcome:
        """The round's outcome, once all has come in. counts: of ``Server.aggregate``."""
        answered = tuple(sorted(self.answers))
        given = [self.answers[client] for client in answered]
        return RoundOutcome(
            answered,
            tuple(sorted(self.failed, key=lambda f: f.client)),
            tuple(sorted(self.retried, key=lambda f: f.client)),
            bytes_down_each * len(given) + sum(a.bytes_letter for a in given),
            sum(a.bytes_up for a in given),
            sum(a.loss for a in given) / len(given) if given else float("nan"),
            sum(a.seconds for a in given),
            memory,
            tuple(client for client in answered if client not in set(self.selected)),
            counts or {},
        )
