"""Rows that the server pushes apart: regularizer, label correlations and fixed rows, each against its sum as written.

Shape suffixes: N rows, C classes, K neighbours, D width.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from anchorfl.pipeline.algorithm import differential_privacy
from anchorfl.pipeline.algorithm.class_embeddings import CLASS_ROWS
from anchorfl.pipeline.algorithm.cooccurrence import LabelCooccurrence
from anchorfl.pipeline.algorithm.spreadout import fixed_gradient, gradient, nearest_rows, slope
from anchorfl.pipeline.methods import METHODS
from tests.pipeline.compared import assert_close
from tests.pipeline.compared import slope as differences
from tests.pipeline.one_class import begun, clients, explicit, network, rows, server

FEDALC = METHODS["fedalc"]


def unit_rows(count=7, width=4, seed=0):
    w = np.random.default_rng(seed).normal(size=(count, width))
    return w / np.linalg.norm(w, axis=1, keepdims=True)


# ----------------------------------------------------------------------------------------------------------- the server


@pytest.mark.parametrize(("form", "nu"), [("neg_d2", 1.0), ("hinge_adaptive", 1.0), ("hinge_const", 1.3)])
@pytest.mark.parametrize("k", [1, 3, 5, 6, 50])
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
    index_CK, cosine_CK, after_C = nearest_rows(rows_CD, k)
    assert index_CK.tolist() == [row[:k_] for row in near]
    slope_CK = torch.from_numpy(np.take_along_axis(weight, index_CK.numpy(), 1)) * slope(form, cosine_CK, after_C, nu)
    assert_close({"w": gradient(rows_CD, index_CK, slope_CK)}, differences(total, {"w": w}), 1e-8)


def test_an_adaptive_hinge_pushes_the_neighbours_and_nobody_else():
    w = torch.from_numpy(unit_rows(30, 4))
    for k in (1, 5, 12):
        index_CK, cosine_CK, after_C = nearest_rows(w, k)
        assert (slope("hinge_adaptive", cosine_CK, after_C, 1.0) > 0).all()
        beyond = torch.ones(30, 30, dtype=torch.bool).scatter(1, index_CK, False).fill_diagonal_(False)
        active = slope("hinge_adaptive", w @ w.T, after_C, 1.0) > 1e-12
        assert not (active & beyond).any()


def test_neighbours_are_exact_whatever_the_blocks(monkeypatch):
    w = torch.from_numpy(unit_rows(50, 6))
    whole = nearest_rows(w, 5)
    monkeypatch.setattr("anchorfl.pipeline.algorithm.spreadout.ROWS_PER_BLOCK", 7)
    for one, other in zip(nearest_rows(w, 5), whole, strict=True):
        assert torch.allclose(one.double(), other.double(), atol=1e-15)
    similar = (w @ w.T).fill_diagonal_(-2)
    assert whole[0].tolist() == similar.argsort(1, descending=True)[:, :5].tolist()


def test_rows_move_apart_and_those_of_classes_that_go_together_less():
    """Rows 0 and 1 are as close to each other as rows 2 and 3; only 0 and 1 share instances."""
    y_NC = np.zeros((40, 4), dtype=bool)
    y_NC[:10, 0] = y_NC[:10, 1] = True
    y_NC[10:20, 0] = y_NC[20:30, 2] = y_NC[30:, 3] = y_NC[10:12, 1] = True
    cooccurrence = cooccurrence_of(y_NC)
    angle = torch.tensor([0.0, 0.3, np.pi, np.pi + 0.3], dtype=torch.float64)
    w = torch.stack([angle.cos(), angle.sin()], 1)
    method = FEDALC(weights="gamma", regularizer="neg_d2", neighbours=1, lambda_=2.0, eta_s=0.5)
    state = SimpleNamespace(cooccurrence=cooccurrence, moments={})
    apart, _ = method.update_class_rows(w, state, SimpleNamespace(round=1))
    before, after = w @ w.T, apart @ apart.T
    assert after[0, 1] < before[0, 1]
    assert after[2, 3] < after[0, 1] - 1e-3


def moved(method, w, rounds=1):
    """Rows after some server steps, from the state before round 1 on."""
    state = SimpleNamespace(weights={CLASS_ROWS: torch.from_numpy(w)}, moments={}, cooccurrence=None)
    ctx = server(network(), [card for card, _ in clients(rows())])
    state.moments = method._first_moments(state, ctx)
    rows_CD = torch.from_numpy(w)
    for round_ in range(1, rounds + 1):
        rows_CD, state.moments = method.update_class_rows(rows_CD, state, SimpleNamespace(round=round_))
    return rows_CD.numpy()


def pushed(w, k=3):
    """Gradient of -d^2 over every row's k nearest, in NumPy, and its steps' unit rows."""
    cosine = w @ w.T
    total = np.zeros_like(w)
    for u in range(len(w)):
        for j in sorted((j for j in range(len(w)) if j != u), key=lambda j: -cosine[u, j])[:k]:
            total[u] += 2 * (1 - cosine[u, j]) * w[j]
            total[j] += 2 * (1 - cosine[u, j]) * w[u]
    return total


def normalized(w):
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def test_adam_on_rows_is_adams_and_no_lambda_moves_it():
    """Three rounds with bias-corrected moments in NumPy; lambda scales the gradient, and drops out of the step."""
    w, m, v = unit_rows(), 0.0, 0.0
    for t in (1, 2, 3):
        g = 7.0 * pushed(w)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = normalized(w - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8))
    options = {"spread_optimizer": "adam", "eta_s": 0.01, "neighbours": 3}
    got = moved(METHODS["fedaws"](lambda_=7.0, **options), unit_rows(), rounds=3)
    assert np.abs(got - w).max() < 1e-12
    assert np.abs(got - moved(METHODS["fedaws"](lambda_=700.0, **options), unit_rows(), rounds=3)).max() < 1e-6


def test_a_round_in_small_steps_finds_the_neighbours_anew():
    """Four steps at a fourth of the rate, each from where the last one ended."""
    w = unit_rows()
    for _ in range(4):
        w = normalized(w - 3.0 * 0.1 / 4 * pushed(w))
    options = {"lambda_": 3.0, "eta_s": 0.1, "neighbours": 3}
    assert np.abs(moved(METHODS["fedaws"](spread_steps=4, **options), unit_rows()) - w).max() < 1e-12
    assert np.abs(moved(METHODS["fedaws"](**options), unit_rows()) - w).max() > 1e-3


def test_a_cap_shortens_the_long_changes_and_leaves_the_others():
    w, cap = unit_rows(), 0.9
    change = -0.1 * 3.0 * pushed(w)
    length = np.linalg.norm(change, axis=1, keepdims=True)
    assert (length > cap).any()
    assert (length < cap).any()
    want = normalized(w + change * np.minimum(1, cap / length))
    options = {"lambda_": 3.0, "eta_s": 0.1, "neighbours": 3}
    assert np.abs(moved(METHODS["fedaws"](spread_cap=cap, **options), w) - want).max() < 1e-12


@pytest.mark.parametrize("lambda_", [0.0, 5.0])
def test_a_state_has_the_same_tensors_in_every_round(lambda_):
    """Also where lambda is 0 and no step is taken: a checkpoint is filled into the state before round 1."""
    method, model = METHODS["fedaws"](lambda_=lambda_, spread_optimizer="adam", neighbours=2), network()
    state, cards = begun(method, model, rows())
    after = method.finish_round(state, state.weights, state.sent_C, server(model, cards))
    assert list(after.moments) == list(state.moments)
    assert any(name.startswith("rows.") for name in state.moments)


def test_small_steps_with_differential_privacy_are_refused():
    with pytest.raises(ValueError, match=r"method\.spread_steps: the privacy of dp_noise is counted for one step"):
        FEDALC(dp_noise=1.0, spread_steps=2)


@pytest.mark.parametrize("block", [2, 100])
def test_a_private_direction_is_the_gradient_with_noise_of_the_clip(monkeypatch, block):
    """With next to no noise and a clip that nothing reaches it is the gradient; else noise is what is added."""
    monkeypatch.setattr("anchorfl.pipeline.methods.fedalc.ROWS_PER_BLOCK", block)
    rows_CD = torch.from_numpy(unit_rows())
    index_CK, cosine_CK, after_C = nearest_rows(rows_CD, 3)
    slope_CK = slope("neg_d2", cosine_CK, after_C, 1.0)
    ctx = server(network(), [card for card, _ in clients(rows())])
    plain_CD = gradient(rows_CD, index_CK, slope_CK)
    assert torch.equal(FEDALC().direction(rows_CD, index_CK, slope_CK, ctx), plain_CD)
    monkeypatch.setattr(differential_privacy, "LEAST_NOISE", 0.0)
    private_CD = FEDALC(dp_noise=1e-12, dp_clip=1e3).direction(rows_CD, index_CK, slope_CK, ctx)
    assert torch.allclose(private_CD, plain_CD, rtol=0, atol=1e-7)
    noisy_CD = FEDALC(dp_noise=2.0, dp_clip=1e3).direction(rows_CD, index_CK, slope_CK, ctx)
    assert 1000 < float((noisy_CD - plain_CD).std()) < 4000


# --------------------------------------------------------------------------------------------------- label correlations


def cooccurrence_of(y_NC):
    counts = y_NC.T.astype(np.int64) @ y_NC.astype(np.int64)
    return LabelCooccurrence.from_counts(sparse.csr_array(counts), len(y_NC))


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
    index_CK, _, _ = nearest_rows(torch.from_numpy(unit_rows(6, 3)), 3)
    want = np.take_along_axis(sigma, index_CK.numpy(), 1)
    if weights == "gamma":
        want = want / sigma.sum(1, keepdims=True)
    elif weights == "mined":
        want = want / want.mean(1, keepdims=True)
    got = FEDALC(weights=weights).pair_weights(index_CK, cooccurrence_of(y_NC))
    assert np.abs(got.numpy() - want).max() < 1e-6
    assert sigma[5, 4] == 0


def test_a_class_that_is_always_with_its_neighbours_pushes_nobody():
    y_NC = np.ones((5, 3), dtype=bool)
    index_CK, _, _ = nearest_rows(torch.from_numpy(unit_rows(3, 3)), 2)
    for weights in ("mined", "gamma", "sigma"):
        assert FEDALC(weights=weights).pair_weights(index_CK, cooccurrence_of(y_NC)).tolist() == [[0, 0]] * 3


def test_without_any_pair_of_labels_all_weights_are_one():
    index_CK, _, _ = nearest_rows(torch.from_numpy(unit_rows(5, 3)), 2)
    assert FEDALC().pair_weights(index_CK, cooccurrence_of(np.eye(5, dtype=bool))).tolist() == [[1, 1]] * 5


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

    monkeypatch.setattr("anchorfl.pipeline.algorithm.spreadout.ROWS_PER_BLOCK", 2)
    value, total_CD = fixed_gradient(torch.from_numpy(w), cooccurrence_of(y_NC), alpha, beta, nu)
    assert value == pytest.approx(eq_12({"w": w}), abs=1e-12)
    assert_close({"w": total_CD}, differences(eq_12, {"w": w}), 1e-8)


def test_rare_labels_weigh_as_much_as_frequent_ones():
    """Ten times as many rows without a label of these, or each row ten times, give the same value and gradient."""
    w, y_NC = torch.from_numpy(unit_rows(5)), np.zeros((4, 5), dtype=bool)
    y_NC[[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]] = True  # one pair of ten occurs together, once
    value, grad_CD = fixed_gradient(w, cooccurrence_of(y_NC), 2.0, 3.0, 1.2)
    often, often_CD = fixed_gradient(w, cooccurrence_of(np.tile(y_NC, (10, 1))), 2.0, 3.0, 1.2)
    assert value == pytest.approx(often, rel=1e-9)
    assert torch.allclose(grad_CD, often_CD, rtol=1e-9)


@pytest.mark.parametrize("lr", [0.01, 1.0, 1e4])
def test_fixed_rows_are_found_whatever_the_first_rate(lr):
    """A step that would raise the value is not taken, and the rate halved."""
    state, _ = begun(METHODS["fedalc-fixed"](steps=60, lr=lr, tolerance=0.0), network(), rows())
    random = network().get_parameter(CLASS_ROWS).detach()
    start, end = (fixed_gradient(w, state.cooccurrence, 1.0, 1.0, 1.0)[0] for w in (random, state.weights[CLASS_ROWS]))
    assert end < 0.8 * start


def test_no_step_leaves_the_random_rows():
    state, _ = begun(METHODS["fedalc-fixed"](steps=0), network(), rows())
    assert torch.equal(state.weights[CLASS_ROWS], network().get_parameter(CLASS_ROWS))


def test_fixed_rows_are_found_before_round_1_and_stay():
    method = METHODS["fedalc-fixed"](steps=50)
    state, _ = begun(method, network(), rows())
    random = network().get_parameter(CLASS_ROWS).detach()
    start, _ = fixed_gradient(random, state.cooccurrence, 1.0, 1.0, 1.0)
    end, _ = fixed_gradient(state.weights[CLASS_ROWS], state.cooccurrence, 1.0, 1.0, 1.0)
    assert end < 0.8 * start
    later = explicit(method, rows(), 2)
    assert torch.equal(later[-1][0].weights[CLASS_ROWS], state.weights[CLASS_ROWS])
