"""FedMLP: its limits, tags, loss and prototypes against NumPy, and what it sends.

Oracle, from the authors' code and the abstract (Sun et al., MICCAI 2024). Prototypes: the means of a client's
representations over its rows without and with each class that it annotates, averaged over clients by their samples.
Tags: with s = cos(z, negative) - cos(z, positive), of a client's untagged rows with s < 0 the share with the least s
becomes positive, of those with s >= 0 the share with the most becomes negative; tags stay. Loss of a mini-batch of B
rows: FedAvg's of logits + tau log(positives / negatives), on labels and tags, plus teacher / (B C) times the squared
distances of the probabilities to those of the model that was sent, on what has neither.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.aggregation import mean_of
from anchorfl.pipeline.algorithm.contract import ClientResult
from anchorfl.pipeline.algorithm.exact_sums import means_of
from anchorfl.pipeline.methods.fedmlp import FedMLP, TagState, new_tags
from tests.pipeline import compared
from tests.pipeline.compared import SHAPES, C, D, N, arrays, base_loss, elsewhere, encode, logits, rows_of, server


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


def with_prototypes(weights, held=None, seed=3):
    """Return the state of a server that has prototypes."""
    rows_PD = torch.from_numpy(np.random.default_rng(seed).normal(size=(2 * C, D)))
    return TagState(weights, rows_PD, torch.ones(2 * C, dtype=torch.bool) if held is None else held)


def late(method, memory=None, held=None):
    """Return the client half in a round with tags, on ``dense``."""
    local, micro_batches = compared.started(method, "multi")
    ctx = local.ctx
    state = with_prototypes(ctx.state.weights, held)
    ctx.model.load_state_dict(ctx.state.weights)
    return method.trainer(replace(ctx, state=state, memory=memory or {}, round=method.warm_up + 1)), micro_batches


def expected_tags(z_ND, rows_PD, open_NC, positive_share, negative_share):
    """Return the tags of one round, one class and one row after the other."""
    tags = np.zeros(open_NC.shape, dtype=int)
    for c in range(C):
        near = [(z_ND @ p) / np.linalg.norm(p) / np.linalg.norm(z_ND, axis=1) for p in (rows_PD[c], rows_PD[C + c])]
        s = near[0] - near[1]
        below = sorted((n for n in range(len(s)) if open_NC[n, c] and s[n] < 0), key=lambda n: s[n])
        above = sorted((n for n in range(len(s)) if open_NC[n, c] and s[n] >= 0), key=lambda n: -s[n])
        tags[below[: math.floor(Fraction(str(positive_share)) * len(below))], c] = 1
        tags[above[: math.floor(Fraction(str(negative_share)) * len(above))], c] = -1
    return tags


def test_without_its_parts_it_is_fedavg_bit_for_bit(experiment):
    """While it warms up, and after that where nothing is tagged or taught."""
    nothing = {"tau": 0.0, "teacher": 0.0, "positive_share": 0.0, "negative_share": 0.0}
    plain = compared.history(experiment("fedavg", "toy-multi"))
    for options in ({"tau": 0.0, "warm_up": 99}, {**nothing, "warm_up": 1}):
        got = compared.history(experiment("fedmlp", "toy-multi", options=options))
        compared.assert_same_bits(got, plain)


@pytest.mark.parametrize("part", ["tau", "teacher", "positive_share"])
def test_each_part_changes_the_second_round(experiment, part):
    off = {"tau": 0.0, "teacher": 0.0, "positive_share": 0.0, "negative_share": 0.0, "warm_up": 1}
    everybody = {"federation": {"clients_per_round": 4, "rounds": 2}}
    without = compared.history(experiment("fedmlp", "toy-multi", options=off, **everybody))
    with_it = compared.history(experiment("fedmlp", "toy-multi", options=off | {part: 0.9}, **everybody))
    assert messages.checksum(with_it[1][0]) != messages.checksum(without[1][0])


def test_tags_equal_numpy_and_stay():
    """Shares so large that each class gets some of both kinds in two rounds, and no entry is tagged twice."""
    method = FedMLP(positive_share=0.5, negative_share=0.4)
    local, _ = late(method)
    data, state = local.ctx.data, local.ctx.state
    z_ND = encode(arrays(state.weights), data.x.numpy())
    open_NC = data.known_NC.numpy() == 0
    want = expected_tags(z_ND, state.rows_PD.numpy(), open_NC, 0.5, 0.4)
    assert {-1, 1} <= set(want[:, 2:].ravel())
    assert not want[:, :2].any()
    assert np.array_equal(local.tags_NC.numpy(), want)
    again, _ = late(method, memory={"tags": local.tags_NC})
    more = expected_tags(z_ND, state.rows_PD.numpy(), open_NC & (want == 0), 0.5, 0.4)
    assert more.any()
    assert np.array_equal(again.tags_NC.numpy(), want + more)
    assert torch.equal(again.memory()["tags"], again.tags_NC)


def test_no_class_is_tagged_before_both_of_its_prototypes_are_there():
    held = torch.ones(2 * C, dtype=torch.bool)
    held[2], held[C + 3] = False, False
    local, _ = late(FedMLP(positive_share=1.0, negative_share=1.0), held=held)
    assert not local.tags_NC.any()


@pytest.mark.parametrize(("tau", "teacher"), [(0.0, 1.0), (1.0, 0.0), (0.7, 0.8)])
def test_loss_and_gradient_equal_numpy(tau, teacher):
    method = FedMLP(positive_share=0.5, negative_share=0.4, tau=tau, teacher=teacher)
    local, micro_batches = late(method)
    data, x = local.data(), local.ctx.data.x.numpy()
    micro_batches = [data.rows(torch.arange(0, 5), N), data.rows(torch.arange(5, N), N)]
    sent = sigmoid(logits(arrays(local.ctx.state.weights), x))
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))
    known, y = data.known_NC.numpy(), data.y_NC.numpy()
    positive = (known * y).sum(0)
    negative = known.sum(0) - positive
    prior = tau * (np.log(np.maximum(positive, 1)) - np.log(np.maximum(negative, 1)))
    taught = known == 0
    assert taught.any()
    assert (known[:, 2:] > 0).any()  # some entries of other classes are tagged, some are not

    def whole(w):
        s = logits(w, x)
        gaps = ((sigmoid(s) - sent) ** 2 * taught).sum() / (N * C)
        return base_loss("multi", s + prior, data) + teacher * gaps

    compared.assert_gradient(local, micro_batches, whole)
    assert bool(local.active(data).all())


def test_prototypes_equal_numpy():
    """Of two clients, one of whom lacks a side of a class; a class that no client annotates keeps what it had."""
    method = FedMLP(warm_up=1)
    results, means = [], []
    for seed in (0, 1):
        card, data = rows_of("multi", seed)
        got = compared.fitted(method, "multi", seed=seed, round_=1)
        z_ND = encode(arrays(got.update.weights), data.x.numpy())
        y, known = data.y_NC.numpy(), data.known_NC.numpy()
        for p in range(2 * C):
            inside = (known[:, p % C] > 0) & (y[:, p % C] == (p >= C))
            assert bool(got.update.held_P[p]) == bool(inside.any())
            if inside.any():
                assert np.abs(got.update.rows_PD[p].numpy() - z_ND[inside].mean(0)).max() < 1e-12
        results.append(ClientResult(replace(card, num_examples=10 + 20 * seed), got.update))
        means.append(got.update.rows_PD.numpy())
    results[1].update.held_P[0] = False
    ctx = replace(server(compared.dense(), []), round=1)
    before = with_prototypes(results[0].update.weights, torch.zeros(2 * C, dtype=torch.bool))
    state = method.merge(before, means_of([(i, method.contribution(r)) for i, r in enumerate(results)], mean_of), ctx)
    assert state.held_P.tolist() == [True, True, False, False] * 2
    want = (10 * means[0] + 30 * means[1]) / 40
    want[0] = means[0][0]
    for p in (0, 1, C, C + 1):
        assert np.abs(state.rows_PD[p].numpy() - want[p]).max() < 1e-6
    assert torch.equal(state.rows_PD[2:4], before.rows_PD[2:4])


def test_the_exact_tensors_on_the_wire():
    """Prototypes travel up from the last round of the warm-up, down from the round after it."""
    method = FedMLP(warm_up=2)
    weights = [(f"weights/{name}", shape) for name, shape in SHAPES.items()]
    rows = [("rows_PD", (2 * C, D)), ("held_P", (2 * C,))]
    none = [("rows_PD", (0, D)), ("held_P", (0,))]
    state = method.begin(server(compared.dense(), []))
    for round_, down, up in ((1, none, [("rows_PD", (0, 0)), none[1]]), (2, none, rows), (3, rows, rows)):
        sent = method.broadcast(state, replace(server(compared.dense(), []), round=round_))
        assert list(compared.shapes(sent).items()) == weights + down
        full = replace(sent, rows_PD=state.rows_PD, held_P=state.held_P) if round_ == 3 else sent
        got = compared.fitted(method, "multi", state=full, round_=round_)
        assert list(compared.shapes(got.update).items()) == weights + up
        assert got.memory["tags"].shape == (N, C)


def test_a_share_of_whole_rows_loses_none_to_rounding():
    """0.29 * 100 is 28.999999999999996."""
    z_ND = torch.ones(100, D).double()
    state = with_prototypes({})
    state = replace(state, rows_PD=torch.cat([-torch.ones(C, D), torch.ones(C, D)]).double())
    tags_NC = new_tags(z_ND, state, torch.ones(100, C, dtype=torch.bool), 0.29, 0.0)
    assert (tags_NC == 1).sum(0).tolist() == [29] * C


def test_a_run_without_tags_says_so():
    assert not FedMLP(warm_up=9).notice(10)
    assert "no prototype tags a row in 10 rounds: the first do after method.warm_up = 10" in FedMLP().notice(10)
    state = with_prototypes({})
    assert FedMLP(warm_up=10).peak_state(state, 10)[1] == 10
    assert FedMLP(warm_up=10).peak_state(state, 99)[1] == 11


def test_tags_of_no_rows():
    state = with_prototypes({})
    assert new_tags(torch.zeros(0, D).double(), state, torch.zeros(0, C, dtype=torch.bool), 1.0, 1.0).shape == (0, C)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"warm_up": 0}, "method.warm_up = 0: must be at least 1"),
        ({"positive_share": 1.1}, "must be in [0, 1]"),
        ({"negative_share": float("nan")}, "must be in [0, 1]"),
        ({"teacher": -1.0}, "method.teacher = -1.0, method.tau = 1.0: must be at least 0"),
        ({"tau": float("nan")}, "must be at least 0"),
    ],
)
def test_bad_options_are_refused(options, line):
    with pytest.raises(ValueError, match=re.escape(line)):
        FedMLP(**options)
