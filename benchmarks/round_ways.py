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

from anchorfl.pipeline.algorithm.class_embeddings import CLASS_ROWS
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.cluster import ray_cluster
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.execution.factory import executor_for
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.run.prepare import make_run_spec, resolve_options
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.contract import ClientData
from benchmarks import r8_by_hand

MARGIN = 0.9
"""Of the one-class loss in Bibtex's presets."""
OFF = {"skip_zero_rows": False, "microbatch_tokens": 0, "lookup_dropout": False}
Round = Callable[[int], None]
"""A round by its number, from 1 on."""


def quiet(line: str) -> None:
    """Ignore a line of progress."""


def nobody(busy: int, done: int, failed: int) -> None:
    """Ignore the progress of a round."""


def experiment(preset: str, optimizer: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Experiment:
    """Return a preset, with changes; optimizers start anew in every round, in all ways alike."""
    sections = {"optimizer": {"state": "reset"} | (optimizer or {}), "tracking": {"uri": "none"}} | sections
    experiment = read_preset(preset)
    changed = {name: dataclasses.replace(getattr(experiment, name), **options) for name, options in sections.items()}
    return dataclasses.replace(experiment, **changed)


def r8(**optimizer: Any) -> Experiment:
    return experiment("r8-8/fedavg", optimizer, task={"max_tokens": 200}, federation={"epochs": 1})


def chosen(experiment: Experiment, rounds: int) -> list[list[int]]:
    """Return the clients of every round."""
    rng, count = np.random.default_rng(0), experiment.federation.clients_per_round or experiment.task.clients
    return [sorted(rng.choice(experiment.task.clients, count, replace=False).tolist()) for _ in range(rounds)]


def on_ray(experiment: Experiment, rounds: int) -> Round:
    experiment = dataclasses.replace(
        experiment, cluster=dataclasses.replace(experiment.cluster, executor="ray", clients_per_actor=4)
    )
    ray_cluster.start(experiment.cluster)
    executor, clients = RayExecutor(make_run_spec(experiment, quiet)), chosen(experiment, rounds)
    return lambda round_: check(executor.round(round_, clients[round_ - 1], nobody))


def serial(experiment: Experiment, rounds: int) -> Round:
    experiment = dataclasses.replace(experiment, cluster=dataclasses.replace(experiment.cluster, executor="serial"))
    executor, clients = executor_for(make_run_spec(experiment, quiet)), chosen(experiment, rounds)
    return lambda round_: check(executor.round(round_, clients[round_ - 1], nobody))


def check(outcome: Any) -> None:
    if outcome.failed:
        raise RuntimeError(f"clients failed: {outcome.failed}")


def plain_loop(experiment: Experiment, rounds: int) -> Round:
    """Return a loop in torch alone over the network and rows of a run, its clients one after the other."""
    one_thread()
    experiment = dataclasses.replace(experiment, optimizer=dataclasses.replace(experiment.optimizer, **OFF))
    run_spec = make_run_spec(
        dataclasses.replace(experiment, cluster=dataclasses.replace(experiment.cluster, executor="serial")), quiet
    )
    model, clients = run_spec.model(), chosen(run_spec.experiment, rounds)
    data = {
        client: run_spec.data().client(client, run_spec.objective()) for client in {c for row in clients for c in row}
    }
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def once(round_: int) -> None:
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
        for client in clients[round_ - 1]:
            model.load_state_dict(start)
            plain_client(run_spec, model, data[client])
            for name, value in model.state_dict().items():
                total[name] += value
        start.update({name: (t / len(clients[round_ - 1])).to(start[name].dtype) for name, t in total.items()})

    return once


def plain_client(run_spec: RunSpec, model: torch.nn.Module, data: ClientData) -> None:
    """Train the epochs of one client, as one writes them."""
    experiment, objective = run_spec.experiment, run_spec.objective()
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[experiment.optimizer.name]
    more = {"momentum": experiment.optimizer.momentum} if experiment.optimizer.name == "sgd" else {}
    optimizer = kind(
        model.parameters(), lr=experiment.optimizer.lr, weight_decay=experiment.optimizer.weight_decay, **more
    )
    model.train()
    for _ in range(experiment.federation.epochs):
        for index_B in torch.randperm(len(data)).split(experiment.optimizer.batch_size or len(data)):
            batch = data.rows(index_B)
            optimizer.zero_grad()
            objective.loss(model(batch.x), batch).backward()
            optimizer.step()


def one_class_loop(experiment: Experiment, rounds: int) -> Round:
    """Return the same for clients of one class, one step each: a network and a row that its rows are pulled to."""
    one_thread()
    run_spec = make_run_spec(experiment, quiet)
    model, cards = run_spec.model().train(), run_spec.data().cards()
    data = [run_spec.data().client(client, run_spec.objective()) for client in range(len(cards))]
    class_I = [int(card.identified_C.nonzero()) for card in cards]
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def once(round_: int) -> None:
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for rows, class_ in zip(data, class_I, strict=True):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), experiment.optimizer.lr)
            optimizer.zero_grad()
            z_BD = model.encoder(rows.rows(torch.arange(len(rows))).x)
            cosine_B = F.normalize(z_BD) @ model.get_parameter(CLASS_ROWS)[class_]
            F.relu(MARGIN - cosine_B).square().mean().backward()
            optimizer.step()
            for name, value in model.state_dict().items():
                total[name] += value
        start.update({name: t / len(data) for name, t in total.items()})

    return once


def explicit(*, batched: bool = False) -> Experiment:
    """Return the experiment of Bibtex's 159 clients of one class each."""
    return resolve_options(experiment("bibtex/fedavg", federation={"batched_clients": batched}))


def pbc() -> Experiment:
    """Return the experiment of one client's epoch on PBC's images of 28 x 28."""
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
        "ours, batched": lambda rounds: serial(explicit(batched=True), rounds),
    },
}
ROUNDS = {"r8-8": 4, "digits": 6, "pbc-28": 3, "bibtex": 4}


def prepared_clients(folder: Path) -> Path:
    """R8-8's clients as a file of tensors, for ways that know nothing of this project."""
    e = r8()
    run_spec = make_run_spec(dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="serial")), quiet)
    clients = []
    for client in range(e.task.clients):
        data = run_spec.data().client(client, run_spec.objective())
        label_N = torch.where((data.weight_NC > 0).any(1), data.weight_NC.argmax(1), -1)
        clients.append({"x": data.x, "label": label_N, "length": data.length_N})
    spec = run_spec.data().manifest.spec
    content = {
        "clients": clients, "vocabulary": len(spec.vocabulary), "length": spec.shape[0],
        "classes": len(run_spec.data().manifest.class_names), "chosen": chosen(e, ROUNDS["r8-8"]),
    }  # fmt: skip
    torch.save(content, folder / "clients.pt")
    return folder / "clients.pt"


def compared() -> float:
    """Return the largest difference of a weight between ours and both ways by hand, after an epoch without dropout."""
    one_thread()
    e = r8()
    e = dataclasses.replace(
        e, model=dataclasses.replace(e.model, dropout=0.0), cluster=dataclasses.replace(e.cluster, executor="serial")
    )
    run_spec = make_run_spec(e, quiet)
    sent, runner = Server(run_spec).broadcast(1), ClientRunner(run_spec)
    ours = runner.fit(0, 1, sent, {}).update.weights
    data, order_N = run_spec.data().client(0, run_spec.objective()), epoch_order(e, len(runner._client(0)[1]))
    label_N = torch.where((data.weight_NC > 0).any(1), data.weight_NC.argmax(1), -1)
    client = {"x": data.x, "label": label_N, "length": data.length_N}
    far = 0.0
    for kind, way in ((r8_by_hand.Plain, "plain"), (r8_by_hand.Fast, "fast")):
        spec = run_spec.data().manifest.spec
        model = kind(len(spec.vocabulary), spec.shape[0], len(run_spec.data().manifest.class_names), 0.0)
        model.load_state_dict({by_name(name): value for name, value in sent.weights.items()})
        r8_by_hand.train(model, client, order_N, way)
        after = model.state_dict()
        far = max(far, *(float((after[by_name(n)] - ours[n]).abs().max()) for n in ours))
    return far


def by_name(name: str) -> str:
    """Return the name by hand of a weight of ours."""
    for ours, theirs in (
        ("encoder.", ""), ("layer.qkv.", "layer.self_attn.in_proj_"), ("layer.out.", "layer.self_attn.out_proj."),
        ("layer.up.", "layer.linear1."), ("layer.down.", "layer.linear2."), ("norm_attention", "norm1"),
        ("norm_feedforward", "norm2"),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def epoch_order(experiment: Experiment, rows: int) -> torch.Tensor:
    """Return the order in which ours takes client 0's rows in round 1."""
    return torch.randperm(rows, generator=torch_rng(experiment.seed, "client", 0, "round", 1, "order"))
