"""A run as a job of NVFlare: NVFlare places the sites and carries the messages, and the run's own server and clients do
what they do in AnchorFL, so the weights are the same to the bit.

A message is the bytes of a safetensors file, and its form a JSON text. docs/nvflare.md.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from anchorfl.pipeline.algorithm.contract import Method
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.export.apps import PRESET
from anchorfl.pipeline.export.message_form import NO_UPDATE, as_update, put_together, taken_apart
from anchorfl.pipeline.export.rounds import Sending, check_kept, run_spec_of, serve
from anchorfl.pipeline.export.secure_exchange import Kind, answer, masked_round
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import InputError, first_line

TRAIN, EXCHANGE = "train", "exchange"
"""The tasks: a round of training, and what is said beside it for secure aggregation."""
SENT, TO_IT, UPDATE = "sent", "to_it_alone", "update"
"""Keys of messages; the form of each stands under its key and ``FORM``."""
FORM, ROUND, SECURE, KIND, TEXT = "_form", "round", "secure", "kind", "text"
MERGED = "merged"
"""Key of the last round in which the client's update was merged; 0: none."""
MEMORY = "memory-{}.safetensors"
"""File in a site's folder of the job: what its client kept in a round."""
SECRET = "secure.json"
"""Beside it: its secret, and what it has said, for secure aggregation."""
LOOK_S = 0.05
"""Seconds between two looks at the answers."""


@cache
def _run_spec(path: Path) -> RunSpec:
    return run_spec_of(read_preset(str(path)))


@cache
def _runner(path: Path) -> ClientRunner:
    """Return the runner of this process: one for all sites that the simulator gives it."""
    one_thread()
    return ClientRunner(_run_spec(path))


def client_of(site: str) -> int:
    """Return the client that a site trains: ``site-1`` has client 0. InputError: its name ends in no number above 0."""
    number = re.search(r"\d+$", site)
    if number is None or not int(number[0]):
        raise InputError(f"site {site!r} trains no client: the name of a site ends in a number, that of client 0 in 1")
    return int(number[0]) - 1


# ---- Messages.


def put(content: dict[str, Any], key: str, message: object) -> None:
    """Put a message into what is sent."""
    tensors, content[key + FORM] = taken_apart(message)
    content[key] = save(tensors)


def taken(content: Mapping[str, Any], key: str, method: Method[Any, Any]) -> Any:
    """Return a message out of what was sent. Errors as ``put_together``; KeyError or SafetensorError: it is none."""
    return put_together(load(content[key]).__getitem__, str(content[key + FORM]), method)


def places(fl_ctx: FLContext) -> tuple[Path, Path]:
    """Return the preset of the job, and the job's folder at this site."""
    workspace, job = fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id()
    return Path(workspace.get_app_config_dir(job)) / PRESET, Path(workspace.get_run_dir(job))


# ---- The client's half.


class AnchorExecutor(Executor):  # type: ignore[misc]  # nvflare is for who has it
    """A site's half."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Train the site's client for a round and return its update; or answer for secure aggregation."""
        if task_name not in (TRAIN, EXCHANGE):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        preset, folder = places(fl_ctx)
        client, reply = client_of(fl_ctx.get_identity_name()), Shareable()
        if task_name == TRAIN:
            reply.update(fit(preset, client, shareable, folder))
        else:
            reply[TEXT], kept = answer(client, str(shareable[KIND]), str(shareable[TEXT]), _kept(folder))
            _keep(folder, kept)
        return reply


def _kept(folder: Path) -> str:
    """Return what a site keeps for secure aggregation; "": nothing yet."""
    return (folder / SECRET).read_text(encoding="utf-8") if (folder / SECRET).exists() else ""


def _keep(folder: Path, kept: str) -> None:
    write_atomically(folder / SECRET, kept.encode(), mode=0o600)


def fit(preset: Path, client: int, content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a site's client for a round; what it keeps goes into a file in ``folder``. preset: the experiment."""
    runner, experiment = _runner(preset), _run_spec(preset).experiment
    method = experiment.method
    broadcast, to_it = (taken(content, key, method) for key in (SENT, TO_IT))
    round_, merged, memory = int(content[ROUND]), int(content[MERGED]), {}
    path = folder / MEMORY.format(merged)
    if found := path.exists():
        with safe_open(path, "pt") as file:
            memory = put_together(file.get_tensor, file.metadata()[FORM], method)
    secure = None
    if experiment.federation.secure_aggregation or content[SECURE]:
        given = {SENT: broadcast, TO_IT: to_it, "memory": memory}
        secure, runner.secret, kept = masked_round(str(content[SECURE]), round_, _kept(folder), given)
        _keep(folder, kept)
    result = runner.fit(client, round_, broadcast, memory, to_it, secure)
    check_kept(client, merged, found, result.memory)
    tensors, form = taken_apart(result.memory)
    after = folder / MEMORY.format(round_)
    write_atomically(after, save(tensors, {FORM: form}))
    for other in {*folder.glob(MEMORY.format("*"))} - {path, after}:  # what it began with is needed where this is lost
        other.unlink()
    reply = dict[str, Any]()
    put(reply, UPDATE, result.update)
    return reply


# ---- The server's half.


class AnchorController(Controller):  # type: ignore[misc]  # as above
    """The server's half."""

    def __init__(self) -> None:
        super().__init__(task_check_period=LOOK_S)

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to end."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Leave out what comes after its round's deadline."""
        self.log_info(fl_ctx, f"{client.name} answered too late")

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run all rounds. What ends the run too early is the reason of a panic."""
        preset, folder = places(fl_ctx)
        try:
            run_spec = _run_spec(preset)
            names = [client.name for client in fl_ctx.get_engine().get_clients()]
            sites = sites_of(names, run_spec.experiment.task.clients)

            def ask(server: Server, sending: Sending, asked: Sequence[int]) -> list[int]:
                return self._ask(run_spec, server, sites, sending, asked, fl_ctx, abort_signal)

            def exchange(kind: Kind, round_: int, texts: Mapping[int, str]) -> dict[int, str]:
                contents = {client: {KIND: kind, TEXT: text} for client, text in texts.items()}
                answers = self._answers(run_spec, sites, EXCHANGE, round_, contents, fl_ctx, abort_signal)
                return {client: str(reply[TEXT]) for client, reply in answers.items() if TEXT in reply}

            serve(run_spec, ask, exchange, folder / "model", lambda line: self.log_info(fl_ctx, line))
        except InputError as error:
            self.system_panic(str(error), fl_ctx)

    def _ask(
        self, run_spec: RunSpec, server: Server, sites: Sequence[str], sending: Sending, asked: Sequence[int],
        fl_ctx: FLContext, abort_signal: Signal,
    ) -> list[int]:  # fmt: skip
        """Send a round to these clients, and take in what they answer; return who did."""
        shared: dict[str, Any] = {ROUND: sending.round, SECURE: sending.secure}
        put(shared, SENT, sending.broadcast)
        contents = {client: dict(shared) for client in asked}
        for client, content in contents.items():
            content[MERGED] = sending.merged.get(client, 0)
            put(content, TO_IT, server.client_message(client))
        answered, round_, method = list[int](), sending.round, run_spec.experiment.method
        answers = self._answers(run_spec, sites, TRAIN, round_, contents, fl_ctx, abort_signal)
        for client, reply in answers.items():
            try:
                server.collect(round_, client, as_update(taken(reply, UPDATE, method), bool(sending.secure)))
            except (*NO_UPDATE, SafetensorError) as error:
                why = str(error) if isinstance(error, InputError) else first_line(error)
                self.log_info(fl_ctx, f"round {round_}: the message of client {client} is no update: {why}")
                continue
            answered.append(client)
        return answered

    def _answers(
        self, run_spec: RunSpec, sites: Sequence[str], task_name: str, round_: int,
        contents: Mapping[int, Mapping[str, Any]], fl_ctx: FLContext, abort_signal: Signal,
    ) -> dict[int, Shareable]:  # fmt: skip
        """Give each client's site a task; return what those answered who did, by client. InputError: aborted."""
        deadline, answers = run_spec.experiment.federation.deadline, dict[str, Shareable]()

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answers[client_task.client.name] = client_task.result

        for client, content in contents.items():
            data = Shareable()
            data.update(content)
            task = Task(task_name, data, timeout=math.ceil(deadline), result_received_cb=received)
            self.send(task=task, fl_ctx=fl_ctx, targets=[sites[client]])
        while self.get_num_standing_tasks():
            if abort_signal.triggered:
                self.cancel_all_tasks()
                raise InputError(f"round {round_} was aborted")
            time.sleep(LOOK_S)
        out = dict[int, Shareable]()
        for client in contents:
            reply = answers.get(sites[client])
            if reply is None or reply.get_return_code() != ReturnCode.OK:
                why = "no answer in time" if reply is None else reply.get_return_code()
                self.log_info(fl_ctx, f"round {round_}: {sites[client]}: {why}")
            else:
                out[client] = reply
        return out


def sites_of(names: Sequence[str], clients: int) -> list[str]:
    """Return the site of every client. InputError: a client has none, or two."""
    site_of = dict[int, str]()
    for name in names:
        if (other := site_of.setdefault(client_of(name), name)) != name:
            raise InputError(f"sites {other!r} and {name!r} have one number, and train one client: rename one")
    if missing := sorted({*range(clients)} - site_of.keys()):
        raise InputError(f"no site has the data of client {missing[0]}: the name of its site ends in {missing[0] + 1}")
    return [site_of[client] for client in range(clients)]
