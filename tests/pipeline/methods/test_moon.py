"""MOON: its limit, its contrast against NumPy, what a client remembers, and what it sends.

Oracle, from the paper (Li, He and Song, CVPR 2021, eq. 3): with z the representation of a row by the network that is
trained, z_g that by the server's network of this round and z_p that by the client's own after its last round,

    l_con = -log( e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau)) ),

and the loss of a mini-batch is FedAvg's + mu * mean of l_con over all of its rows; gradients run through z alone.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientContext, ServerState
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.methods.moon import Moon
from anchorfl.pipeline.training.local_training import infer
from anchorfl.tasks.contract import Objective
from tests.pipeline import compared
from tests.pipeline.compared import SHAPES, N, arrays, assert_close, base_loss, elsewhere, encode, gradient, logits

LAST = {"last.0.weight": SHAPES["encoder.0.weight"], "last.0.bias": SHAPES["encoder.0.bias"]}


def remembered(seed=8):
    """Make the memory of a client that has taken part, and the encoder in it under the names of ``dense``."""
    last = elsewhere({k: v for k, v in compared.dense().state_dict().items() if k.startswith("encoder.")}, seed)
    return {f"last.{name.removeprefix('encoder.')}": value for name, value in last.items()}, arrays(last)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_without_its_contrast_it_is_fedavg_bit_for_bit(experiment, task, weighting):
    plain = compared.history(experiment("fedavg", task, options={"weighting": weighting}))
    got = compared.history(experiment("moon", task, options={"mu": 0.0, "weighting": weighting}))
    compared.assert_same_bits(got, plain)


@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_the_first_round_is_fedavg_and_the_second_is_not(experiment, task):
    """Every client is selected, so all of them contrast from round 2 on."""
    everybody = {"federation": {"clients_per_round": 4, "rounds": 2}}
    plain = compared.history(experiment("fedavg", task, **everybody))
    got = compared.history(experiment("moon", task, options={"mu": 1.0}, **everybody))
    compared.assert_same_bits(got[:1], plain[:1])
    assert messages.checksum(got[1][0]) != messages.checksum(plain[1][0])


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_loss_and_gradient_equal_numpy(kind):
    """At weights that are neither the server's nor the last ones; labeled and unlabeled rows all count."""
    memory, last = remembered()
    local, micro_batches = compared.started(Moon(mu=0.8, tau=0.3), kind, memory=memory)
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    sent = arrays(local.ctx.state.weights)
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))

    def cosine(a_ND, b_ND):
        return (a_ND * b_ND).sum(1) / np.sqrt((a_ND**2).sum(1) * (b_ND**2).sum(1))

    def whole(w):
        z = encode(w, x)
        near, far = np.exp(cosine(z, encode(sent, x)) / 0.3), np.exp(cosine(z, encode(last, x)) / 0.3)
        return base_loss(kind, logits(w, x), data) + 0.8 * np.mean(-np.log(near / (near + far)))

    compared.assert_gradient(local, micro_batches, whole)
    assert local.active(data).all()
    if kind == "single":
        assert 0 < int((data.weight_NC != 0).any(-1).sum()) < N  # some rows had no label, or this would prove less


def test_equal_networks_give_log_two_and_no_gradient_of_the_contrast():
    """near = far for every row where the last network is the server's: mu log 2 more loss, the same gradient."""
    same = {f"last.{name}": value for name, value in compared.dense().encoder.state_dict().items()}
    local, micro_batches = compared.started(Moon(mu=0.8), memory=same)
    plain, _ = compared.started(FedAvg())
    for one in (local, plain):
        one.model.load_state_dict(elsewhere(one.ctx.state.weights))
    loss, got = gradient(local, micro_batches)
    loss0, want = gradient(plain, micro_batches)
    assert loss - loss0 == pytest.approx(0.8 * np.log(2), abs=1e-12)
    assert_close(got, want, 1e-14)


def test_a_client_without_a_last_network_has_no_contrast():
    local, micro_batches = compared.started(Moon(mu=0.8))
    plain, _ = compared.started(FedAvg())
    assert gradient(local, micro_batches)[0] == gradient(plain, micro_batches)[0]
    assert torch.equal(local.active(local.ctx.data), plain.active(plain.ctx.data))
    assert not local.active(local.ctx.data).all()


def test_the_round_begins_at_the_weights_that_were_sent():
    """The last encoder passes through the work-space, and neither it nor the broadcast nor the memory changes."""
    memory, _ = remembered()
    state = ServerState(elsewhere(compared.dense().state_dict()))
    before = messages.checksum(state), messages.checksum(memory)
    local, _ = compared.started(Moon(mu=1.0), memory=memory, state=state)
    assert messages.checksum(dict(local.model.state_dict())) == messages.checksum(state.weights)
    assert local.model.training
    compared.fitted(Moon(mu=1.0), memory=memory, state=state)
    assert (messages.checksum(state), messages.checksum(memory)) == before


def test_the_last_encoder_survives_and_clients_that_rest_keep_theirs(experiment):
    """2 of 4 clients take part in a round: the memory of the others stays as it was, empty for those never asked."""
    rounds = compared.history(experiment("moon", options={"mu": 1.0}, federation={"clients_per_round": 2, "rounds": 4}))
    compared.assert_resting_clients_keep(rounds)
    taken = [memory for _, _, memories, _ in rounds for memory in memories.values() if memory]
    assert all(any(k.startswith("last.") for k in memory) for memory in taken)


def test_the_last_encoder_is_the_one_that_was_sent_up():
    """And it does not change with the work-space, which trains the next client."""
    model = compared.dense()
    got = compared.fitted(Moon(mu=1.0), model=model)
    with torch.no_grad():
        model.encoder[0].weight.fill_(3.0)
    for name in LAST:
        assert torch.equal(got.memory[name], got.update.weights[name.replace("last", "encoder")])


def test_inference_draws_from_no_generator():
    """Neither the masks of dropout nor anything else depends on whether there was a last network."""
    model = compared.network(dropout=0.5)
    memory = {f"last.{k}": v + 0.1 for k, v in model.encoder.state_dict().items()}
    card, data = compared.texts()
    model.reseed(torch.Generator().manual_seed(3))
    ctx = ClientContext(
        model.train(), ServerState(weights_of(model)), card, data, memory, Objective("single"),
        compared.PLAIN, infer, torch.Generator().manual_seed(4),
    )  # fmt: skip
    generators = (model.masks.generator, ctx.rng, torch.default_generator)
    before = [g.get_state() for g in generators]
    local = Moon(mu=1.0).trainer(ctx)
    assert local.sent_ND is not None
    assert all(torch.equal(g.get_state(), old) for g, old in zip(generators, before, strict=True))


def test_a_tiny_contrast_trains_under_the_masks_of_fedavg():
    """Dropout 0.5, every row computed: with other masks the two would be far apart, as with another seed."""
    plain = compared.trained(FedAvg(), compared.PLAIN, dropout=0.5)
    assert compared.gap(compared.trained(Moon(mu=1e-12), compared.PLAIN, dropout=0.5), plain) < 1e-6
    assert compared.gap(compared.trained(Moon(mu=1.0), compared.PLAIN, dropout=0.5), plain) > 1e-3


def test_the_exact_tensors_on_the_wire():
    for memory in (None, remembered()[0]):  # the last encoder never leaves the client
        compared.assert_wire(Moon(), LAST, memory=memory)


def test_the_savings_change_no_update():
    """Two rounds: the second one contrasts, on labeled and unlabeled rows."""
    compared.assert_savings_agree(Moon(mu=1.0))


@pytest.mark.parametrize(("options", "message"), [({"mu": -1.0}, "mu = -1.0"), ({"tau": 0.0}, "tau = 0.0")])
def test_bad_options_are_refused(options, message):
    with pytest.raises(
        ValueError, match=r"\Amethod\.mu = \S+ must be at least 0, method\.tau = \S+ above 0\Z"
    ) as error:
        Moon(**options)
    assert message in str(error.value)
