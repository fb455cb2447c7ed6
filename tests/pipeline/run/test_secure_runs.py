"""Runs whose server learns sums alone: the bits of runs without masks, whoever is lost, and what is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Update
from anchorfl.pipeline.algorithm.exact_sums import Contribution as Sent
from anchorfl.pipeline.algorithm.exact_sums import ExactSums, Grid, Term, message_of_steps, steps_of
from anchorfl.pipeline.algorithm.secure_aggregation import KEYS_BYTES, SEALED_BYTES, SHARE_BYTES
from anchorfl.pipeline.config.federation import FederationOptions
from anchorfl.pipeline.config.presets import read_preset
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.execution.forked_executor import ForkedExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.run_record import read_records
from anchorfl.pipeline.training.errors import QuorumError, RejectedError
from anchorfl.pipeline.training.secure_round import MaskedSum, MaskedUpdate, SecureRound
from anchorfl.pipeline.training.server import Server
from anchorfl.tasks.errors import InputError
from anchorfl.testing import small_experiment
from tests.conftest import SMALL
from tests.faulty import Faulty
from tests.runs import nobody, quiet, recorded

WHOLE = {"skip_zero_rows": False, "microbatch_tokens": 0, "batch_size": 64}
REFUSED = {"fedalc", "fedavg-positive", "fedaws"}
"""Methods whose clients send a row of the head as it is."""


def secure(e, on=True, **federation):
    return replace(e, federation=replace(e.federation, secure_aggregation=on, **federation))


@pytest.mark.parametrize("method", sorted(METHODS.keys() - REFUSED))
def test_every_method_has_the_bits_of_the_run_without_masks(experiment, finished_run, method):
    e = experiment(method, federation={"rounds": 2})
    plain, masked = finished_run(e), finished_run(secure(e))
    assert (plain.checksum, plain.scores) == (masked.checksum, masked.scores)
    for before, after in zip(*(recorded(r.folder) for r in (plain, masked)), strict=True):
        up, masked_up = (record.pop("communication/upload_bytes", 0) for record in (before, after))
        keys = after.pop("communication/key_exchange_bytes", 0)
        assert before == after, "but for the bytes, the records are those of the plain run"
        # FedAlign: theta for clients with labels and for others; FedProto and FedTSP: classes that a client lacks, too
        more = 2 if method in ("fedalign", "fedproto", "fedtsp") else 1
        assert masked_up <= more * 2 * up + 3 * 200, "twice the values, and a weight of eight bytes or a few"
        assert bool(keys) == bool(up)


class Large(nn.Module):
    """Tokens, with representations far from zero."""

    def __init__(self, spec):
        super().__init__()
        self.words = nn.Embedding(spec.vocabulary, spec.width)

    def forward(self, x):
        return 100 + self.words(x).mean(1)


def test_first_prototypes_without_room_are_named(tmp_path):
    """They start from zero, so that the server knows nothing of their size; without masks they would be kept whole."""
    e = small_experiment("fedproto", model={"network": f"{__name__}:Large"}, optimizer=WHOLE)
    assert run(e, tmp_path / "plain", quiet)
    with pytest.raises(QuorumError, match=r"under masks \('.*' has values up to 10\d, and there is room for 4; fed"):
        run(secure(e), tmp_path / "masked", quiet)


def test_forked_workers_give_the_same_bits(experiment, finished_run):
    e = experiment("fedalign", federation={"rounds": 3})
    forked = replace(secure(e), cluster=replace(e.cluster, executor="forked", max_concurrent_clients=2))
    assert finished_run(forked).checksum == finished_run(e).checksum
    assert recorded(finished_run(forked).folder)[1:] == recorded(finished_run(secure(e)).folder)[1:]


def test_stacked_clients_are_masked_too(experiment, finished_run):
    e = experiment("fedavg", federation={"rounds": 2, "stack": 3}, optimizer={"microbatch_tokens": 0})
    assert finished_run(secure(e)).checksum == finished_run(e).checksum


@pytest.mark.parametrize("options", [{"clip_norm": 0.05}, {"clip_norm": 0.1, "dp_noise": 0.5}], ids=["clip", "dp"])
def test_clients_cut_their_own_steps(experiment, finished_run, options, monkeypatch):
    """As the server would: the same bits, with its noise on the sum where it has any."""
    monkeypatch.setattr("anchorfl.pipeline.algorithm.client_privacy.ClientPrivacy.epsilon", lambda self, rounds: 1.0)
    e = experiment("fedavg", options={"weighting": "uniform"}, federation={"rounds": 2} | options)
    plain, masked = finished_run(e), finished_run(secure(e))
    assert plain.checksum == masked.checksum
    assert read_records(plain.folder)[0][1].metrics["aggregation/clipped"] > 0
    assert "aggregation/clipped" not in read_records(masked.folder)[0][1].metrics, "nobody knows whose step was cut"


# ---- Lost clients.


@pytest.fixture
def eight(experiment, tmp_path):
    """Return a maker of the run of eight clients, some of whom fail on purpose."""
    (tmp_path / "failures").mkdir()

    def make(on, clients=(), kind="raise", **federation):
        e = experiment("fedavg")
        options = {"rounds": 2, "clients_per_round": 8, "epochs": 1, "retries": 0} | federation
        e = replace(e, task=replace(e.task, clients=8), federation=replace(e.federation, **options))
        method = Faulty(clients=clients, kind=kind, times=9, folder=str(tmp_path / "failures"))
        return replace(make_run_spec(e, quiet), experiment=replace(secure(e, on), method=method))

    return make


@pytest.mark.parametrize("kind", ["raise", "nan", "huge", "shape", "empty"])
def test_two_of_eight_clients_lost_leave_the_sum_of_the_others(eight, kind):
    executors = [SerialExecutor(eight(on, (2, 5), kind)) for on in (False, True)]
    for executor in executors:
        outcome = executor.round(1, range(8), nobody)
        assert outcome.answered == (0, 1, 3, 4, 6, 7)
        assert {failure.client for failure in outcome.failed} == {2, 5}
    plain, masked = (messages.checksum(executor.snapshot()) for executor in executors)
    assert plain == masked


def test_a_worker_that_dies_costs_no_bit(eight):
    """Its client's secrets go with the client, not with the process: a fresh one sends what the first would have."""
    expected = SerialExecutor(eight(False))
    expected.round(1, range(8), nobody)
    spec = eight(True, (2,), "exit", retries=1)
    cluster = replace(spec.experiment.cluster, executor="forked", max_concurrent_clients=2)
    once = replace(spec.experiment.method, times=1)
    executor = ForkedExecutor(replace(spec, experiment=replace(spec.experiment, cluster=cluster, method=once)))
    try:
        (retried,) = executor.round(1, range(8), nobody).retried
        assert retried.client == 2
        assert messages.checksum(executor.snapshot()) == messages.checksum(expected.snapshot())
    finally:
        executor.close()


def test_too_few_clients_open_no_sum(eight):
    executor = SerialExecutor(eight(True, (1, 2, 5, 6), quorum=0.25))
    before = messages.checksum(executor.snapshot())
    with pytest.raises(QuorumError, match=r"4 of 8 clients answered, and 5 must.*federation.secure_aggregation"):
        executor.round(1, range(8), nobody)
    assert messages.checksum(executor.snapshot()) == before


# ---- What the server sees.


def test_the_server_sees_words_that_say_nothing(experiment, monkeypatch):
    """Of no client its update, nor the same words in two rounds; their bits are those of a coin."""
    seen = []
    collect = Server.collect

    def spy(self, round_, client, update):
        seen.append((round_, client, messages.rebuild(update, lambda _, t: t.clone())))
        collect(self, round_, client, update)

    monkeypatch.setattr(Server, "collect", spy)
    executor = SerialExecutor(make_run_spec(secure(experiment("fedavg")), quiet))
    for round_ in (1, 2):
        executor.round(round_, [0, 1, 2], nobody)
    assert len(seen) == 6
    assert all(type(update) is MaskedUpdate for _, _, update in seen)
    assert not any(isinstance(update, Update) for _, _, update in seen)
    words = [torch.cat([t.reshape(-1) for _, t in messages.tensors(update)]) for _, _, update in seen]
    for i, one in enumerate(words):
        bits = (one[:, None] >> torch.arange(64)) & 1
        assert abs(float(bits.double().mean()) - 0.5) < 0.02
        assert not any(torch.isin(one, other).any() for other in words[:i])


def test_an_update_of_a_stranger_or_of_another_form_is_refused(experiment):
    server = Server(make_run_spec(secure(experiment("fedavg")), quiet))
    server.secure_round(1, [0, 1, 2])
    form = {"weights": {"values": {"w": torch.zeros(3, dtype=torch.int64)}, "weight": torch.tensor(1)}}
    other = {"weights": {"values": {"w": torch.zeros(4, dtype=torch.int64)}, "weight": torch.tensor(1)}}
    server.collect(1, 0, MaskedUpdate(form))
    server.collect(1, 1, MaskedUpdate(other))
    server.collect(1, 3, MaskedUpdate(form))
    server.collect(1, 2, MaskedUpdate({}))
    with pytest.raises(RejectedError) as refused:
        server.aggregate(1, [0, 1, 2, 3])
    reasons = refused.value.reasons
    assert {client: why[:20] for client, why in reasons.items() if client > 1} == {
        2: "it holds nothing, an",
        3: "it gave no keys for ",
    }
    assert "is torch.int64 (4,)" in reasons[1]


# ---- The numbers under the masks.


@pytest.mark.parametrize("seed", range(5))
def test_whole_numbers_are_those_of_the_sums(seed):
    """Of both kinds of weight, with rows that nobody weighs and that hold NaN: the bits of ``ExactSums``."""
    rng = torch.Generator().manual_seed(seed)
    grid = Grid({"weights": {"w": 4.0}}, {"": 300.0, "rows": 50.0}, 1e4)
    sums, total = ExactSums(), {}
    for client in range(4):
        weight_C = torch.tensor([client, 0.0, 3.0, 0.0 if client else 2.0])
        rows = torch.randn(4, 3, generator=rng)
        rows[1] = float("nan")
        terms = {
            "weights": Term({"w": torch.randn(5, generator=rng), "v": torch.randn(2, 2, generator=rng)}, 10.0 * client),
            "rows": Term({"r": torch.where(weight_C[:, None] > 0, rows, torch.nan)}, weight_C),
        }
        finite = {n: replace(t, values={k: v.nan_to_num(0.0) for k, v in t.values.items()}) for n, t in terms.items()}
        assert sums.fits(Sent(finite), grid, {"": 300.0, "rows": 50.0})
        sums.add(client, Sent(finite))
        for path, t in messages.tensors(steps_of(Sent(terms), grid)):
            total[path] = total.get(path, 0) + t
    steps = messages.rebuild(steps_of(Sent(terms), grid), lambda path, _: total[path])
    again = ExactSums()
    again.add_message(message_of_steps(steps, grid, range(4)), grid)
    expected, got = sums.means([], grid), again.means([], grid)
    assert messages.checksum(dict(expected.values)) == messages.checksum(dict(got.values))
    assert messages.checksum(dict(expected.weight)) == messages.checksum(dict(got.weight))


# ---- What is refused.


def test_methods_whose_clients_send_a_row_as_it_is_are_refused(experiment):
    assert {n for n, kind in METHODS.items() if kind(**SMALL.get(n, {})).sends_own} == REFUSED
    for name in REFUSED:
        with pytest.raises(InputError, match=rf"server of '{name}' needs every client's class row"):
            make_run_spec(secure(experiment(name)), quiet)


def test_counters_of_batch_norm_are_refused(experiment):
    digits = read_preset("digits/fedavg")
    images = dataclasses.replace(
        digits,
        model=replace(digits.model, network="resnet8", norm="batch"),
        optimizer=replace(digits.optimizer, skip_zero_rows=False, microbatch_tokens=0),
        cluster=experiment("fedavg").cluster,
    )
    with pytest.raises(InputError, match=r"counters of BatchNorm have no sum: set model.norm to 'group'"):
        make_run_spec(secure(images), quiet)


@dataclass(frozen=True, kw_only=True)
class ByRoot(FedAvg):
    """A plug-in in which clients count by the root of their rows."""

    name = "by-root"

    def client_weights(self, rows_I):
        return rows_I.double().sqrt()


@dataclass(frozen=True, kw_only=True)
class ByHalf(FedAvg):
    """One whose single weight is no whole number."""

    name = "by-half"

    def client_weight(self, card):
        return 0.5


def test_weights_that_are_no_whole_numbers_are_named(experiment, tmp_path):
    """They were said to be values that are too large."""
    e = secure(experiment("fedavg"))
    with pytest.raises(InputError, match=r"a client of \d+ rows counts \d+\.\d+, and sums under masks are of whole"):
        make_run_spec(dataclasses.replace(e, method=ByRoot()), quiet)
    with pytest.raises(QuorumError, match=r"cannot be summed under masks .a term's weight is no whole number"):
        run(dataclasses.replace(e, method=ByHalf()), tmp_path / "run", quiet)


def test_the_sum_of_one_client_is_refused(experiment):
    with pytest.raises(InputError, match=r"sum of one client is that client's: raise federation.clients_per_round"):
        make_run_spec(secure(experiment("fedavg", federation={"clients_per_round": 1})), quiet)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"aggregation": "median"}, "set federation.aggregation to 'mean': any other looks at single updates"),
        ({"aggregation": "krum"}, "set federation.aggregation to 'mean'"),
        ({"batched_clients": True}, "set federation.batched_clients to False"),
        ({"backup_fraction": 0.5}, "set federation.backup_fraction to 0: stand-ins that are not asked count as lost"),
    ],
    ids=str,
)
def test_bad_options(options, named):
    with pytest.raises(ValueError, match=named):
        FederationOptions(secure_aggregation=True, **options)


def test_bytes_of_the_exchange_are_those_of_both_ways():
    masked = MaskedSum(1, SecureRound(None, dict.fromkeys(range(3), b"")), None)
    masked._groups = [SimpleNamespace(clients=[0, 2])]
    assert masked.exchanged_bytes == (3 + 9) * KEYS_BYTES + (9 + 9) * SEALED_BYTES + 2 * 3 * SHARE_BYTES
