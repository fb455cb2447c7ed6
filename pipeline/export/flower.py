"""A run as a Flower app: Flower places the processes and carries the messages, and the run's own server and clients do
what they do in AnchorFL, so the weights are the same to the bit.

A message becomes an ``ArrayRecord``, path -> array, and its form a JSON text: dicts by their keys, dataclasses by their
names, which are looked up in the method's module. No pickle. docs/flower.md.
"""

from __future__ import annotations

import json
import sys
import time
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Method, Update
from anchorfl.pipeline.config.federation import quorum_size
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.export.flower_app import PRESET
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.run.round_loop import final_checksum
from anchorfl.pipeline.storage.saved_model import save_model
from anchorfl.pipeline.terminal import Log, say
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.errors import RejectedError
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.sampling import cohort_of
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import InputError, first_line

MEMORY, SENT, TO_IT, UPDATE, ABOUT, METRICS = "memory", "sent", "to it alone", "update", "about", "metrics"
"""Keys of records."""
WAIT_S = 0.5
"""Seconds between two looks at the nodes that are there."""
Form = str | dict[str, Any]
"""The form of a message: a tensor's path; or the forms of a dict's or a dataclass's parts."""


def server_app(folder: Path) -> ServerApp:
    """Return the server's half of a run. folder: with ``experiment.toml``."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(folder, grid)

    app.main()(main)
    return app


def client_app(folder: Path) -> ClientApp:
    """Return the clients' half of a run. folder: with ``experiment.toml``, on every machine."""
    app = ClientApp()

    def query(message: Message, context: Context) -> Message:
        number = ConfigRecord({"client": _client(context)})
        return Message(content=RecordDict({ABOUT: number}), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        return Message(content=fit(folder, message.content, context), reply_to=message)

    app.query()(query)
    app.train()(train)
    return app


# ---- Messages as records.


def record_of(message: object) -> tuple[ArrayRecord, str]:
    """Return a message as arrays, and its form."""
    arrays = {path: Array(t.detach().cpu().contiguous().numpy()) for path, t in messages.tensors(message)}
    return ArrayRecord(arrays), json.dumps(_form(message, ""))


def message_of(record: Mapping[str, Array], form: str, method: Method[Any, Any]) -> Any:
    """Return a message of ``record_of``. Names of dataclasses are those of the modules of the method and its bases."""
    names = ChainMap(*(vars(sys.modules[kind.__module__]) for kind in type(method).__mro__))

    def build(part: Form) -> Any:
        if isinstance(part, str):
            return torch.from_numpy(record[part].numpy().copy())
        inner = {name: build(each) for name, each in part["of"].items()}
        if "is" not in part:
            return inner
        kind = names.get(part["is"])
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise InputError(f"a message is a {part['is']!r}, unknown to {method.name!r} here: the versions differ")
        return kind(**inner)

    return build(json.loads(form))


def _form(message: object, path: str) -> Form:
    if isinstance(message, Tensor):
        return path
    if isinstance(message, dict):
        return {"of": {key: _form(value, f"{path}/{key}".lstrip("/")) for key, value in message.items()}}
    of = {f.name: _form(getattr(message, f.name), f"{path}/{f.name}".lstrip("/")) for f in fields(message)}  # type: ignore[arg-type]
    return {"is": type(message).__name__, "of": of}


# ---- The client's half.


@cache
def _run_spec(folder: Path) -> RunSpec:
    experiment = read_preset(str(folder / PRESET))
    alone = replace(experiment, cluster=replace(experiment.cluster, executor="serial"))  # Flower places the processes
    return make_run_spec(alone, _quiet)


@cache
def _runner(folder: Path) -> ClientRunner:
    """Return the runner of this process: one for all clients that Flower gives it."""
    one_thread()
    return ClientRunner(_run_spec(folder))


def _client(context: Context) -> int:
    """Return the number of the client whose data this node has."""
    return int(context.node_config["partition-id"])


def fit(folder: Path, content: RecordDict, context: Context) -> RecordDict:
    """Train a node's client for a round; what it keeps goes into the node's state."""
    runner, about, method = _runner(folder), content[ABOUT], _run_spec(folder).experiment.method
    broadcast, to_it = (message_of(content[key], str(about[key]), method) for key in (SENT, TO_IT))
    memory = {}
    if MEMORY in context.state:
        memory = message_of(context.state[MEMORY], str(context.state[ABOUT][MEMORY]), method)
    client = _client(context)
    result = runner.fit(client, int(about["round"]), broadcast, memory, to_it)
    context.state[MEMORY], form = record_of(result.memory)
    context.state[ABOUT] = ConfigRecord({MEMORY: form})
    update, form = record_of(result.update)
    metrics = MetricRecord({"loss": result.loss, "num-examples": runner.all_cards[client].num_examples})
    return RecordDict({UPDATE: update, ABOUT: ConfigRecord({UPDATE: form}), METRICS: metrics})


# ---- The server's half.


def serve(folder: Path, grid: Grid, log: Log = say) -> None:
    """Run all rounds; write the model and log the checksum of the weights. InputError where too few clients answer."""
    one_thread()
    run_spec = _run_spec(folder)
    experiment, server = run_spec.experiment, Server(run_spec)
    nodes, rounds = _nodes(grid, experiment.task.clients, log), experiment.federation.rounds
    for round_ in range(1, rounds + 1):
        chosen = cohort_of(experiment.federation, experiment.task.clients, round_, experiment.seed)
        least, answered, left = quorum_size(experiment.federation.quorum, len(chosen)), list[int](), chosen
        while left:
            answered += _ask(run_spec, server, grid, nodes, round_, left, log)
            answered, left = _aggregate(server, round_, sorted(answered), least, log)
        if round_ == rounds or round_ % experiment.evaluation.every == 0:
            log(f"round {round_}/{rounds}  {_scores(server, 'validation')}")
    log(_scores(server, "test"))
    place = (folder / "model").resolve()
    save_model(place, run_spec, server.state.weights, {"round": rounds})
    log(f"model: {place}\nweights sha256 {final_checksum(server.snapshot())}")


def _ask(
    run_spec: RunSpec, server: Server, grid: Grid, nodes: Mapping[int, int], round_: int, asked: Iterable[int], log: Log
) -> list[int]:
    """Send a round to these clients, and take in what they answer; return who did."""
    sent, form = record_of(server.broadcast(round_))
    sending = []
    for client in asked:
        to_it, own_form = record_of(server.client_message(client))
        about = ConfigRecord({SENT: form, TO_IT: own_form, "round": round_})
        content = RecordDict({SENT: sent, TO_IT: to_it, ABOUT: about})
        sending.append(Message(content=content, dst_node_id=nodes[client], message_type="train", group_id=str(round_)))
    answered, experiment, clients = list[int](), run_spec.experiment, {node: client for client, node in nodes.items()}
    for reply in grid.send_and_receive(sending, timeout=experiment.federation.deadline or None):
        if reply.has_error():
            log(f"round {round_}: node {reply.metadata.src_node_id}: {reply.error.reason}")
            continue
        client = clients[reply.metadata.src_node_id]
        try:
            update = _update_of(reply.content, experiment.method)
        except (InputError, KeyError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, InputError) else first_line(error)
            log(f"round {round_}: the message of client {client} is no update: {why}")
            continue
        server.collect(round_, client, update)
        answered.append(client)
    return answered


def _update_of(content: RecordDict, method: Method[Any, Any]) -> Update:
    """Return the update that a client sent. InputError, KeyError, TypeError or ValueError: it is none."""
    update = message_of(content[UPDATE], str(content[ABOUT][UPDATE]), method)
    if not isinstance(update, Update):
        raise InputError(f"it is a {type(update).__name__}")
    return update


def _aggregate(server: Server, round_: int, answered: list[int], least: int, log: Log) -> tuple[list[int], list[int]]:
    """Merge what came in, without updates that the server refuses. Return two empty lists where it is done; else the
    clients whose updates it still has, and those that have to train again. InputError: fewer than ``least`` are left.
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
        else:
            return [], []


def _scores(server: Server, split: str) -> str:
    values = server.scores([split])[split].values
    return f"{split} " + ", ".join(f"{name} {100 * value:.2f}" for name, value in values.items())


def _nodes(grid: Grid, clients: int, log: Log) -> dict[int, int]:
    """Return client -> node, once there is one for each."""
    if (count := len(list(grid.get_node_ids()))) < clients:
        log(f"waiting for nodes: {count} of {clients} (in a simulation: options.num-supernodes)")
    while len(known := list(grid.get_node_ids())) < clients:
        time.sleep(WAIT_S)
    asked = [Message(content=RecordDict(), dst_node_id=node, message_type="query") for node in known]
    replies = list(grid.send_and_receive(asked))
    found = {int(r.content[ABOUT]["client"]): r.metadata.src_node_id for r in replies if not r.has_error()}
    if missing := sorted({*range(clients)} - found.keys()):
        raise InputError(f"no node has the data of client {missing[0]}; each node's partition-id names its client")
    return found


def _quiet(line: str) -> None:
    """Say nothing: every process of Flower's would."""
