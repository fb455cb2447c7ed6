"""``fit`` is a pure function of what it is given and refuses what is not finite; inference keeps the order of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn

from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import Dropout, MaskSource
from anchorfl.models.heads import LinearHead
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import AveragingTrainer, ServerState
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.algorithm.seeds import torch_rng
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.training import local_training
from anchorfl.pipeline.training.local_training import TrainingSpec, UpdateError, fit, infer
from anchorfl.tasks.contract import Card, ClientData
from tests.pipeline.ragged import METHODS, PLAIN, SAVINGS, SINGLE, client, images, network, state_of


def once(method, model, who, state, memory, round_=2, options=SAVINGS["both"], seed=5):
    card, data = client(who)
    return fit(TrainingSpec(method, SINGLE, options, 2, seed), model, card, data, state, memory, round_)


def digest(fitted):
    return messages.checksum(fitted.update), messages.checksum(fitted.memory), fitted.loss


@pytest.mark.parametrize("name", METHODS)
def test_fit_is_a_pure_function(name):
    """Twice the same bits on a work-space that the first call left dirty; arguments unchanged; clients in any order."""
    method = METHODS[name]
    model = network(method, dropout=0.5)
    state = state_of(method, model)
    memory = once(method, model, 0, state, {}, round_=1).memory
    before = messages.checksum(state), messages.checksum(memory)
    a0, a1 = once(method, model, 0, state, memory), once(method, model, 1, state, {})
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(77)  # no draw comes from the global generator
        b1, b0 = once(method, model, 1, state, {}), once(method, model, 0, state, memory)
    assert digest(a0) == digest(b0)
    assert digest(a1) == digest(b1)
    assert before == (messages.checksum(state), messages.checksum(memory))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(3)  # whatever happens to the work-space reaches neither what was given nor what was returned
    assert before == (messages.checksum(state), messages.checksum(memory))
    assert digest(a0) == digest(b0)


def test_round_seed_and_memory_matter():
    method = FedAvg()
    model = network(method, dropout=0.5)
    state = state_of(method, model)
    base = once(method, model, 0, state, {})
    others = [
        once(method, model, 0, state, {}, round_=3),
        once(method, model, 0, state, {}, seed=6),
        once(method, model, 0, state, base.memory),
    ]
    assert len({digest(f)[0] for f in [base, *others]}) == 4


class Counting(AveragingTrainer):
    def memory(self):
        return super().memory() | {"rounds": 3}


class Counts(FedAvg):
    def trainer(self, ctx):
        return Counting(ctx)


def test_what_a_client_keeps_is_tensors():
    method = Counts()
    model = network(method)
    with pytest.raises(TypeError, match=r"^memory\(\) of Counting: 'rounds' is of the type int, and no tensor$"):
        once(method, model, 0, state_of(method, model), {})


class Noting(AveragingTrainer):
    """Remembers the rows of its mini-batches, in order, and what dropout makes of the first ones."""

    seen: ClassVar[list] = []

    def step(self, micro_batches):
        for batch in micro_batches:
            masked = self.model(torch.ones_like(batch.x[:1]))[0].detach() if len(self.seen) == 0 else None
            self.seen.append((batch.x[:, 0].tolist(), None if masked is None else masked.tolist()))
        return super().step(micro_batches)


class NotingAvg(FedAvg):
    def trainer(self, ctx):
        Noting.seen.clear()
        return Noting(ctx)


def noted(client_=0, round_=2, seed=5):
    """Return the order of a client's rows, and its first dropout mask."""
    x = torch.arange(40.0)[:, None].expand(40, 3).clone()
    y = torch.eye(2)[torch.arange(40) % 2]
    data = ClientData(x, y, torch.ones(40, 2), y)
    card = Card(client_, 40, y.sum(0).long(), torch.ones(2).bool())
    masks = MaskSource()
    model = Classifier(nn.Sequential(nn.Linear(3, 64), Dropout(0.5, masks)), LinearHead(64, 2), masks)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
    state = ServerState(weights_of(model))
    fit(TrainingSpec(NotingAvg(), SINGLE, PLAIN, 1, seed), model, card, data, state, {}, round_)
    return tuple(row for rows, _ in Noting.seen for row in rows), tuple(Noting.seen[0][1])


def test_order_and_dropout_masks_are_new_for_every_client_round_and_seed():
    """All rows once, and the same again for the same client, round and seed."""
    base = noted()
    assert base == noted()
    assert sorted(base[0]) == list(range(40))
    others = [base, noted(client_=1), noted(round_=3), noted(seed=6)]
    assert len({order for order, _ in others}) == 4
    assert len({mask for _, mask in others}) == 4


def test_what_is_drawn_for_one_purpose_says_nothing_of_another(monkeypatch):
    """Order, dropout masks, crops and the method's own draws of two clients in two rounds: 16 seeds."""
    made = []
    monkeypatch.setattr(
        local_training, "torch_rng", lambda *names, **on: made.append(torch_rng(*names, **on)) or made[-1]
    )
    for who in (0, 1):
        for round_ in (1, 2):
            once(FedAvg(), network(FedAvg()), who, state_of(FedAvg(), network(FedAvg())), {}, round_)
    assert len(made) >= 16
    assert len({generator.initial_seed() for generator in made}) == len(made)


def test_the_loss_is_that_of_the_last_epoch():
    """One step an epoch: the loss of three epochs is that of a round of one, from where two epochs had led."""
    method, options = FedAvg(), replace(PLAIN, name="sgd", lr=0.5, batch_size=0)
    card, data = client()
    whole, early = (
        fit(
            TrainingSpec(method, SINGLE, options, n, 5),
            network(method),
            card,
            data,
            state_of(method, network(method)),
            {},
            1,
        )
        for n in (3, 2)
    )
    last = fit(
        TrainingSpec(method, SINGLE, options, 1, 5),
        network(method),
        card,
        data,
        ServerState(early.update.weights),
        {},
        1,
    )
    assert whole.loss == pytest.approx(last.loss, rel=1e-5)
    assert whole.loss < early.loss


def test_reset_keeps_no_memory():
    method = FedAvg()
    model = network(method)
    assert once(method, model, 0, state_of(method, model), {}, options=replace(PLAIN, state="reset")).memory == {}
    kept = once(method, model, 0, state_of(method, model), {}).memory
    assert {float(v) for k, v in kept.items() if k.endswith("step")} == {16.0}  # 2 epochs of 8 mini-batches


def test_the_rate_falls_from_round_to_round():
    """Round 3 at a rate of 0.1 that halves after every round is round 3 at 0.025, bit for bit."""
    method, model = FedAvg(), network(FedAvg())
    card, data = client()
    halving = replace(PLAIN, name="sgd", lr=0.1, lr_decay=0.5)
    got, want = (
        fit(TrainingSpec(method, SINGLE, options, 1, 5), model, card, data, state_of(method, network(method)), {}, 3)
        for options in (halving, replace(halving, lr=0.025, lr_decay=1.0))
    )
    assert all(torch.equal(got.update.weights[n], value) for n, value in want.update.weights.items())


@pytest.mark.parametrize("fill", [float("inf"), float("nan")])
def test_an_update_that_is_not_finite_is_refused(fill):
    model = Classifier(nn.Linear(3, 3), LinearHead(3, 2), MaskSource())
    card, data = images(fill=fill)
    state = ServerState(weights_of(model))
    with pytest.raises(UpdateError, match=r"^client 3, round 7: tensor 'weights/[a-z.]+' holds \d+ non-finite values$"):
        fit(TrainingSpec(FedAvg(), SINGLE, OptimizerOptions(), 1, 0), model, card, data, state, {}, 7)


def test_inference_keeps_the_order_of_rows_and_the_mode():
    model = network(FedAvg(), dropout=0.5).train()
    _, data = client(rows=300)
    z = infer(model, data)
    assert model.training
    model.eval()
    for i in (0, 7, 150, 299):
        assert torch.allclose(z[i], model.encoder(data.x[i : i + 1])[0].detach(), atol=1e-6)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.phases])
def test_the_steps_of_so_many_epochs_are_those_epochs(name):
    """Bit for bit; one step less ends within the last epoch, whose loss is of the steps that were taken."""
    method, options = METHODS[name], replace(SAVINGS["both"], batch_size=3)
    card, data = client()
    per_epoch = -(-len(data) // 3)
    model = network(method, dropout=0.5)
    state = state_of(method, model)

    def trained(epochs, steps):
        spec = TrainingSpec(method, SINGLE, options, epochs, 5, steps)
        return digest(fit(spec, model, card, data, state, {}, 1))

    assert per_epoch > 2
    assert trained(7, 2 * per_epoch) == trained(2, 0)
    assert trained(1, 2 * per_epoch - 1) != trained(2, 0)
    assert trained(1, per_epoch) == trained(1, 0)


def test_every_client_takes_as_many_steps(monkeypatch):
    taken = []
    plain = AveragingTrainer.update
    monkeypatch.setattr(AveragingTrainer, "update", lambda self: taken.append(self.steps) or plain(self))
    method = FedAvg()
    for who in (0, 1):
        card, data = client(who)
        model = network(method)
        spec = TrainingSpec(method, SINGLE, replace(PLAIN, batch_size=2), 1, 5, 9)
        fit(spec, model, card, data, state_of(method, model), {}, 1)
    assert taken == [9, 9]
