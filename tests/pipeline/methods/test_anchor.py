"""Anchor: its limits, its loss against NumPy, what it expects, and what it sends.

Oracle: a row y has the loss -log(n_y^gamma p_y / sum_c n_c^gamma p_c), with n_c the client's labels of class c, or 1.
A row without a label has sum_c (p_c - q_c)^2, q the softmax of the model that was sent over the classes that the client
does not identify. Multi-label: a label that is not known has the squared distance to the sent probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from anchorfl.models.heads import BiasedHead
from anchorfl.pipeline.algorithm.contract import Averaging, HeadSpec
from anchorfl.pipeline.methods.anchor import Anchor, expectation
from anchorfl.tasks.contract import Objective
from tests.pipeline import compared
from tests.pipeline.compared import C, D, F, N, arrays, base_loss, elsewhere, encode, softmax

NAMES = torch.randn(C, D, generator=torch.Generator().manual_seed(2))
SHAPES = {"encoder.0.weight": (D, F), "encoder.0.bias": (D,), "head.table": (C, D), "head.bias": (C,)}


@dataclass(frozen=True, kw_only=True)
class Plain(Averaging):
    """FedAvg on the network of Anchor."""

    name = "plain"
    head = HeadSpec(kind="biased")


def named():
    return compared.dense(BiasedHead(NAMES, D))


def logits(w, x_NF):
    rows_CD = w["head.table"]
    return encode(w, x_NF) @ (rows_CD / np.sqrt((rows_CD**2).sum(1, keepdims=True))).T + w["head.bias"]


@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_labels_alone_are_fedavg_on_its_network_bit_for_bit(experiment, task):
    e = experiment("anchor", task, options={"expected": 0.0, "gamma": 0.0})
    of_fedavg = compared.history(replace(e, method=Plain()))
    compared.assert_same_bits(compared.history(e), of_fedavg)
    for part in ({"expected": 1.0, "gamma": 0.0}, *([{"expected": 0.0, "gamma": 1.0}] if task == "toy-single" else [])):
        other = compared.history(experiment("anchor", task, options=part))
        assert any(not torch.equal(other[0][0][name], value) for name, value in of_fedavg[0][0].items())


@pytest.mark.parametrize(("expected", "gamma", "disjoint"), [(1.0, 1.0, True), (0.7, 0.5, False), (0.0, 1.0, True)])
def test_single_label_loss_and_gradient_equal_numpy(expected, gamma, disjoint):
    local, micro_batches = compared.started(Anchor(expected=expected, gamma=gamma, disjoint=disjoint), model=named())
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    count_C = data.y_NC.numpy().sum(0)
    assert (count_C > 0).tolist() == [True, True, False, False]
    q = np.exp(logits(arrays(local.ctx.state.weights), x))
    if disjoint:
        q[:, :2] = 0
    q /= q.sum(1, keepdims=True)
    open_N = data.y_NC.numpy().sum(1) == 0
    assert 0 < open_N.sum() < N
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def whole(w):
        s = logits(w, x)
        rest = (open_N[:, None] * (softmax(s) - q) ** 2).sum() / N
        return base_loss("single", s + gamma * np.log(np.maximum(count_C, 1)), data) + expected * rest

    compared.assert_gradient(local, micro_batches, whole)
    assert bool(local.active(data).all()) == (expected > 0)


@pytest.mark.parametrize("expected", [1.0, 0.4])
def test_multi_label_loss_and_gradient_equal_numpy(expected):
    local, micro_batches = compared.started(Anchor(expected=expected), "multi", model=named())
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    q = 1 / (1 + np.exp(-logits(arrays(local.ctx.state.weights), x)))
    open_NC = data.known_NC.numpy() == 0
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def whole(w):
        s = logits(w, x)
        rest = (open_NC * (1 / (1 + np.exp(-s)) - q) ** 2).sum() / (N * C)
        return base_loss("multi", s, data) + expected * rest

    compared.assert_gradient(local, micro_batches, whole)


def test_a_client_that_identifies_every_class_expects_nothing():
    _, data = compared.rows_of()
    every_C = torch.ones(C, dtype=torch.bool)
    target_NC, open_NC = expectation(torch.randn(N, C).double(), data, every_C, Objective("single"))
    assert not open_NC.any()
    assert target_NC.isfinite().all()


def test_what_is_expected_adds_up_to_one_over_what_can_be():
    _, data = compared.rows_of()
    impossible_C = torch.tensor([True, False, True, False])
    target_NC, open_NC = expectation(torch.randn(N, C).double(), data, impossible_C, Objective("single"))
    assert not target_NC[:, impossible_C].any()
    torch.testing.assert_close(target_NC.sum(1), torch.ones(N).double())
    assert torch.equal(open_NC.any(1), data.known_NC.sum(1) == 0)


def test_the_exact_tensors_on_the_wire():
    compared.assert_wire(Anchor(), model=named, sent=SHAPES)


def test_the_savings_change_no_update():
    compared.assert_savings_agree(Anchor())


@pytest.mark.parametrize("options", [{"expected": -0.1}, {"gamma": float("nan")}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=r"\Amethod\.expected = \S+, method\.gamma = \S+: must be at least 0\Z"):
        Anchor(**options)
