"""Where server and clients run: the seam between the round loop and Ray.

``SerialExecutor`` is the reference: everything in this process. ``RayExecutor`` (pipeline/actors.py) gives the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pipeline import tree, usage
from pipeline.client import CPU, ClientHost, device_for
from pipeline.contract import Tensors
from pipeline.evaluate import mean_of_models
from pipeline.server import Server
from pipeline.setup import Setup, one_thread
from tasks.contract import InputError
from tasks.metrics import Scores

ATTEMPTS = 2
"""A client that fails is tried once more, on a fresh worker where there are workers; then it is left out of the
round."""


NEXT = 0
"""Round of a broadcast that is for no training: what clients would be sent now, to score their own models with."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a client is missing from a round: one line."""

    client: int
    reason: str


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """answered: clients whose updates were merged, ascending; failed: those left out; retried: attempts that failed
    but were made good; bytes: over all answering clients; loss: mean of their last local epoch; busy_seconds: sum of
    their training.
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


class QuorumError(RuntimeError):
    """Too few clients answered to go on; the state is that of the last completed round."""


@dataclass
class Tally:
    """What an executor adds up while the answers of a round come in."""

    loss: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_letters: int = 0
    failed: list[Failure] = field(default_factory=list)
    retried: list[Failure] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)

    def outcome(self, bytes_down_each: int) -> RoundOutcome:
        answered = sorted(self.loss)
        return RoundOutcome(
            tuple(answered), tuple(sorted(self.failed, key=lambda f: f.client)), tuple(self.retried),
            bytes_down_each * len(answered) + self.bytes_letters, self.bytes_up,
            sum(self.loss[c] for c in answered) / len(answered) if answered else float("nan"), self.seconds,
            self.memory,
        )  # fmt: skip


def check_quorum(answered: int, selected: int, quorum: float, failed: Sequence[Failure]) -> None:
    """Raise QuorumError where fewer than ``quorum`` of the selected clients answered."""
    if answered == 0 or answered < quorum * selected:
        reasons = "; ".join(f"client {f.client}: {f.reason}" for f in failed)
        raise QuorumError(f"{answered} of {selected} selected clients answered, quorum {quorum:g}: {reasons}")


Watch = Callable[[int, int, int], None]
"""Called while a round goes: (clients busy, done, failed)."""


class Executor(Protocol):
    """What the round loop needs of the place where a run happens."""

    def round(self, round_: int, selected: Sequence[int], watch: Watch) -> RoundOutcome:
        """Broadcast, fit the selected clients, merge what came back; QuorumError below the quorum, state unchanged."""

    def expect(self, clients: Sequence[int]) -> None:
        """These clients come next: start what they need, without waiting for it."""

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        """Scores on these of the server's splits: of the current weights, or the mean over all clients of their own
        models' (``Method.scored``).
        """

    def snapshot(self) -> Tensors:
        """The server's state as path -> tensor."""

    def memory(self, client: int) -> Tensors:
        """The client's memory as the run keeps it."""

    def restore(self, state: Tensors, memories: dict[int, Tensors]) -> None:
        """Continue from a checkpoint."""

    def close(self) -> None:
        """Give back workers and memory."""


def server_of(setup: Setup, host: ClientHost | None = None) -> Server:
    """A server in this process that has heard what the clients tell. host: of all clients, where the caller has one."""
    device = host.device if host else CPU
    if not setup.experiment.method.tells:
        return Server(setup, device=device)
    host = host or ClientHost(setup)
    told = [host.tell(client) for client in range(setup.experiment.task.clients)]
    return Server(setup, told, device)


def host_of(setup: Setup) -> ClientHost:
    """Of all clients in this process: on the GPU where the options give clients or server a share of one. InputError
    where there is none.
    """
    cluster = setup.experiment.cluster
    gpus = max(cluster.client_gpus, cluster.server_gpus)
    if gpus and not torch.cuda.is_available():
        raise InputError(
            f"cluster: {gpus:g} of a GPU is asked for, but this torch ({torch.__version__}) sees none: set client_gpus"
            " and server_gpus to 0, or install torch for CUDA"
        )
    return ClientHost(setup, device_for(gpus))


def scored_as(clients: int, memories: Mapping[int, Any]) -> list[int]:
    """For every client, the one whose model is scored for it: itself, or, of those that have not been trained yet and
    so have equal models, the first.
    """
    untrained = [client for client in range(clients) if client not in memories]
    return [client if client in memories else untrained[0] for client in range(clients)]


class InProcess:
    """What executors in this process have in common: a server and what clients keep, nothing to start or give back."""

    server: Server
    memories: dict[int, Tensors]

    def expect(self, clients: Sequence[int]) -> None:
        """Nothing to start."""

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        return self.server.scores(splits)

    def snapshot(self) -> Tensors:
        return self.server.snapshot()

    def memory(self, client: int) -> Tensors:
        return self.memories.get(client, {})

    def restore(self, state: Tensors, memories: dict[int, Tensors]) -> None:
        self.server.restore(state)
        self.memories = dict(memories)

    def close(self) -> None:
        """Nothing to give back."""


class SerialExecutor(InProcess):
    """Server and clients in this process, one after the other: for tests, the debugger, and as the reference."""

    def __init__(self, setup: Setup) -> None:
        one_thread()
        self.quorum, self.clients = setup.experiment.federation.quorum, setup.experiment.task.clients
        self.host = host_of(setup)
        self.server = server_of(setup, self.host)
        self.memories: dict[int, Tensors] = {}

    def round(self, round_: int, selected: Sequence[int], watch: Watch) -> RoundOutcome:
        sent = self.server.broadcast(round_)
        tally, updates, memories = Tally(), [], {}
        for client in selected:
            watch(1, len(tally.loss), len(tally.failed))
            for attempt in range(ATTEMPTS):
                try:
                    letter = self.server.letter(client)
                    fitted = self.host.fit(client, round_, sent, self.memories.get(client, {}), letter)
                except Exception as error:  # any fault of a client costs that client only
                    into = tally.retried if attempt + 1 < ATTEMPTS else tally.failed
                    into.append(Failure(client, f"{type(error).__name__}: {error}"))
                    continue
                updates.append(fitted.update)
                memories[client] = fitted.memory
                tally.loss[client] = fitted.loss
                tally.seconds += fitted.seconds
                tally.bytes_up += tree.nbytes(fitted.update)
                tally.bytes_letters += tree.nbytes(letter)
                break
        check_quorum(len(updates), len(selected), self.quorum, tally.failed)
        tally.memory |= usage.peak("process")
        outcome = tally.outcome(tree.nbytes(sent))
        self.server.merge(round_, outcome.answered, updates)
        self.memories |= memories
        return outcome

    def scores(self, splits: Sequence[str]) -> dict[str, Scores]:
        if self.server.method.scored == "server":
            return super().scores(splits)
        sent, models = self.server.broadcast(NEXT), scored_as(self.clients, self.memories)
        each = {c: self.host.scores(sent, self.memories.get(c, {}), splits) for c in dict.fromkeys(models)}
        return mean_of_models([each[c] for c in models])
