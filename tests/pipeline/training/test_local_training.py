"""Local training: the savings keep the mathematics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.heads import LinearHead
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientContext, ServerState
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.training.local_training import TrainingSpec, fit, infer, micro_batches
from anchorfl.tasks.contract import ClientData
from tests.pipeline.ragged import METHODS, PLAIN, SAVINGS, SINGLE, D, client, images, network, state_of

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)
KEYS = "encoder.layer.qkv.bias"


def trained(method, options, *, double=False, rounds=2, who=0):
    model = network(method).double() if double else network(method)
    card, data = client(who)
    state, memory = state_of(method, model), {}
    for round_ in range(1, rounds + 1):
        got = fit(TrainingSpec(method, SINGLE, options, 3, 5), model, card, data, state, memory, round_)
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


def test_the_bias_of_the_keys_has_no_effect():
    model = network(FedAvg()).double().eval()
    x = client()[1].x
    before = model(x)
    with torch.no_grad():
        dict(model.named_parameters())[KEYS][D : 2 * D] += torch.arange(D) - 3.0
    assert torch.allclose(model(x), before, rtol=0, atol=1e-12)


def test_the_test_data_hold_mini_batches_without_a_labeled_row():
    """Otherwise the tests above would prove less than they say."""
    _, data = client()
    active = (data.weight_NC != 0).any(-1)
    assert 0.1 < float(active.float().mean()) < 0.4
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).split(4)
    assert any(not active[index].any() for index in order)


def ctx(method, options, memory=None):
    model = network(method).train()
    card, data = client()
    return ClientContext(
        model, state_of(method, model), card, data, memory or {}, SINGLE, options, infer, torch.Generator()
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_mini_batch_without_a_labeled_row_still_moves_the_moments(name):
    """Its gradient is 0: m <- .9 m, v <- .999 v, step + 1, and the weights go on by momentum, as in the plain loop."""
    method, after = METHODS[name], {}
    for key, options in (("fast", SAVINGS["both"]), ("plain", PLAIN)):
        local = method.trainer(ctx(method, options))
        data = local.ctx.data
        active = (data.weight_NC != 0).any(-1)
        first, idle = active.nonzero().flatten()[:4], (~active).nonzero().flatten()[:4]
        local.step(micro_batches(data, first, active, options, local.model))
        before, weights = local.memory(), weights_of(local.model)
        empty = micro_batches(data, idle, active, options, local.model)
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
def test_a_first_mini_batch_without_a_labeled_row_counts_as_a_step(name):
    """As in the plain loop, where its gradient is 0 and not absent: step is 1, moments and weights stay put."""
    local = METHODS[name].trainer(ctx(METHODS[name], SAVINGS["both"]))
    weights = weights_of(local.model)
    local.step([])
    memory = local.memory()
    assert len(memory) == 3 * len(list(local.model.parameters()))
    assert all(bool((value == k.endswith("step")).all()) for k, value in memory.items())
    assert messages.checksum(weights_of(local.model)) == messages.checksum(weights)


def indexed(lengths):
    """Make rows that carry their own number as their label."""
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
    options = OptimizerOptions(microbatch_tokens=limit, skip_zero_rows=skip)
    got = micro_batches(data, index, torch.tensor(active), options, network(FedAvg()))
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


def test_rows_without_a_length_are_one_piece():
    _, data = images()
    model = Classifier(nn.Linear(3, 2), LinearHead(2, 2), MaskSource())
    (piece,) = micro_batches(data, torch.arange(5), torch.ones(6).bool(), OptimizerOptions(microbatch_tokens=1), model)
    assert torch.equal(piece.x, data.x[:5])


@pytest.mark.parametrize("saving", SAVINGS)
def test_batch_norm_with_a_saving_is_refused(saving):
    model = Classifier(nn.BatchNorm1d(3), LinearHead(3, 2), MaskSource())
    card, data = images()
    state = ServerState(weights_of(model))
    with pytest.raises(ValueError, match=r"--optimizer.skip_zero_rows False --optimizer.microbatch_tokens 0$"):
        fit(TrainingSpec(FedAvg(), SINGLE, SAVINGS[saving], 1, 0), model, card, data, state, {}, 1)
    got = fit(TrainingSpec(FedAvg(), SINGLE, PLAIN, 2, 0), model, card, data, state, {}, 1)
    assert int(got.update.weights["encoder.num_batches_tracked"]) == 2
