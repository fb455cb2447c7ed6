"""Losses against NumPy derivations with loops over rows and classes.

single: loss = -1/n sum_i sum_c known y strength log softmax(logits_i)_c, softmax over ALL classes.
multi:  loss = 1/(n C) sum_i sum_c w_ic (-y log s - (1 - y) log(1 - s)), s = sigmoid(logit),
        w_ic = known (y neg_c + (1 - y) pos_c) / (pos_c + neg_c) strength,
        pos_c, neg_c = 1 + known positives / negatives;
        plain: w_ic = known strength.
n is the size of the mini-batch, also where only some of its rows are given.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.tasks.contract import Batch, Objective

QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SINGLE = Objective("single")
KINDS = [SINGLE, Objective("multi"), Objective("multi", class_balanced=False)]


def single_case(seed, rows, classes):
    """One-hot labels; about half of the rows unlabeled (known nowhere, no label)."""
    rng = np.random.default_rng(seed)
    given_N1 = rng.random((rows, 1)) < 0.5
    y = np.eye(classes)[rng.integers(classes, size=rows)] * given_N1
    return (
        rng.normal(size=(rows, classes)) * 3,
        y,
        np.repeat(given_N1, classes, 1) * 1.0,
        rng.random((rows, classes)) * 2,
    )


def multi_case(seed, rows, classes):
    rng = np.random.default_rng(seed)
    known = (rng.random((rows, classes)) < 0.6) * 1.0
    y = (rng.random((rows, classes)) < 0.4) * known
    return rng.normal(size=(rows, classes)) * 3, y, known, rng.random((rows, classes)) * 2


def by_hand(kind, logits, y, known, strength, n, balanced=True):
    rows, classes = logits.shape
    total = 0.0
    for i in range(rows):
        if kind == "single":
            log_sum = math.log(sum(math.exp(v) for v in logits[i]))
            total += sum(known[i, c] * y[i, c] * strength[i, c] * (log_sum - logits[i, c]) for c in range(classes))
            continue
        for c in range(classes):
            s = 1 / (1 + math.exp(-logits[i, c]))
            entry = -math.log(s) if y[i, c] else -math.log(1 - s)
            pos = 1 + sum(known[k, c] * y[k, c] for k in range(rows))
            neg = 1 + sum(known[k, c] * (1 - y[k, c]) for k in range(rows))
            share = (neg if y[i, c] else pos) / (pos + neg) if balanced else 1
            total += known[i, c] * share * strength[i, c] * entry
    return total / n if kind == "single" else total / (n * classes)


def tensors(*arrays):
    return [torch.from_numpy(np.asarray(a)) for a in arrays]


def batch_of(x, y_BC, known_BC, weight_BC, denominator):
    return Batch(x, y_BC, known_BC, weight_BC, denominator, torch.arange(len(y_BC)))


@pytest.mark.parametrize("objective", KINDS, ids=["single", "balanced", "plain"])
@QUICK
@given(st.integers(0, 2**32))
def test_loss_equals_the_derivation(objective, seed):
    rows, classes, more = (int(n) for n in np.random.default_rng(seed).integers((1, 2, 0), (8, 6, 10)))
    logits, y, known, strength = (single_case if objective.kind == "single" else multi_case)(seed, rows, classes)
    l_, y_, k_, s_ = tensors(logits, y, known, strength)
    batch = batch_of(l_, y_, k_, objective.weights(y_, k_, s_), rows + more)
    want = by_hand(objective.kind, logits, y, known, strength, rows + more, objective.class_balanced)
    assert float(objective.loss(l_, batch)) == pytest.approx(want, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("objective", KINDS, ids=["single", "balanced", "plain"])
def test_losses_of_pieces_add_up_to_the_whole(objective):
    logits, y, known, _ = (single_case if objective.kind == "single" else multi_case)(3, 10, 4)
    l_, y_, k_ = tensors(logits, y, known)
    w_ = objective.weights(y_, k_)
    whole = objective.loss(l_, batch_of(l_, y_, k_, w_, 10))
    cut = [
        objective.loss(l_[p], batch_of(l_[p], y_[p], k_[p], w_[p], 10))
        for p in (slice(0, 3), slice(3, 4), slice(4, 10))
    ]
    assert float(sum(cut)) == pytest.approx(float(whole), rel=1e-12)


def test_an_unlabeled_row_adds_nothing_but_counts_in_the_mean():
    """log 2 for one row of two equal logits; beside an unlabeled row the mean is half of it."""
    y, known = torch.tensor([[1.0, 0], [0, 0]]), torch.tensor([[1.0, 1], [0, 0]])
    weight = SINGLE.weights(y, known)
    logits = torch.tensor([[0.0, 0], [5, -7]], requires_grad=True)
    loss = SINGLE.loss(logits, batch_of(logits, y, known, weight, 2))
    assert float(loss.detach()) == pytest.approx(math.log(2) / 2)
    loss.backward()
    assert logits.grad[1].tolist() == [0, 0]
    assert logits.grad[0].tolist() == pytest.approx([-0.25, 0.25])


def test_an_unknown_entry_has_neither_loss_nor_gradient():
    objective = Objective("multi")
    y, known = torch.tensor([[1.0, 0], [0, 0]]), torch.tensor([[1.0, 0], [1, 1]])
    logits = torch.zeros(2, 2, requires_grad=True)
    objective.loss(logits, batch_of(logits, y, known, objective.weights(y, known), 2)).backward()
    assert (logits.grad != 0).tolist() == [[True, False], [True, True]]


def test_balanced_weights_by_hand():
    """Class 0 has 1 positive and 3 negatives known: pos 2, neg 4, so a positive weighs 4/6 and a negative 2/6.
    Class 1 has 1 negative known: pos 1, neg 2, so it weighs 1/3."""
    y = torch.tensor([[1.0, 0], [0, 0], [0, 0], [0, 0]])
    known = torch.tensor([[1.0, 0], [1, 1], [1, 0], [1, 0]])
    got = Objective("multi").weights(y, known)
    assert np.allclose(got, [[4 / 6, 0], [2 / 6, 1 / 3], [2 / 6, 0], [2 / 6, 0]])
    assert torch.equal(Objective("multi", class_balanced=False).weights(y, known), known)


@pytest.mark.parametrize("objective", KINDS, ids=["single", "balanced", "plain"])
def test_alpha_scales_entries_and_never_the_counts(objective):
    """pos and neg count pseudo-labels whole, whatever alpha is (fedalign.md: pseudo-labels included)."""
    _, y, known, _ = (single_case if objective.kind == "single" else multi_case)(5, 8, 3)
    y_, k_ = tensors(y, known)
    strength = torch.ones(8, 3, dtype=torch.float64)
    strength[2:5, 1] = 0.25
    assert torch.allclose(objective.weights(y_, k_, strength), objective.weights(y_, k_) * strength)
    assert torch.allclose(objective.weights(y_, k_, 0.5), objective.weights(y_, k_) * 0.5)


@pytest.mark.parametrize("objective", KINDS, ids=["single", "balanced", "plain"])
def test_large_logits_stay_finite(objective):
    y, known = torch.tensor([[1.0, 0, 0]]), torch.ones(1, 3)
    logits = torch.tensor([[-1e4, 1e4, 0.0]])
    loss = objective.loss(logits, batch_of(logits, y, known, objective.weights(y, known), 1))
    assert loss.isfinite()
    assert float(loss) > 1000


def test_scores_and_decisions():
    logits = torch.tensor([[1.0, 1.0, -2.0], [0.0, -1.0, 3.0]])
    softmax = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    assert np.allclose(SINGLE.scores(logits), softmax)
    assert np.allclose(Objective("multi").scores(logits), 1 / (1 + np.exp(-logits.numpy())))
    assert SINGLE.predict(logits).tolist() == [[1, 0, 0], [0, 0, 1]]  # of equals the first
    assert Objective("multi").predict(logits).tolist() == [[1, 1, 0], [0, 0, 1]]  # sigmoid(0) = 0.5 is no positive
