"""Local training: the savings keep the mathematics, and ``fit`` is a pure function."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models.build import ModelOptions, build
from models.classifier import Classifier
from models.dropout import MaskSource
from models.heads import LinearHead
from pipeline import tree
from pipeline.blocks import weights_of
from pipeline.contract import ClientSide, Global
from pipeline.methods.fedalign import AlignGlobal, FedAlign
from pipeline.methods.fedavg import FedAvg
from pipeline.optimizers import OptimizerOptions
from pipeline.training import Training, UpdateError, fit, infer, pieces
from tasks.contract import Card, ClientData, Objective

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
C, D, WORDS, LENGTH = 4, 8, 15, 12
KEYS = "encoder.layer.qkv.bias"
SINGLE = Objective("single")
PLAIN = OptimizerOptions(batch_size=8, skip_zero_rows=False, micro_tokens=0)
SAVINGS = {
    "rows": replace(PLAIN, skip_zero_rows=True),
    "pieces": replace(PLAIN, micro_tokens=20),
    "both": replace(PLAIN, skip_zero_rows=True, micro_tokens=20),
}
METHODS = {
    "fedavg": FedAvg(),
    "fedalign": FedAlign(q1=80.0, q2=40.0),
    "joint": FedAlign(q1=80.0, q2=40.0, alternating=False),
}


def client(seed=0, rows=60, labelled=0.2):
    """Ragged token rows, most of them unlabelled: about one mini-batch of 8 in six has no labelled row at all."""
    rng = np.random.default_rng(seed)
    length = torch.from_numpy(rng.integers(1, LENGTH + 1, size=rows))
    x = torch.from_numpy(rng.integers(1, WORDS, size=(rows, LENGTH)).astype(np.int32))
    x[torch.arange(LENGTH) >= length[:, None]] = 0
    given = torch.from_numpy(rng.random(rows) < labelled).float()[:, None]
    y = torch.eye(C)[torch.from_numpy(rng.integers(2, size=rows))] * given
    known = given.expand(rows, C).clone()
    aware = torch.tensor([True, True, False, False])
    card = Card(seed, rows, y.sum(0).long(), aware)
    return card, ClientData(x, y, known, SINGLE.weights(y, known), length)


def network(method, dropout=0.0):
    vectors = torch.randn(C, D, generator=torch.Generator().manual_seed(4))
    return build(
        ModelOptions(width=D, heads=2, feedforward=6, dropout=dropout), input_kind="tokens", shape=(LENGTH,),
        vocabulary=WORDS, classes=C, head=method.head, unit=True, vectors_CP=vectors, seed=9,
    )  # fmt: skip


def state_of(method, model):
    weights = weights_of(model)
    return AlignGlobal(weights, torch.zeros(0)) if isinstance(method, FedAlign) else Global(weights)


def trained(method, options, *, double=False, rounds=2, who=0):
    model = network(method).double() if double else network(method)
    card, data = client(who)
    state, memory = state_of(method, model), {}
    for round_ in range(1, rounds + 1):
        got = fit(Training(method, SINGLE, options, 3, 5), model, card, data, state, memory, round_)
        state, memory = replace(state, weights=got.update.weights), got.memory
    return got


def gap(a, b):
    """Largest difference of any weight over the largest weight of its tensor, without the bias of the attention's keys.

    That bias adds the same number to all scores of a query, which softmax does not see: its gradient is rounding, and
    Adam, which divides by the gradient's size, makes steps of it. It has no effect (tested below).
    """
    worst = 0.0
    for name, value in a.items():
        distance = (value - b[name]).abs()
        if name == KEYS:
            distance[D : 2 * D] = 0
        worst = max(worst, float(distance.max() / b[name].abs().max()))
    return worst


@pytest.mark.parametrize("saving", SAVINGS)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("double", "bound"), [(True, 1e-13), (False, 1e-6)])
def test_savings_change_no_update(name, saving, double, bound):
    """2 rounds of 3 epochs of 8 mini-batches, moments kept. Measured: at most 7e-16 in float64, 5e-7 in float32."""
    fast, plain = (trained(METHODS[name], options, double=double) for options in (SAVINGS[saving], PLAIN))
    assert gap(fast.update.weights, plain.update.weights) < bound
    assert fast.loss == pytest.approx(plain.loss, rel=1e-5)  # the losses are summed in float32
    steps = [k for k in plain.memory if k.endswith("step")]
    assert {float(plain.memory[k]) for k in steps} == {48.0}
    assert all(torch.equal(fast.memory[k], plain.memory[k]) for k in steps)


def test_the_rate_falls_from_round_to_round():
    """Round 3 at a rate of 0.1 that halves after every round is round 3 at 0.025, bit for bit."""
    method, model = FedAvg(), network(FedAvg())
    card, data = client()
    halving = replace(PLAIN, name="sgd", lr=0.1, lr_decay=0.5)
    got, want = (
        fit(Training(method, SINGLE, options, 1, 5), model, card, data, state_of(method, network(method)), {}, 3)
        for options in (halving, replace(halving, lr=0.025, lr_decay=1.0))
    )
    assert all(torch.equal(got.update.weights[n], value) for n, value in want.update.weights.items())


def test_the_bias_of_the_keys_has_no_effect():
    model = network(FedAvg()).double().eval()
    x = client()[1].x
    before = model(x)
    with torch.no_grad():
        dict(model.named_parameters())[KEYS][D : 2 * D] += torch.arange(D) - 3.0
    assert torch.allclose(model(x), before, rtol=0, atol=1e-12)


def test_the_test_data_hold_mini_batches_without_a_labelled_row():
    """Otherwise the tests above would prove less than they say."""
    _, data = client()
    active = (data.weight_NC != 0).any(-1)
    assert 0.1 < float(active.float().mean()) < 0.4
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).split(4)
    assert any(not active[index].any() for index in order)


def side(method, options, memory=None):
    model = network(method).train()
    card, data = client()
    return ClientSide(
        model, state_of(method, model), card, data, memory or {}, SINGLE, options, infer, torch.Generator()
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_mini_batch_without_a_labelled_row_still_moves_the_moments(name):
    """Its gradient is 0: m <- .9 m, v <- .999 v, step + 1, and the weights go on by momentum, as in the plain loop."""
    method, after = METHODS[name], {}
    for key, options in (("fast", SAVINGS["both"]), ("plain", PLAIN)):
        local = method.local(side(method, options))
        data = local.side.data
        active = (data.weight_NC != 0).any(-1)
        first, idle = active.nonzero().flatten()[:4], (~active).nonzero().flatten()[:4]
        local.step(pieces(data, first, active, options, local.model))
        before, weights = local.memory(), weights_of(local.model)
        empty = pieces(data, idle, active, options, local.model)
        assert len(empty) == (0 if key == "fast" else 1)
        assert float(local.step(empty)) == 0
        after[key] = (local.memory(), weights_of(local.model))
        for k, value in after[key][0].items():
            factor = {"exp_avg": 0.9, "exp_avg_sq": 0.999}.get(k.rsplit(".", 1)[1])
            assert torch.allclose(
                value, before[k] + 1 if factor is None else before[k] * factor, rtol=1e-5, atol=1e-12
            ), k
        assert not torch.equal(after[key][1]["encoder.norm.bias"], weights["encoder.norm.bias"])
    for k, value in after["fast"][1].items():
        assert torch.allclose(value, after["plain"][1][k], atol=1e-6), k


@pytest.mark.parametrize("name", METHODS)
def test_a_first_mini_batch_without_a_labelled_row_counts_as_a_step(name):
    """As in the plain loop, where its gradient is 0 and not absent: step is 1, moments and weights stay put."""
    local = METHODS[name].local(side(METHODS[name], SAVINGS["both"]))
    weights = weights_of(local.model)
    local.step([])
    memory = local.memory()
    assert len(memory) == 3 * len(list(local.model.parameters()))
    assert all(bool((value == k.endswith("step")).all()) for k, value in memory.items())
    assert tree.checksum(weights_of(local.model)) == tree.checksum(weights)


def indexed(lengths):
    """Rows that carry their own number as their label."""
    n = len(lengths)
    x = torch.ones(n, max([*lengths, 1]), dtype=torch.int32)
    number = torch.arange(n, dtype=torch.float32)[:, None]
    return ClientData(x, number, torch.ones(n, 1), torch.ones(n, 1), torch.tensor(lengths, dtype=torch.int64))


@pytest.mark.parametrize("limit", [0, 1, 8, 20, 64])
@pytest.mark.parametrize("skip", [False, True])
@QUICK
@given(st.integers(0, 2**32))
def test_pieces_cover_every_active_row_once_within_the_limit(limit, skip, seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 26))
    lengths, active = rng.integers(31, size=rows).tolist(), (rng.random(rows) < 0.6).tolist()
    data = indexed(lengths)
    index = torch.from_numpy(rng.permutation(rows)[: rng.integers(1, rows + 1)])
    options = OptimizerOptions(micro_tokens=limit, skip_zero_rows=skip)
    got = pieces(data, index, torch.tensor(active), options, network(FedAvg()))
    seen = [int(i) for piece in got for i in piece.y_BC[:, 0]]
    assert sorted(seen) == sorted(i for i in index.tolist() if active[i] or not skip)
    # the mean divides by the size of the mini-batch, skipped rows included
    assert all(piece.denominator == len(index) for piece in got)
    for piece in got:
        numbers = piece.y_BC[:, 0].long().tolist()
        assert len(piece.x) == len(piece.known_BC) == len(piece.weight_BC) == len(numbers) > 0
        assert piece.x.shape[1] == max(1, *(lengths[i] for i in numbers))  # padding is cut to the longest
        assert limit == 0 or len(numbers) == 1 or piece.x.numel() <= limit
    if limit == 0:
        assert len(got) <= 1


def images(n=6, fill=None):
    """Rows without a length, all labelled."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1)) if fill is None else torch.full((n, 3), fill)
    y = torch.eye(2)[torch.arange(n) % 2]
    card = Card(3, n, y.sum(0).long(), torch.ones(2).bool())
    return card, ClientData(x, y, torch.ones(n, 2), y)


def test_rows_without_a_length_are_one_piece():
    _, data = images()
    model = Classifier(nn.Linear(3, 2), LinearHead(2, 2), MaskSource())
    (piece,) = pieces(data, torch.arange(5), torch.ones(6).bool(), OptimizerOptions(micro_tokens=1), model)
    assert torch.equal(piece.x, data.x[:5])


@pytest.mark.parametrize("saving", SAVINGS)
def test_batch_norm_with_a_saving_is_refused(saving):
    model = Classifier(nn.BatchNorm1d(3), LinearHead(3, 2), MaskSource())
    card, data = images()
    state = Global(weights_of(model))
    with pytest.raises(ValueError, match=r"--optimizer.skip_zero_rows False --optimizer.micro_tokens 0$"):
        fit(Training(FedAvg(), SINGLE, SAVINGS[saving], 1, 0), model, card, data, state, {}, 1)
    got = fit(Training(FedAvg(), SINGLE, PLAIN, 2, 0), model, card, data, state, {}, 1)
    assert int(got.update.weights["encoder.num_batches_tracked"]) == 2


@pytest.mark.parametrize("fill", [float("inf"), float("nan")])
def test_an_update_that_is_not_finite_is_refused(fill):
    model = Classifier(nn.Linear(3, 3), LinearHead(3, 2), MaskSource())
    card, data = images(fill=fill)
    state = Global(weights_of(model))
    with pytest.raises(UpdateError, match=r"^client 3, round 7: tensor 'weights/[a-z.]+' holds \d+ non-finite values$"):
        fit(Training(FedAvg(), SINGLE, OptimizerOptions(), 1, 0), model, card, data, state, {}, 7)


def once(method, model, who, state, memory, round_=2, options=SAVINGS["both"], seed=5):
    card, data = client(who)
    return fit(Training(method, SINGLE, options, 2, seed), model, card, data, state, memory, round_)


def digest(fitted):
    return tree.checksum(fitted.update), tree.checksum(fitted.memory), fitted.loss


@pytest.mark.parametrize("name", METHODS)
def test_fit_is_a_pure_function(name):
    """Twice the same bits on a work-space that the first call left dirty; arguments unchanged; clients in any order."""
    method = METHODS[name]
    model = network(method, dropout=0.5)
    state = state_of(method, model)
    memory = once(method, model, 0, state, {}, round_=1).memory
    before = tree.checksum(state), tree.checksum(memory)
    a0, a1 = once(method, model, 0, state, memory), once(method, model, 1, state, {})
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(77)  # no draw comes from the global generator
        b1, b0 = once(method, model, 1, state, {}), once(method, model, 0, state, memory)
    assert digest(a0) == digest(b0)
    assert digest(a1) == digest(b1)
    assert before == (tree.checksum(state), tree.checksum(memory))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(3)  # whatever happens to the work-space reaches neither what was given nor what was returned
    assert before == (tree.checksum(state), tree.checksum(memory))
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


def test_reset_keeps_no_memory():
    method = FedAvg()
    model = network(method)
    assert once(method, model, 0, state_of(method, model), {}, options=replace(PLAIN, state="reset")).memory == {}
    kept = once(method, model, 0, state_of(method, model), {}).memory
    assert {float(v) for k, v in kept.items() if k.endswith("step")} == {16.0}  # 2 epochs of 8 mini-batches


def test_inference_keeps_the_order_of_rows_and_the_mode():
    model = network(FedAvg(), dropout=0.5).train()
    _, data = client(rows=300)
    z = infer(model, data)
    assert model.training
    model.eval()
    for i in (0, 7, 150, 299):
        assert torch.allclose(z[i], model.encoder(data.x[i : i + 1])[0].detach(), atol=1e-6)
