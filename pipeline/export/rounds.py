"""The rounds of a run whose messages another framework carries: selection, the run's own server, refused updates, the
quorum and the saved model, with the bits of ``anchorfl run``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anchorfl.pipeline.algorithm.contract import ServerState, Tensors
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.federation import quorum_size
from anchorfl.pipeline.export.secure_exchange import Exchange, RemoteClients, text_of
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.round_loop import final_checksum
from anchorfl.pipeline.storage.saved_model import save_model
from anchorfl.pipeline.terminal import Log
from anchorfl.pipeline.training.errors import QuorumError, RejectedError
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.sampling import cohort_of
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import InputError


@dataclass(frozen=True)
class Sending:
    """What a round's clients are sent."""

    round: int
    broadcast: ServerState
    secure: str
    """``secure_exchange.text_of`` the round, where ``federation.secure_aggregation`` asks; else ""."""
    merged: Mapping[int, int]
    """Client -> last round in which its update was merged, whose memory it goes on with; without those that have none.
    """


def check_kept(client: int, merged: int, found: bool, memory: Tensors) -> None:
    """Raise InputError where a client keeps something between rounds, and what it kept in round ``merged`` is gone.

    memory: what it keeps after this round.
    """
    if merged and memory and not found:
        raise InputError(
            f"what client {client} kept in round {merged} is gone from this site, and it trains no more: start the run"
            " anew"
        )


Ask = Callable[[Server, Sending, Sequence[int]], list[int]]
"""Send a round to some clients, give the server the updates that come back, and return who answered."""


def run_spec_of(experiment: Experiment) -> RunSpec:
    """Return the run of one process's half: the other framework places the processes, and ends a round in time."""
    cluster = replace(experiment.cluster, executor="forked", memories="", py_modules="")  # serial allows no deadline
    return make_run_spec(replace(experiment, cluster=cluster), lambda line: None)  # every process would say it


def serve(run_spec: RunSpec, ask: Ask, exchange: Exchange, place: Path, log: Log) -> None:
    """Run all rounds; write the model to ``place`` and log the checksum of the weights.

    exchange: for secure aggregation. InputError where fewer clients answer than the quorum.
    """
    one_thread()
    experiment, server = run_spec.experiment, Server(run_spec)
    federation, server.clients = experiment.federation, RemoteClients(exchange, log)
    merged = dict[int, int]()
    for round_ in range(1, federation.rounds + 1):
        chosen = cohort_of(federation, experiment.task.clients, round_, experiment.seed)
        broadcast, secure = server.broadcast(round_), server.secure_round(round_, chosen)
        sending = Sending(round_, broadcast, text_of(round_, secure), merged)
        least, answered = quorum_size(federation.quorum, len(chosen)), list[int]()
        left = list(chosen) if secure is None else sorted(secure.keys)
        while True:
            answered += ask(server, sending, left)
            answered, left = _aggregate(server, round_, sorted(answered), least, log)
            if not left:
                break
        merged |= dict.fromkeys(answered, round_)
        if round_ == federation.rounds or round_ % experiment.evaluation.every == 0:
            log(f"round {round_}/{federation.rounds}  {_scores(server, 'validation')}")
    if experiment.evaluation.test != "never":
        log(_scores(server, "test"))
    save_model(place, run_spec, server.state.weights, {"round": federation.rounds})
    log(f"model: {place}\nweights sha256 {final_checksum(server.snapshot())}")


def _aggregate(server: Server, round_: int, answered: list[int], least: int, log: Log) -> tuple[list[int], list[int]]:
    """Merge what came in, without updates that the server refuses. Return those whose updates it has, and those that
    have to train again, none where it is done. InputError: fewer than ``least`` are left.
    """
    while True:
        if len(answered) < least:
            raise InputError(f"round {round_}: {len(answered)} clients answered, and {least} must (federation.quorum)")
        try:
            server.aggregate(round_, answered)
        except RejectedError as error:
            for client, reason in error.reasons.items():
                log(f"round {round_}: client {client} is left out: {reason}")
            answered = [client for client in answered if client not in error.reasons]
            if error.again:
                return [client for client in answered if client not in error.again], list(error.again)
        except QuorumError as error:
            raise InputError(f"round {round_}: {error}") from error
        else:
            return answered, []


def _scores(server: Server, split: str) -> str:
    scores = server.scores([split])
    if split not in scores:
        return f"no {split} rows"
    values = scores[split].values
    return f"{split} " + ", ".join(f"{name} {100 * value:.2f}" for name, value in values.items())
