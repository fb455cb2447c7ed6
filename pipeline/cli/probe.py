"""``anchorfl probe``: train one client of a preset alone, and say how many fit the cluster at a time."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.cluster.placement import Node, own_cpus
from anchorfl.pipeline.cluster.sizing import (
    GPU_MARGIN,
    MEMORY_MARGIN,
    Need,
    Sizing,
    number,
    share_out,
    size,
    usable,
    whole_cpus,
)
from anchorfl.pipeline.config.experiment import Experiment, digest
from anchorfl.pipeline.config.idle_options import check_idle
from anchorfl.pipeline.config.overrides import typed_options
from anchorfl.pipeline.config.presets import some_presets
from anchorfl.pipeline.config.redaction import redact
from anchorfl.pipeline.execution import fresh_process, memory_probe
from anchorfl.pipeline.execution.executor import server_of
from anchorfl.pipeline.execution.memory_probe import ClientUse, ServerUse
from anchorfl.pipeline.run.assemble import from_words, names_table
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.pipeline.terminal import say
from anchorfl.pipeline.training.run_spec import RunSpec
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.plugins import version_of

USAGE = """usage: anchorfl probe PRESET [--section.option value ...] [--client N] [--cpu] [--out FILE]
       anchorfl probe --task.file FILE --task.label_columns COLUMNS ...     (a table of your own needs no preset)
  --client N   train this client; else the one with the most rows that can have a loss, times its longest row
  --cpu        leave GPUs out
  --out FILE   where the overrides go (probe.txt), for: anchorfl run PRESET $(cat probe.txt); all figures go beside
               it, as .json
all overrides: anchorfl probe PRESET --help"""

InFreshProcess = Callable[..., Any]
"""Runs a function in a fresh process: (function, *arguments) -> what it gave."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The client that is trained, and the size of its data."""

    client: int
    rows: int
    active: int
    """Rows that have a label before training."""
    longest: int
    """Length of its longest row; 1 where rows have no length."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The client that was trained, and what it and the server needed."""

    chosen: Chosen
    client: ClientUse
    server: ServerUse


def probe(arguments: list[str]) -> int:
    """Measure, print and write. Raise InputError where an argument is wrong, a measurement fails, or nothing fits."""
    if arguments[:1] in (["--help"], ["-h"]):
        say(USAGE)
        return 0
    preset, options, overrides = _split(arguments)
    if not preset and not names_table(overrides):
        raise InputError(
            f"probe needs a preset: {some_presets()}; or the path of a .toml file; or a table, --task.file"
        )
    name, experiment = from_words(preset, overrides, "anchorfl probe")
    check_idle(typed_options(overrides), [experiment])
    _check(options, experiment)
    with ExitStack() as stack:
        nodes, run_apart = _nodes(experiment, options.cpu, stack)
        whole_cpus(nodes)  # before the work starts
        run_spec = make_run_spec(experiment, say)
        chosen = largest(run_spec) if options.client is None else described(run_spec, options.client)
        measured = _measure(run_spec, chosen, nodes, run_apart)
    need = need_of(measured, experiment.selected_clients)
    say(f"\n{needs(measured, need, experiment)}")
    sizing = share_out(nodes, need, experiment.task.clients, experiment.cluster.server_gpus)
    say(limits(nodes, sizing))
    _write(options.out, name, experiment, measured, need, nodes, sizing)
    command = shlex.join(["anchorfl", "run", *([preset] if preset else []), *map(redact, overrides)])
    figures = options.out.with_suffix(".json")
    say(f"\n{overrides_of(sizing)}\n\n{command} $(cat {shlex.quote(str(options.out))})   # all figures: {figures}")
    return 0


def _check(options: argparse.Namespace, experiment: Experiment) -> None:
    if options.out.suffix == ".json" or options.out.is_dir() or not options.out.parent.is_dir():
        raise InputError(f"--out {options.out}: must be a file in a folder that exists, and not end in .json")
    if options.client is not None and not 0 <= options.client < experiment.task.clients:
        raise InputError(f"--client {options.client}: the clients are 0..{experiment.task.clients - 1}")


def _write(
    out: Path, name: str, experiment: Experiment, measured: Measured, need: Need, nodes: list[Node], sizing: Sizing
) -> None:
    """Write the overrides, and beside them all figures."""
    text, figures = overrides_of(sizing), out.with_suffix(".json")
    write_atomically(out, f"{text}\n".encode())
    content = {
        "preset": name, "config_digest": digest(experiment), **asdict(measured), "need": asdict(need),
        "places": [{"node": {"cpus": n.cpus, "devices": n.devices}, "memory": n.memory} for n in nodes],
        "margins": {"memory": MEMORY_MARGIN, "gpu": GPU_MARGIN},
        "shares": asdict(sizing), "overrides": text, "torch": version_of("torch"), "ray": version_of("ray"),
    }  # fmt: skip
    write_atomically(figures, json.dumps(content, indent=1).encode())


def _split(arguments: list[str]) -> tuple[str, argparse.Namespace, list[str]]:
    """Return preset ("": none is named), the command's own options, and the overrides."""
    preset = "" if not arguments or arguments[0].startswith("-") else arguments[0]
    parser = argparse.ArgumentParser(prog="anchorfl probe", add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--client", type=int, default=None)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("probe.txt"))
    try:
        options, overrides = parser.parse_known_args(arguments[1:] if preset else arguments)
    except argparse.ArgumentError as error:
        raise InputError(f"probe: {error}") from error
    return preset, options, overrides


def _nodes(experiment: Experiment, cpu: bool, stack: ExitStack) -> tuple[list[Node], InFreshProcess]:
    """Return the nodes that runs would use, and what runs something there in a fresh process."""
    if not experiment.cluster.uses_ray:
        devices = 0 if cpu else torch.cuda.device_count()
        node = Node(own_cpus(), (1.0,) * devices, float(memory_probe.free_memory()))
        return [node], fresh_process.in_fresh_process
    from anchorfl.pipeline.cluster import layout, ray_cluster

    stack.enter_context(ray_cluster.session(experiment.cluster))
    nodes = [Node(n.cpus, memory=n.memory) if cpu else n for n in layout.nodes()]
    gpus = float(has_gpu(nodes))

    def run_apart(function: Callable[..., Any], *arguments: Any) -> Any:
        share = gpus if function is memory_probe.measure_client else 0.0
        return layout.in_fresh_worker(function, *arguments, gpus=share)

    return nodes, run_apart


def has_gpu(nodes: list[Node]) -> bool:
    """Return whether a client actor can have a GPU: it needs a CPU on the same node."""
    return any(node.devices for node in usable(nodes))


def largest(run_spec: RunSpec) -> Chosen:
    """Return the client expected to need most.

    Its rows that can have a loss times its longest row is largest; among equals the one with most rows, then the first.
    """
    every = [described(run_spec, client) for client in range(run_spec.experiment.task.clients)]
    return max(every, key=lambda c: (c.active * c.longest, c.rows, -c.client))


def described(run_spec: RunSpec, client: int) -> Chosen:
    """Return the size of a client's data."""
    rows = run_spec.data().client(client, run_spec.objective())
    longest = 1 if rows.length_N is None or not len(rows) else int(rows.length_N.max())
    return Chosen(client, len(rows), int((rows.weight_NC != 0).any(-1).sum()), longest)


def _measure(run_spec: RunSpec, chosen: Chosen, nodes: list[Node], run_apart: InFreshProcess) -> Measured:
    """Train the client and aggregate its update, each in a fresh process."""
    on_gpu = has_gpu(nodes)
    device = "a GPU, as soon as one is free" if on_gpu else "the CPU"
    say(f"training client {chosen.client} alone for {memory_probe.ROUNDS} rounds on {device}")
    sender, experiment = server_of(run_spec), run_spec.experiment
    sender.state, last = experiment.method.peak_state(sender.state, experiment.federation.rounds)
    sent = messages.pack({"broadcast": sender.broadcast(last), "client_message": sender.client_message(chosen.client)})
    what = f"client {chosen.client}"
    try:
        client, update = run_apart(memory_probe.measure_client, run_spec, chosen.client, sent, last, on_gpu)
        what = "the server"
        server: ServerUse = run_apart(memory_probe.measure_server, run_spec, chosen.client, update)
    except RuntimeError as error:
        hint = " (--cpu leaves GPUs out)" if on_gpu else ""
        raise InputError(f"{what} could not be measured: {error}{hint}") from error
    return Measured(chosen, client, server)


def need_of(measured: Measured, per_round: int) -> Need:
    """Return what an actor and the server of a run need.

    The server holds the updates of a whole round, not of one client.
    """
    client, server = measured.client, measured.server
    return Need(client.peak, client.rows, server.peak + max(0, per_round - server.updates) * client.update, client.gpu)


def overrides_of(sizing: Sizing) -> str:
    """Return the arguments that put a run on the cluster with these shares."""
    return (
        f"--cluster.clients_per_actor {sizing.clients_per_actor} --cluster.client_cpus {number(sizing.client_cpus)}"
        f" --cluster.client_gpus {number(sizing.client_gpus)}"
    )


def needs(measured: Measured, need: Need, experiment: Experiment) -> str:
    """Return what was measured, for the eye."""
    chosen, client, server, gpu = measured.chosen, measured.client, measured.server, measured.client.gpu
    labeled = f"{chosen.rows} rows, {chosen.active} of them labeled, longest {chosen.longest}"
    further = f"{size(client.rows)} for each further client of an actor"
    merging = f"{size(need.server)} with the updates of {experiment.selected_clients} clients"
    federation = experiment.federation
    trained = f"{federation.steps} step(s)" if federation.steps else f"{federation.epochs} epoch(s)"
    lines = [
        ("client", f"{chosen.client} of {experiment.task.clients}: {labeled}"),
        ("client, memory", f"{size(client.baseline)} ready to train, {size(client.peak)} at most; {further}"),
        (
            "client, round",
            f"{client.seconds[-1]:.2f} s, the first {client.seconds[0]:.2f} s, for {trained}",
        ),
        ("server, memory", f"{size(server.baseline)} ready, {size(server.peak)} at most; {merging}"),
    ]
    if gpu:
        device = f"the GPU has {size(gpu.total)}, others use {size(gpu.taken)}"
        lines.append(("client, GPU", f"{size(gpu.reserved)} reserved, {size(gpu.context)} context; {device}"))
    return aligned(lines)


def limits(nodes: list[Node], sizing: Sizing) -> str:
    """Return what limits the number of actors, with the margins, and the result, for the eye."""
    nodes = usable(nodes)
    cpus, memory = sum(node.cpus for node in nodes), sum(node.memory for node in nodes)
    budget = f"{MEMORY_MARGIN:.0%} of {size(memory)} free, the server's share on each node left out"
    lines = [
        ("by CPUs", f"{sizing.by_cpus} actors: one to each of {number(cpus)} CPUs on {len(nodes)} node(s)"),
        ("by memory", f"{sizing.by_memory} actors in {budget}"),
    ]
    if sizing.by_gpus is not None:
        lines.append(
            ("by GPUs", f"{sizing.by_gpus} actors: {sizing.per_gpu} in {GPU_MARGIN:.0%} of the memory of each GPU")
        )
    shares = f"{number(sizing.client_cpus)} CPU and {number(sizing.client_gpus)} GPU"
    lines.append(("result", f"{sizing.actors} actors of {shares}, {sizing.clients_per_actor} client(s) each"))
    return aligned(lines)


def aligned(lines: list[tuple[str, str]]) -> str:
    """Return names and texts as two columns."""
    return "\n".join(f"{name:<16}{text}" for name, text in lines)
