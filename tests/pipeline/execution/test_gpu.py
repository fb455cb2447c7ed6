"""On a CUDA device: the same training up to float rounding, the state back on the CPU. ``pytest -m gpu`` runs them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.batched_executor import BatchedExecutor
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training import cuda_graphs
from anchorfl.pipeline.training.cuda_graphs import Replay

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch sees no CUDA device"),
]
HERE = torch.device("cpu")


KEY_BIAS = "layer.qkv.bias"
"""Its middle third, the keys' bias, shifts every logit of a softmax alike: its gradient is rounding alone, and Adam
makes steps of it."""


def near(there, here):
    """Fail where two states differ by more than rounding."""
    assert there.keys() == here.keys()
    for name, value in here.items():
        kept = torch.ones(value.shape, dtype=torch.bool)
        if name.endswith(KEY_BIAS):
            kept[len(value) // 3 : 2 * len(value) // 3] = False
        torch.testing.assert_close(
            there[name][kept], value[kept], rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def rounds(make, e, gpus):
    """Return the state after two rounds of at most four clients, and the test scores."""
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, client_gpus=gpus))
    executor = make(make_run_spec(e, lambda line: None))
    for round_ in (1, 2):
        executor.round(round_, range(min(4, e.task.clients)), lambda *counts: None)
    return executor.snapshot(), executor.scores(["test"])["test"].values


@pytest.mark.parametrize("method", METHODS)
def test_clients_train_there_as_here(experiment, method):
    """Without dropout, whose masks another device draws otherwise."""
    e = experiment(method, model={"dropout": 0.0}, federation={"epochs": 1})
    (here, scores), (there, other) = rounds(SerialExecutor, e, 0.0), rounds(SerialExecutor, e, 1.0)
    assert all(t.device == HERE for _, t in messages.tensors(there))
    near(there, here)
    assert other.keys() == scores.keys()


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_one_checksum_there(experiment, method):
    first, again = (rounds(SerialExecutor, experiment(method), 1.0) for _ in range(2))
    assert messages.checksum(first[0]) == messages.checksum(again[0])
    assert {name: float(v) for name, v in first[1].items()} == {name: float(v) for name, v in again[1].items()}


def test_pooled_rounds_there_as_here(experiment):
    e = experiment(
        "fedalc", task="toy-multi", model={"dropout": 0.0}, federation={"batched_clients": True, "epochs": 1},
        optimizer={"name": "sgd", "batch_size": 0},
    )  # fmt: skip
    (here, _), (there, _) = rounds(BatchedExecutor, e, 0.0), rounds(BatchedExecutor, e, 1.0)
    near(there, here)


@pytest.mark.parametrize("method", METHODS)
def test_recorded_steps_give_the_bits_of_plain_ones(experiment, method, monkeypatch):
    """Batches of one shape, and smaller last ones; dropout draws from the generator that the recording takes along."""
    classes = METHODS[method]().head.kind == "cosine"
    e = experiment(method, "digits", model={"dropout": 0.5}, federation={"epochs": 3}, optimizer={"batch_size": 8})
    if not classes:
        e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid", clients=20))
    recorded = []
    plain = Replay._record
    monkeypatch.setattr(Replay, "_record", lambda self, batches: recorded.append(1) or plain(self, batches))
    got = rounds(SerialExecutor, e, 1.0)
    assert recorded
    monkeypatch.setattr(cuda_graphs, "PLAIN_STEPS", 10**9)
    expected = rounds(SerialExecutor, e, 1.0)
    assert messages.checksum(got[0]) == messages.checksum(expected[0])
    assert {n: float(v) for n, v in got[1].items()} == {n: float(v) for n, v in expected[1].items()}


def test_fedbms_generator_there_as_here(experiment):
    """It is trained on the server's device, and its images join on the clients'; here draws differ between devices, so
    what is held equal is the classifier up to the first training, and that the rest stays finite and on the CPU.
    """
    options = {
        "cgde": True,
        "lambda_dis": 0.0,
        "generator_every": 1,
        "generator_steps": 2,
        "generator_batch": 4,
        "synthetic_per_batch": 4,
    }
    e = experiment("fedbm", "digits", options=options, model={"dropout": 0.0}, federation={"epochs": 1})
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid"))
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, client_gpus=1.0))
    executor = SerialExecutor(make_run_spec(e, lambda line: None))
    first = executor.snapshot()
    for round_ in (1, 2):
        executor.round(round_, range(e.task.clients), lambda *counts: None)
    there = executor.snapshot()
    moved = [name for name in there if "generator" in name and not torch.equal(there[name], first[name])]
    assert moved
    assert all(t.device == HERE and bool(t.isfinite().all()) for _, t in messages.tensors(there))
