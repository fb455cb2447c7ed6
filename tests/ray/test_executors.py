"""The Ray executor gives the bits of the serial one, for any number of actors."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

import pytest
from ray import cloudpickle

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.ray_executor import RayExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import InputError
from tests.made_concepts import with_label_encoder
from tests.runs import nobody, on_ray, quiet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_actors")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test module


GENERATOR = {"cgde": True, "generator_every": 1, "generator_steps": 2, "generator_batch": 6, "synthetic_per_batch": 3}


@pytest.mark.parametrize(
    "method",
    [
        "fedalign", "fedrep",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("fedavg", "feddyn", "fedrod", "moon", "scaffold")),
    ],
)  # fmt: skip
def test_serial_and_ray_give_one_checksum(experiment, tmp_path, method):
    """One actor per client, all clients in one actor, two clients per actor: the serial run's bits. MOON and FedROD
    remember more than FedAvg, SCAFFOLD also sends more, FedDyn sends another model than the one that is scored, FedRep
    a part of it; the other methods differ from it inside a client alone, and every method has two rounds below.
    """
    e = experiment(method)
    expected = run(e, tmp_path / "serial", quiet)
    for per_actor in (1, 4) if method == "fedalign" else (2,):
        got = run(on_ray(e, clients_per_actor=per_actor), tmp_path / f"ray{per_actor}", quiet)
        assert got.checksum == expected.checksum, f"{per_actor} clients per actor"
        assert got.scores == expected.scores


@pytest.mark.slow
def test_serial_and_ray_give_one_checksum_in_bfloat16(experiment, tmp_path):
    e = experiment("fedavg")
    plain = run(e, tmp_path / "plain", quiet)
    low = dataclasses.replace(e, optimizer=dataclasses.replace(e.optimizer, precision="bfloat16"))
    expected = run(low, tmp_path / "serial", quiet)
    assert run(on_ray(low, clients_per_actor=2), tmp_path / "ray", quiet).checksum == expected.checksum
    assert expected.checksum != plain.checksum


@pytest.mark.parametrize(
    ("method", "task", "partition", "options", "norm"),
    [
        pytest.param("fedalc", "toy-multi", "one_class", {}, "", marks=pytest.mark.slow),
        ("fedalc-fixed", "toy-multi", "one_class", {}, ""),
        ("fedbm", "digits", "iid", GENERATOR | {"lambda_dis": 0.1}, "batch"),
        pytest.param(
            "anchor", "digits", "iid", {"generator_every": 1, "synthetic_per_batch": 3}, "batch", marks=pytest.mark.slow
        ),
        pytest.param("fedbm", "digits", "iid", GENERATOR | {"lambda_dis": 0.0}, "", marks=pytest.mark.slow),
    ],
)
def test_one_checksum_with_initial_messages(experiment, tmp_path, method, task, partition, options, norm):
    """Clients send a message before round 1 and get their row in every round, or once (FedALC), or the frozen
    classifier once and the generator whenever it was trained (FedBM, also against BatchNorm's statistics of the mean;
    Anchor); bytes are counted alike.
    """
    whole = {"skip_zero_rows": False, "microbatch_tokens": 0} if norm else {}  # BatchNorm needs a mini-batch at once
    e = experiment(
        method, task, options=options, federation={"rounds": 3, "clients_per_round": 3, "epochs": 2},
        optimizer={"name": "sgd", "lr": 0.1, "batch_size": 8 if task == "toy-multi" else 128, **whole},
        model={"network": "resnet8", "norm": norm} if norm else {},
    )  # fmt: skip
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, clients=5, partition=partition))
    expected = run(e, tmp_path / "serial", quiet)
    got = run(on_ray(e, clients_per_actor=3), tmp_path / "ray", quiet)
    assert (got.checksum, got.scores) == (expected.checksum, expected.scores)
    wire = [
        [
            (r.metrics["communication/download_bytes"], r.metrics["communication/upload_bytes"])
            for r in read_records(tmp_path / where)[0]
        ]
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
        optimizer={"name": "sgd", "skip_zero_rows": False, "microbatch_tokens": 0, "crop": 1, "flip": "both"},
        model={"network": "resnet8", "norm": "batch"},
    )  # fmt: skip
    e = dataclasses.replace(e, task=dataclasses.replace(e.task, clients=4, classes_per_client=5))
    expected = run(e, tmp_path / "serial", quiet)
    assert run(on_ray(e, clients_per_actor=2), tmp_path / "ray", quiet).checksum == expected.checksum


def rounds(executor, count: int):
    outcomes = [executor.round(r, [0, 1, 2, 3], nobody) for r in range(1, count + 1)]
    checksum = messages.checksum(executor.snapshot())
    executor.close()
    return outcomes, checksum


def test_every_method_gives_the_bits_of_a_serial_run(experiment):
    """Two rounds each, one after the other on the same two actors; FedAlign also with a language model's adapters."""
    experiments = {name: experiment(name, f"toy-{kind.supports.kinds[0]}") for name, kind in METHODS.items()}
    experiments["fedalign with a language model"] = with_label_encoder(experiments["fedalign"])
    actor_pools = set()
    for name, e in experiments.items():
        run_spec = make_run_spec(e, quiet)
        assert run_spec.experiment.task.clients == 4
        expected = rounds(SerialExecutor(run_spec), 2)[1]
        there = dataclasses.replace(run_spec, experiment=on_ray(run_spec.experiment, clients_per_actor=2))
        executor = RayExecutor(there)
        actor_pools.add(executor.actor_pool)
        assert rounds(executor, 2)[1] == expected, name
    assert len(actor_pools) == 1


class Meddler(AveragingTrainer):
    """Overwrites everything that it was given."""

    def update(self):
        sent = super().update()
        for tensor in self.ctx.state.weights.values():
            tensor.fill_(7.0)
        return sent


@dataclass(frozen=True, kw_only=True)
class Meddling(Averaging):
    name = "fedavg"

    def trainer(self, ctx):
        return Meddler(ctx)


@dataclass(frozen=True, kw_only=True)
class Whole(Averaging):
    """Its server sees all updates at once."""

    name = "fedavg"

    def aggregate(self, state, reports, ctx):
        return super().aggregate(state, reports, ctx)


@dataclass(frozen=True, kw_only=True)
class Overwriting(Whole):
    """Its merge spoils what it was given."""

    def aggregate(self, state, reports, ctx):
        merged = super().aggregate(state, reports, ctx)
        for report in reports:
            for tensor in report.update.weights.values():
                tensor.fill_(7.0)
        return merged


def test_a_merge_that_overwrites_the_updates_harms_nobody(experiment):
    """The server reads them where they lie in the object store."""
    e = on_ray(experiment("fedavg"), clients_per_actor=2)
    run_specs = [make_run_spec(dataclasses.replace(e, method=kind()), quiet) for kind in (Whole, Overwriting)]
    expected = rounds(SerialExecutor(run_specs[0]), 3)[1]
    assert rounds(RayExecutor(run_specs[1]), 3)[1] == expected


def test_a_client_that_overwrites_its_broadcast_harms_nobody(experiment):
    """An array from the object store is shared and, as a torch tensor, writable: clients must get copies."""
    e = on_ray(experiment("fedavg"), clients_per_actor=2)
    honest = make_run_spec(experiment("fedavg"), quiet)
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
    run_spec = dataclasses.replace(
        make_run_spec(experiment("fedavg"), quiet), experiment=on_ray(experiment("fedavg"), **options)
    )
    with pytest.raises(InputError, match=message):
        RayExecutor(run_spec)
