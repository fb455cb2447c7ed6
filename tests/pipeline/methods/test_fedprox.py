"""FedProx: its limit, its client against NumPy, and what it sends.

Oracle, from the paper (Li et al., MLSys 2020, eq. 2): client k minimises h(w) = F_k(w) + mu/2 |w - w_t|^2, where w_t is
what it was sent and stays fixed in the round; so a step of plain SGD is w <- w - lr (dF_k/dw + mu (w - w_t)).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.heads import LinearHead
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.methods.fedprox import FedProx
from tests.pipeline import compared
from tests.pipeline.compared import arrays, assert_close, base_loss, elsewhere, gradient, logits, slope


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_without_its_pull_it_is_fedavg_bit_for_bit(experiment, task, weighting):
    plain = compared.history(experiment("fedavg", task, options={"weighting": weighting}))
    compared.assert_same_bits(
        compared.history(experiment("fedprox", task, options={"mu": 0.0, "weighting": weighting})), plain
    )
    pulled = compared.history(experiment("fedprox", task, options={"mu": 0.1, "weighting": weighting}))
    assert any(not torch.equal(pulled[0][0][name], value) for name, value in plain[0][0].items())


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_loss_and_gradient_equal_numpy(kind):
    """h(w) at a w that is not w_t, its gradient by differences; the batch comes in two pieces, the pull once."""
    local, micro_batches = compared.started(FedProx(mu=0.7), kind)
    sent = arrays(local.ctx.state.weights)
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))
    data, x = local.ctx.data, local.ctx.data.x.numpy()

    def h(w):
        pull = sum(((w[name] - sent[name]) ** 2).sum() for name in w)
        return base_loss(kind, logits(w, x), data) + 0.7 / 2 * pull

    compared.assert_gradient(local, micro_batches, h)
    at = arrays(local.model.state_dict())
    _, alone = gradient(local, [])  # a mini-batch without a labeled row is pulled as well
    assert_close(alone, {name: 0.7 * (at[name] - sent[name]) for name in at}, 1e-14)


def test_a_round_of_plain_sgd_equals_numpy():
    """3 epochs of one mini-batch each; w_t stays where it was while w moves."""
    options = replace(compared.WHOLE, lr=0.2)
    got = compared.fitted(FedProx(mu=0.5), options=options, epochs=3)
    _, data = compared.rows_of()
    sent = arrays(compared.dense().state_dict())
    w = arrays(compared.dense().state_dict())
    for _ in range(3):
        g = slope(lambda at: base_loss("single", logits(at, data.x.numpy()), data), w)
        w = {name: value - 0.2 * (g[name] + 0.5 * (value - sent[name])) for name, value in w.items()}
    assert_close(arrays(got.update.weights), w, 1e-8)
    free = arrays(compared.fitted(FedAvg(), options=options, epochs=3).update.weights)
    away = {name: np.abs(free[name] - sent[name]).sum() for name in sent}
    assert sum(np.abs(w[name] - sent[name]).sum() for name in sent) < sum(away.values())


def test_buffers_are_not_pulled():
    """A running mean far from the one that was sent changes no loss: the pull is on parameters alone."""
    model = Classifier(nn.BatchNorm1d(3), LinearHead(3, 2), MaskSource())
    local, _ = compared.started(FedProx(mu=1.0))
    local.model = model
    local.ctx.state.weights.update({name: value.clone() for name, value in model.state_dict().items()})
    model.encoder.running_mean.fill_(100.0)
    assert float(local.penalty().detach()) == 0.0


def test_the_exact_tensors_on_the_wire():
    compared.assert_wire(FedProx())


def test_the_savings_change_no_update():
    compared.assert_savings_agree(FedProx(mu=0.5))


@pytest.mark.parametrize("mu", [-1e-9, float("nan")])
def test_a_bad_pull_is_refused(mu):
    with pytest.raises(ValueError, match=rf"\Amethod\.mu = {mu}: must be at least 0\Z"):
        FedProx(mu=mu)
