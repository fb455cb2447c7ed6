"""Runs with noise on the mean of clients: the same bits in every way to run them, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import clip_step
from anchorfl.pipeline.algorithm.client_privacy import ClientPrivacy
from anchorfl.pipeline.algorithm.contract import weights_of
from anchorfl.pipeline.algorithm.seeds import noise_rng
from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.methods.anchor import Anchor
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.run import prepare
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.tasks.errors import InputError
from tests.conftest import SMALL
from tests.runs import nobody, quiet

PRIVATE = {"clip_norm": 0.1, "dp_noise": 0.5, "rounds": 3, "clients_per_round": 3}
COVERED = {"fedavg", "fedetf", "fedgela", "fedprox", "fedpu", "fedrod", "fedrs", "moon"}


@pytest.fixture
def private(experiment):
    def make(method="fedavg", weighting="uniform", **federation):
        uniform = {"weighting": weighting} if hasattr(METHODS[method](**SMALL.get(method, {})), "weighting") else {}
        e = experiment(method, options=uniform)
        return replace(e, federation=replace(e.federation, **(PRIVATE | federation)))

    return make


@pytest.mark.parametrize("clients", [[0, 2, 3], [0, 2]], ids=["all answer", "fewer answer"])
def test_a_round_is_the_cut_mean_and_its_noise(private, clients):
    """From the same round without noise: sent + (cut step + noise), bit for bit. The mean is over the three clients
    that a round expects, whoever answers.
    """
    e = private()
    plain = replace(e, federation=replace(e.federation, dp_noise=0.0))
    noisy, quietly = (SerialExecutor(make_run_spec(each, quiet)) for each in (e, plain))
    sent = {name: value.clone() for name, value in weights_of(noisy.server.model).items()}
    for executor in (noisy, quietly):
        executor.round(1, clients, nobody)
    rule = ClientPrivacy(noise=0.5, clip=0.1, delta=1e-5, population=4, clients=3, poisson=False)
    mean = quietly.server.state.weights
    assert not clip_step(mean, sent, 0.1 + 1e-6)[1], "a mean of cut steps is no longer than they"
    rng = noise_rng(e.seed, "client privacy", "round", 1, len(clients), messages.checksum(mean))
    expected = rule.private_mean(mean, sent, len(clients), rng)
    for name, value in noisy.server.state.weights.items():
        assert torch.equal(value, expected[name])
        assert not torch.equal(value, mean[name])


@pytest.mark.parametrize("selection", ["fixed", "poisson"])
def test_every_way_to_run_it_gives_the_same_bits(private, tmp_path, selection, monkeypatch):
    monkeypatch.setattr(ClientPrivacy, "epsilon", lambda self, rounds: float(rounds))  # four clients hide nobody
    e = private(selection=selection)
    result = run(e, tmp_path / "serial", quiet)
    forked = run(replace(e, cluster=replace(e.cluster, executor="forked")), tmp_path / "forked", quiet)
    assert forked.checksum == result.checksum
    records = read_records(tmp_path / "serial")[0]
    assert [r.metrics.get("privacy/epsilon") for r in records] == [None, None, None, 3.0]
    assert records[1].metrics["aggregation/clipped"] > 0


def test_the_log_says_what_is_guaranteed(private, tmp_path):
    said = []
    run(private(clients_per_round=4), tmp_path / "run", said.append)
    (line,) = [line for line in said if line.startswith("DP of clients")]
    assert "after 3 rounds, for one client with any other data (noise 0.5 x clip 0.1, 4 of 4 clients" in line


def test_methods_whose_clients_send_more_are_refused(private):
    assert {n for n, kind in METHODS.items() if kind(**SMALL.get(n, {})).sends_weights_alone} == COVERED
    for name in ("anchor", "fedalign", "scaffold", "fedproto"):
        with pytest.raises(InputError, match=rf"send weights alone, .* \(fedavg, .*\), and not for '{name}'"):
            make_run_spec(private(name), quiet)


@dataclass(frozen=True, kw_only=True)
class ByRows(FedAvg):
    """A plug-in whose server has weights of its own."""

    name = "by-rows"

    def client_weights(self, rows_I):
        return rows_I.double() ** 2


@dataclass(frozen=True, kw_only=True)
class Telling(FedAvg):
    """A plug-in whose server sends every client what the others' cards say."""

    name = "telling"

    def client_message(self, state, card):
        return {"rows": torch.tensor(card.num_examples)}


@dataclass(frozen=True, kw_only=True)
class OwnAnchor(Anchor):
    """A plug-in derived from Anchor whose server has weights of its own."""

    name = "own-anchor"
    control_variates: bool = False
    shares: bool = False

    def client_weight(self, card):
        return float(card.num_examples)


@pytest.mark.parametrize("kind", [ByRows, Telling, OwnAnchor])
def test_a_plug_in_with_weights_or_messages_of_its_own_is_refused(private, kind):
    """One client would move the mean by more than the noise covers, or get to know the others."""
    e = replace(private(), method=kind(weighting="uniform"))
    with pytest.raises(InputError, match=f"and not for '{kind.name}'"):
        make_run_spec(e, quiet)
    make_run_spec(replace(e, federation=replace(e.federation, dp_noise=0.0)), quiet)


def test_anchor_without_control_variates_and_shares_is_covered(private, experiment, tmp_path):
    """One client's labels decide the share that is missing, with which all train."""
    options = {"weighting": "uniform", "control_variates": False}
    with pytest.raises(InputError, match="and not for 'anchor'"):
        make_run_spec(replace(private(), method=experiment("anchor", options=options).method), quiet)
    options["shares"] = False
    e = replace(private(), method=experiment("anchor", options=options).method)
    assert run(e, tmp_path / "run", quiet).checksum
    assert read_records(tmp_path / "run")[0][1].metrics["aggregation/clipped"] > 0


def test_what_would_not_be_covered_is_refused(private):
    with pytest.raises(InputError, match=r"one with many rows counts more than others; set method.weighting to 'unif"):
        make_run_spec(private(weighting="samples"), quiet)
    e, digits = private(), read_preset("digits/fedavg")
    images = replace(
        digits,
        method=e.method,
        federation=e.federation,
        model=replace(digits.model, network="resnet8", norm="batch"),
        optimizer=replace(digits.optimizer, skip_zero_rows=False, microbatch_tokens=0),
        cluster=e.cluster,
    )
    with pytest.raises(InputError, match=r"does not cover the statistics of BatchNorm: set model.norm to 'group'"):
        make_run_spec(images, quiet)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dp_noise": 1.0}, r"dp_noise = 1: set federation.clip_norm above 0"),
        ({"dp_noise": 1.0, "clip_norm": 1.0, "aggregation": "median"}, "set federation.aggregation to 'mean'"),
        ({"dp_noise": 1.0, "clip_norm": 1.0, "backup_fraction": 0.5}, "set federation.backup_fraction to 0"),
        ({"dp_noise": -1.0}, "must be 0"),
        ({"selection": "poisson", "aggregation": "median"}, "may have too few clients for it"),
        ({"selection": "poisson", "secure_aggregation": True}, "may have too few clients for it"),
        ({"dp_noise": float("inf")}, "must be 0"),
        ({"dp_delta": 1.0}, r"must be in \(0, 1\)"),
    ],
    ids=str,
)
def test_bad_options(options, named):
    with pytest.raises(ValueError, match=named):
        FederationOptions(**options)


def test_noise_leaves_what_no_client_changes(private):
    """FedGELA's scale, which is fixed."""
    e = private("fedgela")
    executor = SerialExecutor(make_run_spec(e, quiet))
    first = executor.server.state.weights["head.scale"].clone()
    executor.round(1, [0, 2, 3], nobody)
    assert torch.equal(executor.server.state.weights["head.scale"], first)


@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("option", ["dp_noise", "secure_aggregation"])
def test_statistics_of_batch_norm_are_refused(private, norm, option):
    e = private(**({} if option == "dp_noise" else {"dp_noise": 0.0, "clip_norm": 0.0, "secure_aggregation": True}))
    model = replace(e.model, network="resnet8", norm=norm, weights="w.safetensors" if norm == "frozen" else "")
    whole = replace(e.optimizer, skip_zero_rows=False, microbatch_tokens=0)
    data = SimpleNamespace(manifest=SimpleNamespace(examples=(3, 4)))
    check = prepare._check_privacy if option == "dp_noise" else partial(prepare._check_secure, data=data)
    with pytest.raises(InputError, match=f"{option}.*BatchNorm.*set model.norm to 'group'"):
        check(replace(e, model=model, optimizer=whole))


def test_without_noise_nothing_changes(private):
    assert private(dp_noise=0.0).federation.client_privacy(4) is None
    e = private(dp_noise=0.0, selection="fixed")
    assert digest(e) == digest(replace(e, federation=replace(e.federation, dp_delta=1e-5)))
    noisy, was = private(), digest(e)
    with pytest.MonkeyPatch.context() as patch:
        now = digest(noisy)
        patch.setattr("anchorfl.pipeline.config.experiment.NOISE", 1)
        assert digest(noisy) != now, "runs whose noise was drawn otherwise are others"
        assert digest(e) == was
