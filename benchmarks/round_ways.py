"""The ways through a round of training that ``bench_rounds.py`` compares: this project's, and plain loops in torch.

All ways of a case train the same clients on the same rows, with the same mathematics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from anchorfl.pipeline.algorithm.class_embeddings import ROWS
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.execution.pooled_executor import in_process
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.run.prepare import make_setup, settled
from anchorfl.pipeline.training.client import ClientHost
from anchorfl.pipeline.training.run_spec import Setup, one_thread
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.contract import ClientData
from benchmarks import r8_by_hand

MARGIN = 0.9
"""Of the one-class loss in Bibtex's presets."""
OFF = {"skip_zero_rows": False, "microbatch_tokens": 0, "lookup_dropout": False}
Round = Callable[[int], None]
"""A round by its number, from 1 on."""


def quiet(line: str) -> None:
    """Nobody listens."""


def nobody(busy: int, done: int, failed: int) -> None:
    """Nobody watches."""


def experiment(preset: str, optimizer: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Experiment:
    """A preset, with changes; optimizers start anew in every round, in all ways alike."""
    sections = {"optimizer": {"state": "reset"} | (optimizer or {}), "tracking": {"uri": "none"}} | sections
    e = read_preset(preset)
    changed = {name: dataclasses.replace(getattr(e, name), **options) for name, options in sections.items()}
    return dataclasses.replace(e, **changed)


def r8(**optimizer: Any) -> Experiment:
    return experiment("r8-8/fedavg", optimizer, task={"max_tokens": 200}, federation={"epochs": 1})


def chosen(e: Experiment, rounds: int) -> list[list[int]]:
    """Clients of every round."""
    rng, count = np.random.default_rng(0), e.federation.clients_per_round or e.task.clients
    return [sorted(rng.choice(e.task.clients, count, replace=False).tolist()) for _ in range(rounds)]


def on_ray(e: Experiment, rounds: int) -> Round:
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="ray", clients_per_actor=4))
    ray_cluster.start(e.cluster)
    executor, clients = RayExecutor(make_setup(e, quiet)), chosen(e, rounds)
    return lambda round_: check(executor.round(round_, clients[round_ - 1], nobody))


def serial(e: Experiment, rounds: int) -> Round:
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="serial"))
    executor, clients = in_process(make_setup(e, quiet)), chosen(e, rounds)
    return lambda round_: check(executor.round(round_, clients[round_ - 1], nobody))


def check(outcome: Any) -> None:
    if outcome.failed:
        raise RuntimeError(f"clients failed: {outcome.failed}")


def plain_loop(e: Experiment, rounds: int) -> Round:
    """A loop in torch alone over the network and rows of a run, its clients one after the other."""
    one_thread()
    e = dataclasses.replace(e, optimizer=dataclasses.replace(e.optimizer, **OFF))
    setup = make_setup(dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="serial")), quiet)
    model, clients = setup.model(), chosen(setup.experiment, rounds)
    data = {client: setup.data().client(client, setup.objective()) for client in {c for row in clients for c in row}}
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def once(round_: int) -> None:
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
        for client in clients[round_ - 1]:
            model.load_state_dict(start)
            plain_client(setup, model, data[client])
            for name, value in model.state_dict().items():
                total[name] += value
        start.update({name: (t / len(clients[round_ - 1])).to(start[name].dtype) for name, t in total.items()})

    return once


def plain_client(setup: Setup, model: torch.nn.Module, data: ClientData) -> None:
    """Epochs of one client, as one writes them."""
    e, objective = setup.experiment, setup.objective()
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[e.optimizer.name]
    more = {"momentum": e.optimizer.momentum} if e.optimizer.name == "sgd" else {}
    optimizer = kind(model.parameters(), lr=e.optimizer.lr, weight_decay=e.optimizer.weight_decay, **more)
    model.train()
    for _ in range(e.federation.epochs):
        for index_B in torch.randperm(len(data)).split(e.optimizer.batch_size or len(data)):
            batch = data.rows(index_B)
            optimizer.zero_grad()
            objective.loss(model(batch.x), batch).backward()
            optimizer.step()


def one_class_loop(e: Experiment, rounds: int) -> Round:
    """The same for clients of one class, one step each: a network and a row that its rows are pulled to."""
    one_thread()
    setup = make_setup(e, quiet)
    model, cards = setup.model().train(), setup.data().cards()
    data = [setup.data().client(client, setup.objective()) for client in range(len(cards))]
    class_I = [int(card.identified_C.nonzero()) for card in cards]
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def once(round_: int) -> None:
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for rows, class_ in zip(data, class_I, strict=True):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), e.optimizer.lr)
            optimizer.zero_grad()
            z_BD = model.encoder(rows.rows(torch.arange(len(rows))).x)
            cosine_B = F.normalize(z_BD) @ model.get_parameter(ROWS)[class_]
            F.relu(MARGIN - cosine_B).square().mean().backward()
            optimizer.step()
            for name, value in model.state_dict().items():
                total[name] += value
        start.update({name: t / len(data) for name, t in total.items()})

    return once


def explicit(*, pooled: bool = False) -> Experiment:
    """Bibtex's 159 clients of one class each."""
    return settled(experiment("bibtex/fedavg", federation={"batched_clients": pooled}))


def pbc() -> Experiment:
    """One client's epoch on PBC's images of 28 x 28."""
    return experiment(
        "pbc-0.05/fedavg", OFF, task={"variant": "npz28", "image_size": 28}, model={"stem": "small"},
        federation={"epochs": 1, "clients_per_round": 1},
    )  # fmt: skip


WAYS: dict[str, dict[str, Callable[[int], Round]]] = {
    "r8-8": {
        "ours, Ray": lambda rounds: on_ray(r8(), rounds),
        "ours, Ray, bfloat16": lambda rounds: on_ray(r8(precision="bfloat16"), rounds),
    },
    "digits": {
        "plain": lambda rounds: plain_loop(experiment("digits/fedavg"), rounds),
        "ours": lambda rounds: serial(experiment("digits/fedavg"), rounds),
    },
    "pbc-28": {"plain": lambda rounds: plain_loop(pbc(), rounds), "ours": lambda rounds: serial(pbc(), rounds)},
    "bibtex": {
        "plain": lambda rounds: one_class_loop(explicit(), rounds),
        "ours": lambda rounds: serial(explicit(), rounds),
        "ours, pooled": lambda rounds: serial(explicit(pooled=True), rounds),
    },
}
ROUNDS = {"r8-8": 4, "digits": 6, "pbc-28": 3, "bibtex": 4}


def prepared_clients(folder: Path) -> Path:
    """R8-8's clients as a file of tensors, for ways that know nothing of this project."""
    e = r8()
    setup = make_setup(dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="serial")), quiet)
    clients = []
    for client in range(e.task.clients):
        data = setup.data().client(client, setup.objective())
        label_N = torch.where((data.weight_NC > 0).any(1), data.weight_NC.argmax(1), -1)
        clients.append({"x": data.x, "label": label_N, "length": data.length_N})
    spec = setup.data().manifest.spec
    content = {
        "clients": clients, "vocabulary": len(spec.vocabulary), "length": spec.shape[0],
        "classes": len(setup.data().manifest.class_names), "chosen": chosen(e, ROUNDS["r8-8"]),
    }  # fmt: skip
    torch.save(content, folder / "clients.pt")
    return folder / "clients.pt"


def compared() -> float:
    """The largest difference of a weight between ours and both ways by hand after a client's epoch without dropout."""
    one_thread()
    e = r8()
    e = dataclasses.replace(
        e, model=dataclasses.replace(e.model, dropout=0.0), cluster=dataclasses.replace(e.cluster, executor="serial")
    )
    setup = make_setup(e, quiet)
    sent, host = Server(setup).broadcast(1), ClientHost(setup)
    ours = host.fit(0, 1, sent, {}).update.weights
    data, order_N = setup.data().client(0, setup.objective()), epoch_order(e, len(host._client(0)[1]))
    label_N = torch.where((data.weight_NC > 0).any(1), data.weight_NC.argmax(1), -1)
    client = {"x": data.x, "label": label_N, "length": data.length_N}
    far = 0.0
    for kind, way in ((r8_by_hand.Plain, "plain"), (r8_by_hand.Fast, "fast")):
        spec = setup.data().manifest.spec
        model = kind(len(spec.vocabulary), spec.shape[0], len(setup.data().manifest.class_names), 0.0)
        model.load_state_dict({by_name(name): value for name, value in sent.weights.items()})
        r8_by_hand.train(model, client, order_N, way)
        after = model.state_dict()
        far = max(far, *(float((after[by_name(n)] - ours[n]).abs().max()) for n in ours))
    return far


def by_name(name: str) -> str:
    """Our name of a weight -> the name by hand."""
    for ours, theirs in (
        ("encoder.", ""), ("layer.qkv.", "layer.self_attn.in_proj_"), ("layer.out.", "layer.self_attn.out_proj."),
        ("layer.up.", "layer.linear1."), ("layer.down.", "layer.linear2."), ("norm_attention", "norm1"),
        ("norm_feedforward", "norm2"),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def epoch_order(e: Experiment, rows: int) -> torch.Tensor:
    """The order in which ours takes client 0's rows in round 1."""
    return torch.randperm(rows, generator=torch_rng(e.seed, "client", 0, "round", 1, "order"))
