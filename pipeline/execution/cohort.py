"""The clients of a round: who is still to be asked, who has answered, and who is given up.

An attempt of a client that goes wrong is made good by another one, up to ``federation.retries`` times. Then the client
is given up for the round and, where ``federation.backup_fraction`` drew backup clients, the next of them takes its
place. Which clients answer so depends on the faults alone, never on who was faster.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anchorfl.pipeline.config.federation import quorum_size
from anchorfl.pipeline.training.errors import FaultKind, QuorumError, RejectedError


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt of a client that gave nothing."""

    client: int
    reason: str
    """One line."""
    kind: FaultKind = "exception"


DIVERGED = (
    "where a resumed run ends like this again, the model has diverged: lower optimizer.lr, or the rates in [method], in"
    " another --output"
)
"""Said where no client can train from what the server sends."""
WITHOUT_GPU = "system/without_gpu"
"""Metric: processes that have a share of a GPU by Ray and whose torch sees none; it is there where there are any."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """The training half of a round, as the round's record needs it."""

    answered: tuple[int, ...]
    """Clients whose updates were aggregated, ascending."""
    failed: tuple[Failure, ...] = ()
    """The last failure of each client that was left out, by client."""
    retried: tuple[Failure, ...] = ()
    """Attempts that went wrong and were made again, by client."""
    bytes_down: int = 0
    """Sent to all clients that answered."""
    bytes_up: int = 0
    """Sent by all clients that answered."""
    loss: float = float("nan")
    """Mean over the clients that answered of the loss of their last local epoch."""
    busy_seconds: float = 0.0
    """Sum of the training times of the clients that answered."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """Peak memory by worker so far, in MB: name of the worker -> resident memory; ``<name>_gpu`` where it has one."""
    backups: tuple[int, ...] = ()
    """Clients of ``answered`` that were drawn as backup clients."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Counts of ``Server.aggregate`` by name of the metric; ``WITHOUT_GPU``."""

    @property
    def kinds(self) -> Counter[str]:
        """Number of attempts that went wrong, by kind."""
        return Counter(f.kind for f in (*self.failed, *self.retried))


@dataclass(frozen=True, slots=True)
class FitMetrics:
    """The numbers of one client's training that the round's record needs."""

    loss: float
    """Mean over the mini-batches of its last local epoch."""
    seconds: float
    """Wall time of its training."""
    bytes_up: int
    """Size of its update."""
    bytes_client_message: int
    """Size of the message that the server sent to it alone."""
    bytes_kept: int = 0
    """Size of its memory."""


@dataclass
class Cohort:
    """The clients of one round, and what came of those that were asked."""

    selected: Sequence[int]
    backup_clients: Sequence[int]
    """Clients that take the place of those that are given up, in this order."""
    retries: int
    """Attempts that a client has beside the first."""
    quorum: float
    """Share of ``selected`` that must answer, 0 to 1."""
    metrics: dict[int, FitMetrics] = field(default_factory=dict)
    """Metrics of the clients that have answered."""
    failed: list[Failure] = field(default_factory=list)
    """The last failure of each client that is given up."""
    retried: list[Failure] = field(default_factory=list)
    """Attempts that went wrong and are made again."""
    waiting: deque[int] = field(init=False)
    """Clients in the order in which they are asked."""

    def __post_init__(self) -> None:
        self.waiting = deque(self.selected)
        self._backup_clients = deque(self.backup_clients)
        self._attempts: Counter[int] = Counter()

    @property
    def answered(self) -> tuple[int, ...]:
        """Clients that have answered, ascending."""
        return tuple(sorted(self.metrics))

    def fail(self, failure: Failure, counted: bool = True) -> None:
        """Ask the client of a failed attempt again, or give it up and ask the next backup client.

        counted: the attempt is one of the client's; it is not where its node was lost, or its process was dead before.
        """
        client = failure.client
        self.metrics.pop(client, None)  # the server may refuse what had come
        self._attempts[client] += counted
        if self._attempts[client] <= self.retries:
            self.retried.append(failure)
            self.waiting.append(client)
            return
        self.failed.append(failure)
        if self._backup_clients:
            self.waiting.append(self._backup_clients.popleft())

    def reject(self, error: RejectedError) -> None:
        """Note the clients whose updates the server refused as failed attempts; others are asked again."""
        for client, reason in error.reasons.items():
            self.fail(Failure(client, reason, "rejected"))
        for client in error.again:
            del self.metrics[client]
            self.waiting.append(client)

    def check_quorum(self) -> None:
        """Raise QuorumError where fewer than the quorum of the selected clients, or of their backups, answered."""
        answered, selected = len(self.metrics), len(self.selected)
        if answered < quorum_size(self.quorum, selected):
            of_reason = dict[str, list[int]]()
            for failure in self.failed:
                of_reason.setdefault(failure.reason, []).append(failure.client)
            reasons = "; ".join(
                f"client{'s' * (len(clients) > 1)} {', '.join(map(str, sorted(clients)))}: {reason}"
                for reason, clients in of_reason.items()
            )
            broken = all(f.kind == "rejected" and ("finite" in f.reason or "norm" in f.reason) for f in self.failed)
            if not answered and broken:
                reasons += f"; {DIVERGED}"
            raise QuorumError(f"{answered} of {selected} selected clients answered, quorum {self.quorum:g}: {reasons}")

    def outcome(
        self, bytes_down_each: int, memory: Mapping[str, float], counts: Mapping[str, float] | None = None
    ) -> RoundOutcome:
        """Return the round's outcome, once all has come in.

        bytes_down_each: size of the broadcast; memory, counts: as in ``RoundOutcome``.
        """
        answered, selected = self.answered, set(self.selected)
        metrics = [self.metrics[client] for client in answered]
        return RoundOutcome(
            answered,
            failed=tuple(sorted(self.failed, key=lambda f: f.client)),
            retried=tuple(sorted(self.retried, key=lambda f: f.client)),
            bytes_down=bytes_down_each * len(metrics) + sum(m.bytes_client_message for m in metrics),
            bytes_up=sum(m.bytes_up for m in metrics),
            loss=sum(m.loss for m in metrics) / len(metrics) if metrics else float("nan"),
            busy_seconds=sum(m.seconds for m in metrics),
            memory=memory,
            backups=tuple(client for client in answered if client not in selected),
            counts=counts or {},
        )
