"""Anchor: its limits, its loss against NumPy, what it expects, and what it sends.

Oracle: a row y has the loss -log(n_y^gamma p_y / sum_c n_c^gamma p_c), with n_c the client's labels of class c and
what it expects of it in the other rows, at least 1. A row without a label has
-log sum_c a_c p_c + (1 - (1 - m) sum_c q_c^2) sum_c (p_c - q_c)^2, with m the share of labels that are missing, a_c 1
or, of classes that the client identifies, m, and q the softmax of the model that was sent, times a_c. Multi-label: a
label that is not known has the squared distance of its two values to the sent probabilities, times the known labels
over the others, at most 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from anchorfl.models.heads import BiasedHead
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Averaging, ClientResult, HeadSpec
from anchorfl.pipeline.algorithm.control_variates import AgreeingTrainer, ControlUpdate
from anchorfl.pipeline.algorithm.expected_labels import expectation, missing_share
from anchorfl.pipeline.methods.anchor import Anchor
from anchorfl.pipeline.methods.scaffold import Scaffold
from anchorfl.tasks.contract import Card, ClientData, Objective
from benchmarks.anchor_parts import Controlled, ControlledInFull, Full
from tests.pipeline import compared
from tests.pipeline.compared import C, D, F, N, arrays, base_loss, elsewhere, encode, softmax

NAMES = torch.randn(C, D, generator=torch.Generator().manual_seed(2))
ALONE = {"expected": 0.0, "certain": 0.0, "gamma": 0.0, "control_variates": False}
SHAPES = {"encoder.0.weight": (D, F), "encoder.0.bias": (D,), "head.table": (C, D), "head.bias": (C,)}


@dataclass(frozen=True, kw_only=True)
class Plain(Averaging):
    """FedAvg on the network of Anchor."""

    name = "plain"
    head = HeadSpec(kind="biased")


@dataclass(frozen=True, kw_only=True)
class EncoderAlone(Scaffold):
    """SCAFFOLD on the network of Anchor, whose head it leaves alone, with clients that agree first."""

    name = "encoder-alone"
    head = HeadSpec(kind="biased")

    def begin(self, ctx):
        state = super().begin(ctx)
        return replace(state, control={n: c for n, c in state.control.items() if n.startswith("encoder.")})

    def trainer(self, ctx):
        return AgreeingTrainer(ctx)


def named():
    return compared.dense(BiasedHead(NAMES, D))


def logits(w, x_NF):
    rows_CD = w["head.table"]
    return encode(w, x_NF) @ (rows_CD / np.sqrt((rows_CD**2).sum(1, keepdims=True))).T + w["head.bias"]


@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_labels_alone_are_fedavg_on_its_network_bit_for_bit(experiment, task):
    e = experiment("anchor", task, options=ALONE)
    of_fedavg = compared.history(replace(e, method=Plain()))
    compared.assert_same_bits(compared.history(e), of_fedavg)
    for part in ("expected", "control_variates", *(["certain", "gamma"] if task == "toy-single" else [])):
        other = compared.history(experiment("anchor", task, options=ALONE | {part: type(ALONE[part])(1)}))
        assert any(not torch.equal(other[1][0][name], value) for name, value in of_fedavg[1][0].items())


@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_labels_alone_with_control_variates_are_agreeing_scaffold_of_the_encoder_bit_for_bit(experiment, task):
    e = experiment("anchor", task, options=ALONE | {"control_variates": True})
    compared.assert_same_bits(
        compared.history(e), compared.history(replace(e, method=EncoderAlone(weighting="samples")))
    )


@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_in_its_first_round_no_gradient_is_corrected(experiment, task):
    with_them = compared.history(experiment("anchor", task))
    without = compared.history(experiment("anchor", task, options={"control_variates": False}))
    compared.assert_same_bits(with_them[:1], without[:1])
    assert messages.checksum(with_them[1][0]) != messages.checksum(without[1][0])


@pytest.mark.parametrize(
    ("aware", "missing", "in_full"),
    [([1, 1, 0, 0], 0.0, True), ([1, 1, 1, 1], 0.3, True), ([1, 1, 1, 1], 0.0, False)],
    ids=["classes that others identify", "labels are missing", "rows that can be nothing"],
)
@pytest.mark.parametrize("method", [Anchor(), Full(), Controlled(), ControlledInFull()], ids=lambda method: method.name)
def test_who_expects_labels_is_corrected_in_full(monkeypatch, method, aware, missing, in_full):
    """One row of a client in its second round has no label. Where the client identifies all classes and no label is
    missing, that row is left out, and gradients, a quarter of those remembered, are corrected by a quarter. Two of the
    ablation's methods correct in full everywhere, two the head, too.
    """
    in_full = in_full or isinstance(method, Full)
    monkeypatch.setattr(compared, "AWARE", torch.tensor(aware).bool())
    card, data = compared.rows_of()
    y_NC = torch.eye(C, dtype=torch.float64)[torch.arange(N) % sum(aware)]
    y_NC[-1] = 0
    known_NC = y_NC.any(1, keepdim=True).double().expand(N, C).clone()
    data = ClientData(data.x, y_NC, known_NC, Objective("single").weights(y_NC, known_NC))
    monkeypatch.setattr(compared, "rows_of", lambda *_: (card, data))
    state = method.begin(compared.server(named(), [card]))
    assert ("head.bias" in state.control) == isinstance(method, Controlled)
    share = torch.tensor(missing, dtype=torch.float64)
    state = replace(state, control=elsewhere(state.control, 1), missing=share)
    raw = compared.gradient(*compared.started(Anchor(), model=named(), state=state))[1]
    memory = {f"control.{name}": torch.from_numpy(4 * raw[name]) for name in state.control}
    got = compared.gradient(*compared.started(method, model=named(), state=state, memory=memory))[1]
    for name, c in state.control.items():
        change = c.numpy() - 4 * raw[name]
        compared.assert_close({name: got[name]}, {name: raw[name] + (1.0 if in_full else 0.25) * change}, 1e-7)
    for name in raw.keys() - state.control.keys():
        assert np.array_equal(got[name], raw[name])


@pytest.mark.parametrize("method", [Anchor(), Anchor(expected=0.0, certain=0.0)], ids=["expects", "labels alone"])
def test_it_trains_in_training_mode(method):
    """What is expected is asked for without dropout; the steps after it have it."""
    state = method.begin(compared.server(named(), [compared.rows_of()[0]]))
    assert compared.started(method, model=named(), state=state)[0].model.training


@pytest.mark.parametrize(
    ("expected", "certain", "gamma", "missing"),
    [(1.0, 1.0, 1.0, 0.0), (0.7, 0.3, 0.5, 0.3), (0.0, 2.0, 1.0, 0.0), (0.5, 0.0, 1.0, 0.0), (0.0, 0.0, 1.0, 0.0)],
)
def test_single_label_loss_and_gradient_equal_numpy(expected, certain, gamma, missing):
    method = Anchor(expected=expected, certain=certain, gamma=gamma)
    state = method.begin(compared.server(named(), [compared.rows_of()[0]]))
    state = replace(state, missing=torch.tensor(missing, dtype=torch.float64))
    local, micro_batches = compared.started(method, model=named(), state=state)
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    count_C = data.y_NC.numpy().sum(0)
    assert (count_C > 0).tolist() == [True, True, False, False]
    q = np.exp(logits(arrays(local.ctx.state.weights), x))
    q[:, :2] *= missing
    q /= q.sum(1, keepdims=True)
    unsure = 1 - (1 - missing) * (q**2).sum(1)
    open_N = data.y_NC.numpy().sum(1) == 0
    assert 0 < open_N.sum() < N
    n_C = np.maximum(count_C + bool(expected or certain) * (open_N[:, None] * q).sum(0), 1)
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def whole(w):
        s = logits(w, x)
        p, a_C = softmax(s), np.array([missing, missing, 1, 1])
        rest = (open_N * (expected * unsure * ((p - q) ** 2).sum(1) - certain * np.log((a_C * p).sum(1)))).sum() / N
        return base_loss("single", s + gamma * np.log(n_C), data) + rest

    compared.assert_gradient(local, micro_batches, whole)
    assert bool(local.active(data).all()) == (expected + certain > 0)


def of_card(client, rows, counts, identified):
    return Card(client, rows, torch.tensor(counts), torch.tensor(identified))


def missing(*cards):
    return float(missing_share(cards))


def test_what_the_classes_shares_leave_is_missing():
    """Half of the labels; and 4 of 400, which is less than twice the standard error, 2 of 100."""
    half = of_card(0, 40, [5, 5, 5, 5], [True] * 4)
    assert missing(half) == 0.5
    assert missing(of_card(0, 400, [99, 99, 99, 99], [True] * 4)) == 0.0
    assert missing(of_card(0, 400, [90, 90, 90, 90], [True] * 4)) == pytest.approx(0.1)
    assert missing(of_card(0, 40, [10, 10, 10, 10], [True] * 4)) == 0.0
    assert float(Anchor().begin(compared.server(named(), [half])).missing) == 0.5
    assert float(Anchor(shares=False).begin(compared.server(named(), [half])).missing) == 0.0


def test_a_classs_share_is_that_among_those_who_identify_it():
    """Class 0 has 8 of the 20 rows of those who know it, class 1 9 of 30, class 2 3 of 40: 0.225 is left."""
    cards = [
        of_card(0, 10, [3, 4, 0], [True, True, False]),
        of_card(1, 10, [5, 0, 0], [True, False, False]),
        of_card(2, 20, [0, 5, 2], [False, True, True]),
        of_card(3, 20, [0, 0, 1], [False, False, True]),
    ]
    assert missing(*cards) == 0.0, "its standard error is 0.14"
    large = [replace(c, num_examples=100 * c.num_examples, count_C=100 * c.count_C) for c in cards]
    assert missing(*large) == pytest.approx(1 - 8 / 20 - 9 / 30 - 3 / 40)
    assert missing(*large[:2]) == 0.0, "nobody identifies class 2"
    crowded = of_card(0, 10, [9, 0], [True, False]), of_card(1, 10, [0, 9], [False, True])
    assert missing(*crowded) == 0.0, "no less than nothing is left"


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_clients_count_by_their_samples_or_alike(weighting):
    """Two of three clients, of 10 and 30 rows, take part; the third has 60. Control variates are over all three."""
    cards = [replace(compared.rows_of(seed=i)[0], num_examples=rows) for i, rows in enumerate([10, 30, 60])]
    method, ctx = Anchor(weighting=weighting), compared.server(named(), cards)
    state = method.begin(ctx)
    updates = [ControlUpdate(elsewhere(state.weights, seed), elsewhere(state.control, seed)) for seed in (1, 2)]
    got = method.aggregate(state, [ClientResult(c, u) for c, u in zip(cards[:2], updates, strict=True)], ctx)
    one, other, third = (10, 30, 60) if weighting == "samples" else (1, 1, 1)
    for name in state.weights:
        want = (one * updates[0].weights[name] + other * updates[1].weights[name]) / (one + other)
        torch.testing.assert_close(got.weights[name], want, rtol=0, atol=1e-12)
    assert got.control.keys() == {"encoder.0.weight", "encoder.0.bias"}
    for name, value in got.control.items():
        want = (one * updates[0].control[name] + other * updates[1].control[name]) / (one + other + third)
        torch.testing.assert_close(value, want, rtol=0, atol=1e-12)


def test_the_share_stays_with_the_state_and_travels():
    card, _ = compared.rows_of()
    method, ctx = Anchor(), compared.server(named(), [card])
    state = replace(method.begin(ctx), missing=torch.tensor(0.25, dtype=torch.float64))
    sent = method.broadcast(state, ctx)
    assert sent is state
    update = compared.fitted(method, state=sent, model=named()).update
    after = method.aggregate(state, [ClientResult(card, update)], ctx)
    assert float(after.missing) == 0.25
    assert not torch.equal(after.weights["head.bias"], state.weights["head.bias"])


@pytest.mark.parametrize(("expected", "aware", "share"), [(1.0, 1, 1 / 3), (0.4, 2, 1.0), (1.0, 3, 1.0), (1.0, 4, 0.0)])
def test_multi_label_loss_and_gradient_equal_numpy(monkeypatch, expected, aware, share):
    """What is expected counts no more than what is known: 1 of 4 labels, so that the other 3 weigh a third each."""
    monkeypatch.setattr(compared, "AWARE", torch.arange(C) < aware)
    local, micro_batches = compared.started(Anchor(expected=expected), "multi", model=named())
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    q = 1 / (1 + np.exp(-logits(arrays(local.ctx.state.weights), x)))
    open_NC = data.known_NC.numpy() == 0
    assert open_NC.sum() == N * (C - aware)
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def whole(w):
        s = logits(w, x)
        rest = share * (open_NC * 2 * (1 / (1 + np.exp(-s)) - q) ** 2).sum() / (N * C)
        return base_loss("multi", s, data) + expected * rest

    compared.assert_gradient(local, micro_batches, whole)


def test_a_client_that_identifies_every_class_expects_nothing():
    _, data = compared.rows_of()
    target_NC, open_NC = expectation(torch.randn(N, C).double(), data, torch.zeros(C), Objective("single"))
    assert not open_NC.any()
    assert target_NC.isfinite().all()


def test_what_is_expected_adds_up_to_one_over_what_can_be():
    _, data = compared.rows_of()
    odds_C = torch.tensor([0.0, 1.0, 0.0, 0.5]).double()
    logits_NC = torch.randn(N, C).double()
    target_NC, open_NC = expectation(logits_NC, data, odds_C, Objective("single"))
    assert not target_NC[:, odds_C == 0].any()
    half_N = target_NC[:, 3] / target_NC[:, 1] / (logits_NC[:, 3] - logits_NC[:, 1]).exp()
    torch.testing.assert_close(half_N, torch.full((N,), 0.5).double())
    torch.testing.assert_close(target_NC.sum(1), torch.ones(N).double())
    assert torch.equal(open_NC.any(1), data.known_NC.sum(1) == 0)


def test_the_exact_tensors_on_the_wire():
    wire = {f"weights/{name}": shape for name, shape in SHAPES.items()}
    control = {f"control/{name}": shape for name, shape in SHAPES.items() if name.startswith("encoder.")}
    state = Anchor().begin(compared.server(named(), [of_card(0, N, [3] * C, [True] * C)]))
    assert compared.shapes(state) == wire | control | {"missing": ()}
    got = compared.fitted(Anchor(), state=state, model=named())
    assert compared.shapes(got.update) == wire | control
    assert {name.partition(".")[0] for name in got.memory} == {"all", "control"}
    alone = Anchor(control_variates=False)
    state = alone.begin(compared.server(named(), [of_card(0, N, [3] * C, [True] * C)]))
    assert compared.shapes(state) == wire | {"missing": ()}
    got = compared.fitted(alone, state=state, model=named())
    assert compared.shapes(got.update) == wire
    assert {name.partition(".")[0] for name in got.memory} == {"all"}


def test_the_savings_change_no_update():
    compared.assert_savings_agree(Anchor())


@pytest.mark.parametrize("options", [{"expected": -0.1}, {"certain": -1.0}, {"gamma": float("nan")}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=rf"\Amethod\.{next(iter(options))} = \S+: must be at least 0\Z"):
        Anchor(**options)
