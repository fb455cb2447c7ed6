"""A run as a Flower app: Flower places the processes and carries the messages, and the run's own server and clients do
what they do in AnchorFL, so the weights are the same to the bit.

A message becomes an ``ArrayRecord``, path -> array, and its form a JSON text. docs/flower.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from anchorfl.pipeline.algorithm.contract import Method
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.export.apps import PRESET
from anchorfl.pipeline.export.message_form import NO_UPDATE, as_update, put_together, taken_apart
from anchorfl.pipeline.export.rounds import Sending, check_kept, run_spec_of
from anchorfl.pipeline.export.rounds import serve as serve_rounds
from anchorfl.pipeline.export.secure_exchange import Kind, answer, masked_round
from anchorfl.pipeline.terminal import Log, say
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import InputError, first_line

MEMORY, SENT, TO_IT, UPDATE, ABOUT, METRICS = "memory", "sent", "to it alone", "update", "about", "metrics"
SECURE, KIND, TEXT, ROUND, MERGED = "secure", "kind", "text", "round", "merged"
"""Keys of records."""
WAIT_S = 0.5
"""Seconds between two looks at the nodes that are there."""


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
        asked, about = message.content.get(ABOUT), ConfigRecord({"client": _client(context)})
        if asked is not None:
            about[TEXT], kept = answer(_client(context), str(asked[KIND]), str(asked[TEXT]), _kept(context))
            context.state[SECURE] = ConfigRecord({TEXT: kept})
        return Message(content=RecordDict({ABOUT: about}), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        return Message(content=fit(folder, message.content, context), reply_to=message)

    app.query()(query)
    app.train()(train)
    return app


# ---- Messages as records.


def record_of(message: object) -> tuple[ArrayRecord, str]:
    """Return a message as arrays, and its form."""
    tensors, form = taken_apart(message)
    return ArrayRecord({path: Array(t.numpy()) for path, t in tensors.items()}), form


def message_of(record: Mapping[str, Array], form: str, method: Method[Any, Any]) -> Any:
    """Return a message of ``record_of``. Errors as ``put_together``, KeyError where an array lacks."""

    def tensor_at(path: str) -> Tensor:
        return torch.from_numpy(record[path].numpy().copy())

    return put_together(tensor_at, form, method)


# ---- The client's half.


@cache
def _run_spec(folder: Path) -> RunSpec:
    return run_spec_of(read_preset(str(folder / PRESET)))


@cache
def _runner(folder: Path) -> ClientRunner:
    """Return the runner of this process: one for all clients that Flower gives it."""
    one_thread()
    return ClientRunner(_run_spec(folder))


def _client(context: Context) -> int:
    """Return the number of the client whose data this node has."""
    return int(context.node_config["partition-id"])


def _kept(context: Context) -> str:
    """Return what a node keeps for secure aggregation; "": nothing yet."""
    return str(context.state[SECURE][TEXT]) if SECURE in context.state else ""


def fit(folder: Path, content: RecordDict, context: Context) -> RecordDict:
    """Train a node's client for a round; what it keeps goes into the node's state, beside what it began with, which it
    needs again where its update is lost.
    """
    runner, about, experiment = _runner(folder), content[ABOUT], _run_spec(folder).experiment
    method = experiment.method
    broadcast, to_it = (message_of(content[key], str(about[key]), method) for key in (SENT, TO_IT))
    client, round_, merged, secure = _client(context), int(about[ROUND]), int(about[MERGED]), None
    memory, before = {}, f"{MEMORY}-{merged}"
    if found := before in context.state:
        memory = message_of(context.state[before], str(context.state[ABOUT][before]), method)
    if experiment.federation.secure_aggregation or about[SECURE]:
        given = {SENT: broadcast, TO_IT: to_it, MEMORY: memory}
        secure, runner.secret, kept = masked_round(str(about[SECURE]), round_, _kept(context), given)
        context.state[SECURE] = ConfigRecord({TEXT: kept})
    result = runner.fit(client, round_, broadcast, memory, to_it, secure)
    check_kept(client, merged, found, result.memory)
    for name in [name for name in context.state if name.startswith(MEMORY)]:
        del context.state[name]
    forms = dict[str, str]()
    for name, kept_then in ((before, memory), (f"{MEMORY}-{round_}", result.memory)):
        context.state[name], forms[name] = record_of(kept_then)
    context.state[ABOUT] = ConfigRecord(forms)
    update, form = record_of(result.update)
    metrics = MetricRecord({"loss": result.loss, "num-examples": runner.all_cards[client].num_examples})
    return RecordDict({UPDATE: update, ABOUT: ConfigRecord({UPDATE: form}), METRICS: metrics})


# ---- The server's half.


def serve(folder: Path, grid: Grid, log: Log = say) -> None:
    """Run all rounds; write the model and log the checksum of the weights. InputError where too few clients answer."""
    run_spec = _run_spec(folder)
    nodes = _nodes(grid, run_spec.experiment.task.clients, log)

    def ask(server: Server, sending: Sending, asked: Sequence[int]) -> list[int]:
        return _ask(run_spec, server, grid, nodes, sending, asked, log)

    def exchange(kind: Kind, round_: int, texts: Mapping[int, str]) -> dict[int, str]:
        contents = {c: RecordDict({ABOUT: ConfigRecord({KIND: kind, TEXT: text})}) for c, text in texts.items()}
        replies = _replies(run_spec, grid, nodes, round_, "query", contents, log)
        return {client: str(content[ABOUT][TEXT]) for client, content in replies if TEXT in content.get(ABOUT, {})}

    serve_rounds(run_spec, ask, exchange, (folder / "model").resolve(), log)


def _replies(
    run_spec: RunSpec, grid: Grid, nodes: Mapping[int, int], round_: int, kind: str,
    contents: Mapping[int, RecordDict], log: Log,
) -> Iterator[tuple[int, RecordDict]]:  # fmt: skip
    """Send each client its content; yield who answered, and what."""
    clients, deadline = {node: client for client, node in nodes.items()}, run_spec.experiment.federation.deadline
    sending = [
        Message(content=content, dst_node_id=nodes[client], message_type=kind, group_id=str(round_))
        for client, content in contents.items()
    ]
    for reply in grid.send_and_receive(sending, timeout=deadline or None):
        if reply.has_error():
            log(f"round {round_}: node {reply.metadata.src_node_id}: {reply.error.reason}")
        else:
            yield clients[reply.metadata.src_node_id], reply.content


def _ask(
    run_spec: RunSpec, server: Server, grid: Grid, nodes: Mapping[int, int], sending: Sending, asked: Sequence[int],
    log: Log,
) -> list[int]:  # fmt: skip
    """Send a round to these clients, and take in what they answer; return who did."""
    (sent, form), contents, round_ = record_of(sending.broadcast), dict[int, RecordDict](), sending.round
    for client in asked:
        to_it, own_form = record_of(server.client_message(client))
        about = ConfigRecord(
            {
                SENT: form, TO_IT: own_form, SECURE: sending.secure, ROUND: round_,
                MERGED: sending.merged.get(client, 0),
            }
        )  # fmt: skip
        contents[client] = RecordDict({SENT: sent, TO_IT: to_it, ABOUT: about})
    answered, method = list[int](), run_spec.experiment.method
    for client, content in _replies(run_spec, grid, nodes, round_, "train", contents, log):
        try:
            message = message_of(content[UPDATE], str(content[ABOUT][UPDATE]), method)
            server.collect(round_, client, as_update(message, bool(sending.secure)))
        except NO_UPDATE as error:
            why = str(error) if isinstance(error, InputError) else first_line(error)
            log(f"round {round_}: the message of client {client} is no update: {why}")
            continue
        answered.append(client)
    return answered


def _nodes(grid: Grid, clients: int, log: Log) -> dict[int, int]:
    """Return client -> node, once there is one for each."""
    if (count := len(list(grid.get_node_ids()))) < clients:
        log(f"waiting for nodes: {count} of {clients} (in a simulation: options.num-supernodes)")
    while len(known := list(grid.get_node_ids())) < clients:
        time.sleep(WAIT_S)
    asked = [Message(content=RecordDict(), dst_node_id=node, message_type="query") for node in known]
    replies = list(grid.send_and_receive(asked))
    found = dict[int, int]()
    for reply in (r for r in replies if not r.has_error()):
        node = reply.metadata.src_node_id
        if "client" not in reply.content.get(ABOUT, {}):
            raise InputError(
                f"node {node} does not say which client's data it has: give it this app and a partition-id"
            )
        client = int(reply.content[ABOUT]["client"])
        if client in found:
            raise InputError(
                f"nodes {found[client]} and {node} both have the data of client {client}: give each a partition-id of"
                " its own"
            )
        found[client] = node
    if missing := sorted({*range(clients)} - found.keys()):
        raise InputError(f"no node has the data of client {missing[0]}; each node's partition-id names its client")
    return found
