"""FedROD: its limit, both heads against NumPy, and what stays at home.

Oracle, from the paper (Chen and Chao, ICLR 2022): body and generic head minimise
-log( n_y^gamma e^(g_y) / sum_c n_c^gamma e^(g_c) ), n_c the client's number of samples of class c, here at least 1. The
personal head H minimises the cross-entropy of g + H z, in which g and z are constants. The server takes the mean of
body and generic head, and scores are by g.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.methods.fedrod import FedROD
from tests.pipeline import compared
from tests.pipeline.compared import C, D, arrays, assert_close, base_loss, elsewhere, encode, logits, slope

WHOLE = replace(compared.WHOLE, lr=0.2)
OWN = {"personal_head.head.weight": (C, D), "personal_head.head.bias": (C,)}


def some_head(seed=8):
    rng = np.random.default_rng(seed)
    return {name: torch.from_numpy(rng.normal(size=shape)) for name, shape in OWN.items()}


def balanced(w, data):
    """Compute the generic loss of all rows as one mini-batch, gamma 1."""
    shift_C = np.log(np.maximum(data.y_NC.numpy().sum(0), 1))
    return base_loss("single", logits(w, data.x.numpy()) + shift_C, data)


def personal(own, w, data):
    """Compute the loss of the personal head, by its own weights alone."""
    x = data.x.numpy()
    return base_loss(
        "single", logits(w, x) + encode(w, x) @ own["personal_head.head.weight"].T + own["personal_head.head.bias"],
        data,
    )  # fmt: skip


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_the_counts_what_is_sent_is_fedavgs_bit_for_bit(experiment, weighting):
    """Though the personal heads are trained all the while."""
    plain = compared.history(experiment("fedavg", options={"weighting": weighting}))
    got = compared.history(experiment("fedrod", options={"gamma": 0.0, "weighting": weighting}))
    compared.assert_same_bits(got, plain)
    assert all(float(m["personal_head.head.weight"].abs().max()) > 0 for m in got[-1][2].values() if m)
    counted = compared.history(experiment("fedrod"))
    assert any(not torch.equal(counted[0][0][name], value) for name, value in plain[0][0].items())


def test_the_personal_head_has_no_influence_on_what_is_sent():
    """Zeros or any other: the same bits, the same loss."""
    plain, other = (compared.fitted(FedROD(), memory=m) for m in ({}, some_head()))
    assert messages.checksum(plain.update) == messages.checksum(other.update)
    assert plain.loss == other.loss
    assert not torch.equal(plain.memory["personal_head.head.weight"], other.memory["personal_head.head.weight"])


def test_loss_and_both_gradients_equal_numpy():
    """At weights that are not those sent; two of the four classes have no sample here."""
    local, micro_batches = compared.started(FedROD(), memory=some_head())
    data = local.ctx.data
    assert (data.y_NC.sum(0) > 0).tolist() == [True, True, False, False]
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))
    at, own = arrays(local.model.state_dict()), arrays(some_head())
    compared.assert_gradient(local, micro_batches, lambda w: balanced(w, data))
    mine = {f"personal_head.{name}": p.grad.numpy() for name, p in local.personal_head.items()}
    assert_close(mine, slope(lambda o: personal(o, at, data), own), 1e-8)


def test_two_rounds_equal_numpy():
    """Plain SGD at one rate for both; the second round begins with the head of the first. The head sees the logits from
    before the step of the body.
    """
    data, memory, state = compared.rows_of()[1], {}, None
    own = {name: np.zeros(shape) for name, shape in OWN.items()}
    sent = arrays(compared.dense().state_dict())
    for round_ in (1, 2):
        got = compared.fitted(FedROD(), options=WHOLE, memory=memory, state=state, round_=round_)
        w = dict(sent)
        for _ in range(2):
            g, h = slope(lambda at: balanced(at, data), w), slope(lambda o, w=w: personal(o, w, data), own)
            w = {name: w[name] - 0.2 * g[name] for name in w}
            own = {name: own[name] - 0.2 * h[name] for name in own}
        assert_close(arrays(got.update.weights), w, 1e-7)
        memory = got.memory
        assert_close({name: memory[name].numpy() for name in OWN}, own, 1e-7)


def test_the_personal_head_goes_by_plain_sgd_whatever_the_body_goes_by():
    """Adam, decay and momentum are the body's."""
    data, sent = compared.rows_of()[1], arrays(compared.dense().state_dict())
    zeros = {name: np.zeros(shape) for name, shape in OWN.items()}
    step = {name: -0.2 * g for name, g in slope(lambda o: personal(o, sent, data), zeros).items()}
    for options in (replace(WHOLE, momentum=0.9, weight_decay=0.1), replace(WHOLE, name="adam", weight_decay=0.1)):
        got = compared.fitted(FedROD(), options=options, epochs=1)
        assert_close({name: got.memory[name].numpy() for name in OWN}, step, 1e-8)
    decayed = compared.fitted(FedROD(), options=replace(WHOLE, lr_decay=0.5), epochs=1, round_=3)
    assert_close({name: decayed.memory[name].numpy() for name in OWN}, {n: s / 4 for n, s in step.items()}, 1e-8)


def test_a_mini_batch_without_a_labeled_row_leaves_the_personal_head():
    local, micro_batches = compared.started(FedROD(), memory=some_head())
    local.step(micro_batches)
    before = {name: value.detach().clone() for name, value in local.personal_head.items()}
    local.step([])
    assert all(torch.equal(before[name], value) for name, value in local.personal_head.items())


def test_heads_of_clients_that_rest_stay(experiment):
    rounds = compared.history(experiment("fedrod", federation={"clients_per_round": 2, "rounds": 4}))
    compared.assert_resting_clients_keep(rounds)


def test_scores_are_by_the_generic_head(experiment):
    compared.assert_scored_as_fedavg(experiment, "fedrod")


def test_the_exact_tensors_on_the_wire():
    """FedAvg's; the personal head stays with the client."""
    compared.assert_wire(FedROD(), OWN)


def test_the_savings_change_no_update():
    compared.assert_savings_agree(FedROD())


@pytest.mark.parametrize("gamma", [-0.1, float("nan")])
def test_a_bad_power_is_refused(gamma):
    with pytest.raises(ValueError, match=rf"\Amethod\.gamma = {gamma}: must be at least 0\Z"):
        FedROD(gamma=gamma)
