"""FedAwS, FedALC and their baselines: the client's step, the server's step and the label correlations, each against an
independent derivation; the limits; what travels.

Shape suffixes: N rows, C classes, D width.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from pipeline import tree
from pipeline.class_rows import ROWS
from pipeline.methods import METHODS
from pipeline.spread import fixed_gradient, gradient, kept_counts, nearest, slope
from pipeline.training import Training, fit
from tasks.contract import Objective
from tasks.labels import Labels
from tests.pipeline.compared import assert_close
from tests.pipeline.compared import slope as differences
from tests.pipeline.one_class import ETA, SGD, C, D, begun, clients, explicit, network, parts, rows, sent_shapes, server

FEDALC, FEDAWS = METHODS["fedalc"], METHODS["fedaws"]


def unit_rows(count=7, width=4, seed=0):
    w = np.random.default_rng(seed).normal(size=(count, width))
    return w / np.linalg.norm(w, axis=1, keepdims=True)


# ------------------------------------------------------------------------------------------------------------- a client


def test_a_client_takes_one_step_on_theta_and_its_row():
    """Eq. 14 by finite differences in NumPy: theta - eta dR/dtheta, and the row likewise, back at length 1."""
    method, data = METHODS["fedavg-positive"](row_lr=0.3), rows()
    model = network()
    state, cards = begun(method, model, data)
    card, held = clients(data)[1]
    names = [n for n, _ in model.named_parameters() if n != ROWS]
    w = {n: state.weights[n].numpy().copy() for n in names} | {"row": state.weights[ROWS][1].numpy().copy()}
    x = held.x.numpy()

    def risk(w):
        h = np.tanh(x @ w["encoder.0.weight"].T + w["encoder.0.bias"]) @ w["encoder.2.weight"].T + w["encoder.2.bias"]
        cosine = (h / np.linalg.norm(h, axis=1, keepdims=True)) @ w["row"]
        return (np.maximum(0, 0.9 - cosine) ** 2).mean()

    grad = differences(risk, w)
    want = {n: w[n] - ETA * grad[n] for n in names}
    row = w["row"] - 0.3 * grad["row"]
    training = Training(method, Objective("multi"), SGD, 1, 0)
    sent = method.broadcast(state, server(model, cards))
    got = fit(training, model, card, held, sent, {}, 1, method.letter(state, card))
    assert got.loss == pytest.approx(risk(w), abs=1e-12)
    assert_close({n: got.update.weights[n].numpy() for n in names}, want, 1e-8)
    assert np.abs(got.update.row_D.numpy() - row / np.linalg.norm(row)).max() < 1e-8
    assert not got.memory


def test_a_row_beyond_the_margin_has_no_loss():
    method = METHODS["fedavg-positive"](margin=0.9)
    z = torch.tensor([[1.0, 0.0], [0.95, 0.1], [0.0, 1.0]], dtype=torch.float64)
    row = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(3, -1)
    assert method.pooling().loss(z, row).tolist() == pytest.approx([0, 0, 0.81])


# ----------------------------------------------------------------------------------------------------------- the server


@pytest.mark.parametrize(("form", "nu"), [("neg_d2", 1.0), ("hinge_adaptive", 1.0), ("hinge_const", 1.3)])
@pytest.mark.parametrize("k", [1, 3, 6, 50])
def test_the_regulariser_is_the_sum_as_written(form, nu, k):
    """Neighbours by a plain sort, the sum over pairs in a double loop, its gradient by finite differences."""
    w, weight = unit_rows(), np.random.default_rng(1).random((7, 7))
    distance = 1 - w @ w.T
    near = [sorted((j for j in range(7) if j != u), key=lambda j: distance[u, j]) for u in range(7)]
    k_ = min(k, 6)
    adaptive = [distance[u, near[u][k_]] if k_ < 6 else 1.0 for u in range(7)]

    def total(v):
        value = 0.0
        for u in range(7):
            for j in near[u][:k_]:
                d = 1 - v["w"][u] @ v["w"][j]
                bound = adaptive[u] if form == "hinge_adaptive" else nu
                value += weight[u, j] * (-(d**2) if form == "neg_d2" else max(0, bound - d) ** 2)
        return value

    rows_CD = torch.from_numpy(w)
    index_CK, cosine_CK, after_C = nearest(rows_CD, k)
    assert index_CK.tolist() == [row[:k_] for row in near]
    slope_CK = torch.from_numpy(np.take_along_axis(weight, index_CK.numpy(), 1)) * slope(form, cosine_CK, after_C, nu)
    assert_close({"w": gradient(rows_CD, index_CK, slope_CK)}, differences(total, {"w": w}), 1e-8)


def test_an_adaptive_hinge_pushes_the_neighbours_and_nobody_else():
    w = torch.from_numpy(unit_rows(30, 4))
    for k in (1, 5, 12):
        index_CK, cosine_CK, after_C = nearest(w, k)
        assert (slope("hinge_adaptive", cosine_CK, after_C, 1.0) > 0).all()
        beyond = torch.ones(30, 30, dtype=torch.bool).scatter(1, index_CK, False).fill_diagonal_(False)
        active = slope("hinge_adaptive", w @ w.T, after_C, 1.0) > 1e-12
        assert not (active & beyond).any()


def test_neighbours_are_exact_whatever_the_blocks(monkeypatch):
    w = torch.from_numpy(unit_rows(50, 6))
    whole = nearest(w, 5)
    monkeypatch.setattr("pipeline.spread.BLOCK", 7)
    for one, other in zip(nearest(w, 5), whole, strict=True):
        assert torch.allclose(one.double(), other.double(), atol=1e-15)
    similar = (w @ w.T).fill_diagonal_(-2)
    assert whole[0].tolist() == similar.argsort(1, descending=True)[:, :5].tolist()


def test_rows_move_apart_and_those_of_classes_that_go_together_less():
    """Rows 0 and 1 are as close to each other as rows 2 and 3; only 0 and 1 share instances."""
    y_NC = np.zeros((40, 4), dtype=bool)
    y_NC[:10, 0] = y_NC[:10, 1] = True
    y_NC[10:20, 0] = y_NC[20:30, 2] = y_NC[30:, 3] = y_NC[10:12, 1] = True
    known = known_of(y_NC)
    angle = torch.tensor([0.0, 0.3, np.pi, np.pi + 0.3], dtype=torch.float64)
    w = torch.stack([angle.cos(), angle.sin()], 1)
    method = FEDALC(weights="gamma")
    index_CK, cosine_CK, after_C = nearest(w, 1)
    push_CK = method.pair_weights(index_CK, known) * slope("neg_d2", cosine_CK, after_C, 1.0)
    moved = method.unit(w - 1.0 * gradient(w, index_CK, push_CK))
    before, after = w @ w.T, moved @ moved.T
    assert after[0, 1] < before[0, 1]
    assert after[2, 3] < after[0, 1] - 1e-3


# --------------------------------------------------------------------------------------------------- label correlations


def known_of(y_NC):
    counts = y_NC.T.astype(np.int64) @ y_NC.astype(np.int64)
    return kept_counts(sparse.csr_array(counts), len(y_NC))


@pytest.mark.parametrize("weights", ["sigma", "gamma", "mined"])
def test_the_weights_are_those_of_a_count_instance_by_instance(weights):
    """Eq. 9 in a triple loop; eq. 10 divides by the sum over the other classes, or over the neighbours."""
    rng = np.random.default_rng(2)
    y_NC = rng.random((60, 6)) < [0.6, 0.5, 0.3, 0.2, 0.1, 0.05]
    y_NC[:, 4] |= y_NC[:, 5]  # class 5 never occurs without 4
    sigma = np.zeros((6, 6))
    for j, u, v in itertools.product(range(60), range(6), range(6)):
        if u != v and y_NC[j, u] and not y_NC[j, v]:
            sigma[u, v] += 1 / 60
    index_CK, _, _ = nearest(torch.from_numpy(unit_rows(6, 3)), 3)
    want = np.take_along_axis(sigma, index_CK.numpy(), 1)
    if weights == "gamma":
        want = want / sigma.sum(1, keepdims=True)
    elif weights == "mined":
        want = want / want.mean(1, keepdims=True)
    got = FEDALC(weights=weights).pair_weights(index_CK, known_of(y_NC))
    assert np.abs(got.numpy() - want).max() < 1e-6
    assert sigma[5, 4] == 0


def test_a_class_that_is_always_with_its_neighbours_pushes_nobody():
    y_NC = np.ones((5, 3), dtype=bool)
    index_CK, _, _ = nearest(torch.from_numpy(unit_rows(3, 3)), 2)
    for weights in ("mined", "gamma", "sigma"):
        assert FEDALC(weights=weights).pair_weights(index_CK, known_of(y_NC)).tolist() == [[0, 0]] * 3


def test_without_any_pair_of_labels_all_weights_are_one():
    index_CK, _, _ = nearest(torch.from_numpy(unit_rows(5, 3)), 2)
    assert FEDALC().pair_weights(index_CK, known_of(np.eye(5, dtype=bool))).tolist() == [[1, 1]] * 5


@pytest.mark.parametrize(("alpha", "beta", "nu"), [(1.0, 1.0, 1.0), (0.0, 2.0, 1.3), (0.5, 0.0, 1.0)])
def test_the_fixed_rows_minimise_eq_12(alpha, beta, nu, monkeypatch):
    """Instance by instance: alpha d^2 between two of its classes, beta max(0, nu - d)^2 between one of its and one
    that it lacks; each part over its own mean weight.
    """
    rng = np.random.default_rng(3)
    y_NC = rng.random((25, 5)) < 0.4
    w = unit_rows(5, 3)
    pairs = [(u, v) for u in range(5) for v in range(5) if u != v]
    together = np.mean([(y_NC[:, u] & y_NC[:, v]).mean() for u, v in pairs])
    apart = np.mean([(y_NC[:, u] & ~y_NC[:, v]).mean() for u, v in pairs])

    def eq_12(v):
        value = 0.0
        for y_C, (a, b) in itertools.product(y_NC, pairs):
            d = 1 - v["w"][a] @ v["w"][b]
            if y_C[a] and y_C[b]:
                value += alpha * d**2 / together
            elif y_C[a]:
                value += beta * max(0, nu - d) ** 2 / apart
        return value / len(y_NC) / len(pairs)

    monkeypatch.setattr("pipeline.spread.BLOCK", 2)
    value, total_CD = fixed_gradient(torch.from_numpy(w), known_of(y_NC), alpha, beta, nu)
    assert value == pytest.approx(eq_12({"w": w}), abs=1e-12)
    assert_close({"w": total_CD}, differences(eq_12, {"w": w}), 1e-8)


def test_fixed_rows_are_found_before_round_1_and_stay():
    method = METHODS["fedalc-fixed"](steps=50)
    state, _ = begun(method, network(), rows())
    random = network().get_parameter(ROWS).detach()
    start, _ = fixed_gradient(random, state.known, 1.0, 1.0, 1.0)
    end, _ = fixed_gradient(state.weights[ROWS], state.known, 1.0, 1.0, 1.0)
    assert end < 0.8 * start
    later = explicit(method, rows(), 2)
    assert torch.equal(later[-1][0].weights[ROWS], state.weights[ROWS])


# ---------------------------------------------------------------------------------------------------------- the limits


@pytest.mark.parametrize("name", ["fedalc", "fedaws"])
def test_lambda_0_is_fedavg_bit_for_bit(name):
    got, want = explicit(METHODS[name](lambda_=0.0), rows()), explicit(METHODS["fedavg-positive"](), rows())
    assert [tree.checksum(s.weights) for s, _ in got] == [tree.checksum(s.weights) for s, _ in want]
    other = explicit(METHODS[name](lambda_=1000.0), rows())
    assert tree.checksum(other[0][0].weights) != tree.checksum(want[0][0].weights)


@pytest.mark.parametrize("form", ["neg_d2", "hinge_adaptive", "hinge_const"])
def test_equal_correlations_are_fedaws_bit_for_bit(form):
    """Where no two labels occur together, every pair has the same weight."""
    data = rows()
    alone = type(data)(data.x_NF, Labels.of_matrix(np.eye(C, dtype=bool)[np.arange(len(data)) % C]))
    got, want = (explicit(m(form=form, lambda_=500.0, neighbours=2), alone) for m in (FEDALC, FEDAWS))
    assert [tree.checksum(s.weights) for s, _ in got] == [tree.checksum(s.weights) for s, _ in want]
    apart = [explicit(m(form=form, lambda_=500.0, neighbours=2), data) for m in (FEDALC, FEDAWS)]
    assert tree.checksum(apart[0][0][0].weights) != tree.checksum(apart[1][0][0].weights)


def test_flag_with_uniform_labels_is_fedavg_and_with_occurrences_weighs_by_rows():
    for labels, weighting in (("uniform", "uniform"), ("occurrence", "samples")):
        got = explicit(METHODS["flag"](label_weights=labels), rows())
        want = explicit(METHODS["fedavg-positive"](row_lr=0.0, weighting=weighting), rows())
        assert [tree.checksum(s.weights) for s, _ in got] == [tree.checksum(s.weights) for s, _ in want]


def test_fedmlh_with_one_part_and_a_bucket_each_is_fixed_rows():
    """One network, whose rows come from buckets: with as many buckets as draws need, no two classes share one."""
    method = METHODS["fedmlh"](parts=1, buckets=1000)
    assert len({method.bucket(0, c) for c in range(C)}) == C
    state, _ = begun(method, network(), rows())
    fixed = METHODS["fedavg-positive"](row_lr=0.0)
    model = network()
    with torch.no_grad():
        model.get_parameter(ROWS).copy_(state.weights[ROWS])
    got, want = explicit(method, rows()), explicit(fixed, rows(), model=model)
    assert [tree.checksum(s.weights) for s, _ in got] == [tree.checksum(s.weights) for s, _ in want]


def test_fedmlh_gives_classes_of_a_bucket_the_same_part():
    method = METHODS["fedmlh"](parts=3, buckets=2)
    state, _ = begun(method, network(3), rows())
    part_CRD = state.weights[ROWS].view(C, 3, D // 3)
    for r, a, b in itertools.product(range(3), range(C), range(C)):
        same = method.bucket(r, a) == method.bucket(r, b)
        assert torch.equal(part_CRD[a, r], part_CRD[b, r]) == same


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_a_server_adam_step_is_adams(decay):
    """Two steps of Adam in NumPy on theta - mean of theta, the second with a rate that has decayed."""
    method, data = METHODS["fedavg-positive"](server="adam", server_lr=0.02, server_decay=decay, row_lr=0.0), rows()
    plain = METHODS["fedavg-positive"](row_lr=0.0)
    m = v = 0.0
    model = network()
    state, cards = begun(method, model, data)
    theta = state.weights["encoder.0.weight"].numpy().copy()
    for t in (1, 2):
        before = {k: x.clone() for k, x in state.weights.items()}
        held = network()
        held.load_state_dict(before)
        mean = explicit(plain, data, 1, model=held)[0][0].weights
        g = theta - mean["encoder.0.weight"].numpy()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - 0.02 * decay ** (t - 1) * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        state = method.gather(state, mean, state.sent_C, replace(server(model, cards), round=t))
        assert np.abs(state.weights["encoder.0.weight"].numpy() - theta).max() < 1e-12


def test_rows_come_to_rest_with_their_rates():
    """A step on a row and the regulariser's in round 4 at a decay of 0.5 are those of an eighth of the rates."""
    data, options = rows(), {"lambda_": 300.0, "neighbours": 2}
    slow, eighth = FEDAWS(row_lr=0.4, row_decay=0.5, **options), FEDAWS(row_lr=0.05, **options | {"lambda_": 37.5})
    model = network()
    state, cards = begun(slow, model, data)
    card, held = clients(data)[1]
    sent = slow.broadcast(state, server(model, cards))
    training = [Training(method, Objective("multi"), SGD, 1, 5) for method in (slow, eighth)]
    moved = [fit(t, model, card, held, sent, {}, 4, slow.letter(state, card)).update.row_D for t in training]
    assert torch.equal(*moved)
    settled = [m.settle(state.weights[ROWS], state, replace(server(model, cards), round=4)) for m in (slow, eighth)]
    assert torch.equal(*settled)
    assert not torch.equal(settled[0], slow.settle(state.weights[ROWS], state, replace(server(model, cards), round=1)))


@pytest.mark.parametrize("decay", [0.0, 1.5])
@pytest.mark.parametrize("name", ["server_decay", "row_decay"])
def test_a_decay_out_of_range_is_refused(name, decay):
    with pytest.raises(ValueError, match=rf"method\.{name} = .*: must be in \(0, 1\]"):
        METHODS["fedalc"](**{name: decay})


# --------------------------------------------------------------------------------------------------------- what travels


THETA = {f"weights/{n}": tuple(p.shape) for n, p in network().named_parameters() if n != ROWS}


@pytest.mark.parametrize("name", ["fedalc", "fedaws", "fedavg-positive", "fedalc-fixed", "flag", "fedmlh"])
def test_theta_and_one_row_travel_and_no_other(name):
    method = METHODS[name](parts=1) if name == "fedmlh" else METHODS[name]()
    moves = bool(method.row_lr)
    state, cards = begun(method, network(), rows())
    sent = {k: s for k, s in sent_shapes(method.broadcast(state, server(network(), cards))).items() if s != (0,)}
    assert sent == THETA
    assert sent_shapes(method.letter(state, cards[2])) == {"row": (D,)}
    assert torch.equal(method.letter(state, cards[2])["row"], state.weights[ROWS][2])
    later = explicit(method, rows(), 1)[0][0]
    assert sent_shapes(method.letter(later, cards[2])) == ({"row": (D,)} if moves else {}), "a fixed row goes once"


def test_a_client_that_was_missing_gets_its_fixed_row_later():
    method = METHODS["flag"]()
    state, _ = explicit(method, rows(), 1, chosen=[0, 2])[0]
    _, cards = begun(method, network(), rows())
    assert [bool(method.letter(state, card)) for card in cards] == [False, True, False, True]
    assert len(explicit(method, rows(), 3, chosen=[1, 2])) == 3


def test_what_clients_tell_is_a_digest_per_row():
    data = rows()
    for name in ("fedalc", "fedalc-fixed"):
        told = [METHODS[name]().tell(card, parts(held), b"k" * 32) for card, held in clients(data)]
        assert [tree.nbytes(t) for t in told] == [32 * card.num_examples + 12 for card, _ in clients(data)]
    plain = FEDALC(matching="sha256")
    card, held = clients(data)[0]

    def checksum(method, key):
        return tree.checksum(method.tell(card, parts(held), key))

    assert checksum(plain, b"k" * 32) == checksum(plain, b"o" * 32)
    assert checksum(FEDALC(), b"k" * 32) != checksum(FEDALC(), b"o" * 32)
    assert not METHODS["fedaws"].tells


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedalc", {"lambda_": -1.0}, "lambda_ must be at least 0"),
        ("fedalc", {"neighbours": 0}, "neighbours must be at least 1"),
        ("fedaws", {"nu": 3.0}, r"nu in \(0, 2\]"),
        ("fedaws", {"margin": 0.0}, "margin = 0.0: must be in"),
        ("fedaws", {"row_lr": -0.1}, "row_lr must be at least 0"),
        ("fedalc", {"dp_noise": -1.0}, "noise = -1.0"),
        ("fedalc-fixed", {"row_lr": 0.1}, "does not move rows"),
        ("fedalc-fixed", {"attract": -1.0}, "attract and repel"),
        ("fedalc-fixed", {"rate": 0.0}, "rate above 0"),
        ("fedmlh", {"buckets": 0}, "parts and buckets"),
        ("fedmlh", {"row_lr": 0.1}, "does not move rows"),
    ],
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(ValueError, match=words):
        METHODS[name](**options)
