"""The Ray executor gives the bits of the serial one, for any number of actors, and survives its clients."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from ray import cloudpickle

from pipeline import tree
from pipeline.actors import RayExecutor
from pipeline.contract import Averaging, AveragingLocal, ClientSide, Global
from pipeline.executor import QuorumError, SerialExecutor
from pipeline.journal import read_records
from pipeline.run import make_setup, run
from pipeline.setup import Setup
from tasks.contract import InputError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_running")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test module


def quiet(line: str) -> None:
    """Nobody listens."""


def nobody(busy: int, done: int, failed: int) -> None:
    """Nobody watches."""


def on_ray(e, **cluster):  # two actors are enough for most tests, and start in half the time
    return dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="ray", **cluster))


@pytest.mark.parametrize("method", ["fedavg", "fedalign", "feddyn", "fedrep", "fedrod", "moon", "scaffold"])
def test_serial_and_ray_give_one_checksum(experiment, tmp_path, method):
    """One actor per client, two clients per actor, all clients in one actor: the serial run's bits. MOON and FedROD
    remember more than FedAvg, SCAFFOLD also sends more, FedDyn sends another model than the one that is scored, FedRep
    a part of it; the other methods differ from it inside a client alone.
    """
    e = experiment(method)
    expected = run(e, tmp_path / "serial", quiet)
    for per_actor in (1, 2, 4) if method == "fedalign" else (2,):
        got = run(on_ray(e, clients_per_actor=per_actor), tmp_path / f"ray{per_actor}", quiet)
        assert got.checksum == expected.checksum, f"{per_actor} clients per actor"
        assert got.scores == expected.scores


@pytest.mark.parametrize("method", ["fedalc", "fedalc-fixed"])
def test_serial_and_ray_give_one_checksum_with_letters(experiment, tmp_path, method):
    """Clients tell something before round 1 and get their row in every round, or once; bytes are counted alike."""
    e = experiment(
        method, "toy-multi", federation={"rounds": 3, "clients_per_round": 3, "epochs": 2},
        optimizer={"name": "sgd", "lr": 0.1, "batch_size": 8},
    )  # fmt: skip
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, clients=5, partition="one_class"))
    expected = run(e, tmp_path / "serial", quiet)
    got = run(on_ray(e, clients_per_actor=3), tmp_path / "ray", quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    wire = [
        [(r.metrics["wire/down/bytes"], r.metrics["wire/up/bytes"]) for r in read_records(tmp_path / where)[0]]
        for where in ("serial", "ray")
    ]
    assert wire[0] == wire[1]
    assert wire[0][1][0] > 0


def test_serial_and_ray_give_one_checksum_with_batch_norm(experiment, tmp_path):
    """Its statistics are floats to be averaged and counters that are whole numbers; both travel with the weights.
    Images are cropped and flipped by the same draws.
    """
    e = experiment(
        "fedavg", "digits", federation={"rounds": 2, "clients_per_round": 2, "epochs": 1},
        optimizer={"name": "sgd", "skip_zero_rows": False, "micro_tokens": 0, "crop": 1, "flip": "both"},
        model={"network": "resnet18", "norm": "batch"},
    )  # fmt: skip
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, clients=4, classes_per_client=5))
    expected = run(e, tmp_path / "serial", quiet)
    assert run(on_ray(e, clients_per_actor=2), tmp_path / "ray", quiet).checksum == expected.checksum


@dataclass(frozen=True, kw_only=True)
class Faulty(Averaging):
    """FedAvg whose client ``client`` fails in round 2, ``times`` times; each failure leaves a file in ``folder``."""

    name = "fedavg"
    client: int
    kind: str
    times: int
    folder: str

    def local(self, side: ClientSide[Global]) -> FaultyLocal:
        return FaultyLocal(side, self)


class FaultyLocal(AveragingLocal):
    def __init__(self, side, method):
        super().__init__(side)
        self.method = method

    def update(self):
        m = self.method
        sent = super().update()
        failed = len(list(Path(m.folder).iterdir()))
        if self.side.card.client != m.client or failed >= m.times:
            return sent
        (Path(m.folder) / str(failed)).touch()
        if m.kind == "exit":
            os._exit(1)
        if m.kind == "raise":
            raise RuntimeError("the disk of client is full")
        bad = {k: torch.full_like(v, float("nan")) for k, v in sent.weights.items()}
        return dataclasses.replace(sent, weights=bad if m.kind == "nan" else {})


def rounds(executor, count: int):
    outcomes = [executor.round(r, [0, 1, 2, 3], nobody) for r in range(1, count + 1)]
    checksum = tree.checksum(executor.snapshot())
    executor.close()
    return outcomes, checksum


def faulty_setup(experiment, tmp_path, **fault) -> Setup:
    e = on_ray(experiment("fedavg"), clients_per_actor=2)
    folder = tmp_path / "failures"
    folder.mkdir()
    setup = make_setup(dataclasses.replace(e, cluster=dataclasses.replace(e.cluster, executor="serial")), quiet)
    return dataclasses.replace(setup, experiment=dataclasses.replace(e, method=Faulty(folder=str(folder), **fault)))


@pytest.mark.parametrize("kind", ["exit", "raise", "nan"])
def test_a_fault_that_a_retry_mends_changes_nothing(experiment, tmp_path, kind):
    """A client that dies, raises or sends NaN once is tried again on a fresh actor: same bits as without the fault."""
    setup = faulty_setup(experiment, tmp_path, client=2, kind=kind, times=1)
    plain = dataclasses.replace(setup, experiment=experiment("fedavg"))
    _, expected = rounds(SerialExecutor(plain), 2)
    outcomes, got = rounds(RayExecutor(setup), 2)
    assert got == expected
    assert [o.answered for o in outcomes] == [(0, 1, 2, 3)] * 2
    assert [f.client for o in outcomes for f in o.retried] == [2]


@pytest.mark.parametrize("kind", ["exit", "nan", "empty"])
def test_a_client_that_keeps_failing_is_left_out_and_named(experiment, tmp_path, kind):
    """Twice in one round: left out of that round, back in the next, and the global model stays finite."""
    setup = faulty_setup(experiment, tmp_path, client=1, kind=kind, times=2)
    executor = RayExecutor(setup)
    first = executor.round(1, [0, 1, 2, 3], nobody)
    second = executor.round(2, [0, 1, 2, 3], nobody)
    state = executor.snapshot()
    executor.close()
    assert first.answered == (0, 2, 3)
    assert [f.client for f in first.failed] == [1]
    assert first.failed[0].reason
    assert second.answered == (0, 1, 2, 3)
    assert all(bool(torch.isfinite(t).all()) for t in state.values())


def test_below_the_quorum_the_state_stays(experiment, tmp_path):
    setup = faulty_setup(experiment, tmp_path, client=1, kind="raise", times=2)
    executor = RayExecutor(setup)
    before = tree.checksum(executor.snapshot())
    with pytest.raises(QuorumError, match=r"0 of 1 selected clients answered.*client 1: RuntimeError: the disk"):
        executor.round(1, [1], nobody)
    assert tree.checksum(executor.snapshot()) == before
    executor.close()


class Meddler(AveragingLocal):
    """Overwrites everything that it was given."""

    def update(self):
        sent = super().update()
        for tensor in self.side.state.weights.values():
            tensor.fill_(7.0)
        return sent


@dataclass(frozen=True, kw_only=True)
class Meddling(Averaging):
    name = "fedavg"

    def local(self, side):
        return Meddler(side)


def test_a_client_that_overwrites_its_broadcast_harms_nobody(experiment):
    """An array from the object store is shared and, as a torch tensor, writable: clients must get copies."""
    e = on_ray(experiment("fedavg"), clients_per_actor=2)
    honest = make_setup(experiment("fedavg"), quiet)
    _, expected = rounds(SerialExecutor(honest), 2)
    _, got = rounds(RayExecutor(dataclasses.replace(honest, experiment=dataclasses.replace(e, method=Meddling()))), 2)
    assert got == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_gpus": 0.5}, r"4 client actors of 0.5 GPU .* need 2 GPUs, the cluster has 0"),
        ({"client_cpus": 64.0}, r"4 client actors of 64 CPU do not fit a cluster of \d+ CPUs"),
    ],
)
def test_shares_that_do_not_fit_are_refused_at_once(experiment, options, message):
    """Ray would wait for ever."""
    setup = dataclasses.replace(
        make_setup(experiment("fedavg"), quiet), experiment=on_ray(experiment("fedavg"), **options)
    )
    with pytest.raises(InputError, match=message):
        RayExecutor(setup)
