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
from anchorfl.pipeline.training.side_by_side import Lanes
from tests.pipeline.training import test_plugin_networks
from tests.pipeline.training.test_stacked_training import STACKED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch sees no CUDA device"),
]
HERE = torch.device("cpu")


KEY_BIAS = "qkv.bias"
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


@pytest.mark.parametrize("method", STACKED)
def test_stacks_there_are_the_clients_one_by_one(experiment, method):
    """Up to rounding, which is summed in another order; and a seed gives one checksum."""
    alone = experiment(method, model={"dropout": 0.3}, federation={"epochs": 1}, optimizer={"microbatch_tokens": 0})
    stacked = dataclasses.replace(alone, federation=dataclasses.replace(alone.federation, stack=4))
    (one_by_one, _), (got, _), (again, _) = (rounds(SerialExecutor, e, 1.0) for e in (alone, stacked, stacked))
    assert messages.checksum(got) == messages.checksum(again)
    near(got, one_by_one)


def test_a_network_of_others_repeats_its_dropout_there(experiment):
    """It draws by the GPU's global generator, which is afterwards as it was before."""
    model = {"network": f"{test_plugin_networks.HERE}:Pixels", "dropout": 0.3}
    e = experiment("fedavg", "digits", model=model, federation={"epochs": 1}, optimizer=test_plugin_networks.WHOLE)
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid"))
    before = torch.cuda.get_rng_state()
    first, again = (rounds(SerialExecutor, e, 1.0)[0] for _ in range(2))
    assert messages.checksum(first) == messages.checksum(again)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize("method", METHODS)
def test_clients_side_by_side_there_give_the_bits_that_they_have_alone(experiment, method):
    """More clients than lanes, of unlike numbers of steps, recorded and plain ones; dropout on the GPU."""
    classes = METHODS[method]().head.kind == "cosine"
    e = experiment(method, "digits", model={"dropout": 0.5}, federation={"epochs": 3}, optimizer={"batch_size": 8})
    if not classes:
        e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid", clients=9))
    e = dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, client_gpus=1.0))
    checksums = set()
    for lanes in (1, 3, 8):
        executor = SerialExecutor(make_run_spec(e, lambda line: None))
        executor.runner.lanes = Lanes(lanes)
        for round_ in (1, 2):
            assert not executor.round(round_, range(e.task.clients), lambda *counts: None).failed
        memories = {str(client): executor.memory(client) for client in range(e.task.clients)}
        checksums.add((messages.checksum(executor.snapshot()), messages.checksum(memories)))
    assert len(checksums) == 1


def test_clients_short_of_memory_beside_others_train_alone_there(experiment, monkeypatch):
    """The bits are the same, and from then on fewer train at once."""
    e = experiment("fedavg", "digits", federation={"epochs": 3}, optimizer={"batch_size": 8})
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid", clients=6))
    alone, _ = rounds(SerialExecutor, e, 1.0)
    plain, refused = Replay._record, []

    def record(self, batches):
        if self.lane == 2 and not refused:
            refused.append(self)
            self.trainer.loss = lambda batch: torch.empty(1 << 50, device="cuda").sum()
        return plain(self, batches)

    monkeypatch.setattr(Replay, "_record", record)
    got, _ = rounds(SerialExecutor, e, 1.0)
    assert len(refused) == 1
    assert messages.checksum(got) == messages.checksum(alone)


def test_adapters_there_as_here(experiment):
    """Frozen weights lie on the GPU, in every lane's copy of the network, and do not travel."""
    model = {"network": f"{test_plugin_networks.HERE}:Pixels", "dropout": 0.0, "lora_rank": 2}
    e = experiment("fedavg", "digits", model=model, federation={"epochs": 1}, optimizer=test_plugin_networks.WHOLE)
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, partition="iid"))
    (here, _), (there, _), (again, _) = (rounds(SerialExecutor, e, gpus) for gpus in (0.0, 1.0, 1.0))
    near(there, here)
    assert messages.checksum(there) == messages.checksum(again)
    assert not [name for name in there if "conv" in name]
