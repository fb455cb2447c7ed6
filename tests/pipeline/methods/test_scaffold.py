"""SCAFFOLD: its first round, two rounds against NumPy under several optimizers, its invariant, and what it sends.

Oracle, from the paper (Karimireddy et al., ICML 2020, Algorithm 1). Client i, from the server's x with control variates
c and c_i (zeros at first), takes K steps along g(y) - c_i + c. Then, option II,

    c_i+ = c_i - c + (x - y_K) / (K lr),     dy_i = y_K - x,     dc_i = c_i+ - c_i,

and the server x <- x + eta_g mean_S dy_i, c <- c + |S|/N mean_S dc_i. By plain SGD, x - y_K = lr sum_k (g_k - c_i + c),
so c_i+ = (1/K) sum_k g_k, the mean raw gradient. That form has a meaning for Adam and momentum too; it is used there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientResult
from anchorfl.pipeline.algorithm.control_variates import ControlState, ControlUpdate
from anchorfl.pipeline.methods.scaffold import Scaffold
from tests.pipeline import compared
from tests.pipeline.compared import SHAPES, Rule, arrays, assert_close, base_loss, elsewhere, gradient, logits, slope

WHOLE = replace(compared.WHOLE, state="reset")
RULES = {
    "sgd": WHOLE,
    "momentum": replace(WHOLE, momentum=0.9),
    "decay": replace(WHOLE, weight_decay=0.01),
    "adam": replace(WHOLE, name="adam", lr=0.05),
}


@pytest.mark.parametrize(("task", "weighting"), [("toy-single", "uniform"), ("toy-multi", "samples")])
def test_the_first_round_is_fedavgs_bit_for_bit(experiment, task, weighting):
    """All control variates are zeros; from round 2 on they are not."""
    plain = compared.history(experiment("fedavg", task, options={"weighting": weighting}))
    got = compared.history(experiment("scaffold", task, options={"weighting": weighting}))
    compared.assert_same_bits(got[:1], plain[:1])
    assert messages.checksum(got[1][0]) != messages.checksum(plain[1][0])


def steps(options, w, corrections, data, count):
    """Take K corrected steps in NumPy; return (weights, mean raw gradient)."""
    w, rule, raw = dict(w), Rule(options, list(w)), []
    for _ in range(count):
        raw.append(slope(lambda at: base_loss("single", logits(at, data.x.numpy()), data), w))
        rule.step(w, {name: g + corrections[name] for name, g in raw[-1].items()})
    return w, {name: np.mean([g[name] for g in raw], axis=0) for name in w}


@pytest.mark.parametrize(("rule", "rows"), [*((rule, ()) for rule in RULES), ("sgd", (5, 10, 30))])
def test_three_rounds_equal_numpy(rule, rows):
    """3 clients of which 2 take part, the third once; K = 2 steps of the whole client; eta_g = 0.5. rows: of the
    clients, by which they count; none: they count alike."""
    options, selected = RULES[rule], [(0, 1), (1, 2), (0, 1)]
    method = Scaffold(server_lr=0.5, weighting="samples" if rows else "uniform")
    cards = [compared.rows_of(seed=i)[0] for i in range(3)]
    cards = [replace(card, num_examples=n) for card, n in zip(cards, rows, strict=True)] if rows else cards
    ctx = compared.server(compared.dense(), cards)
    state, memory = method.begin(ctx), [{}, {}, {}]
    x, c = arrays(state.weights), {name: np.zeros(shape) for name, shape in SHAPES.items()}
    own = [dict(c) for _ in range(3)]
    for round_, chosen in enumerate(selected, 1):
        results, dy, dc = [], [], []
        for i in chosen:
            got = compared.fitted(method, memory=memory[i], state=state, options=options, round_=round_, seed=i)
            results.append(ClientResult(cards[i], got.update))
            memory[i] = got.memory
            correction = {name: c[name] - own[i][name] for name in c}
            y, mean = steps(options, x, correction, compared.rows_of(seed=i)[1], 2)
            new = mean
            if rule == "sgd":
                new = {name: own[i][name] - c[name] + (x[name] - y[name]) / (2 * options.lr) for name in c}
                assert_close(new, mean, 1e-9)  # option II is the mean raw gradient
            dy.append({name: y[name] - x[name] for name in x})
            dc.append({name: new[name] - own[i][name] for name in x})
            own[i] = new
        n = [rows[i] if rows else 1 for i in chosen]
        x = {name: x[name] + 0.5 * sum(a * d[name] for a, d in zip(n, dy, strict=True)) / sum(n) for name in x}
        every = sum(rows) if rows else 3
        c = {name: c[name] + sum(a * d[name] for a, d in zip(n, dc, strict=True)) / every for name in x}
        state = method.aggregate(state, results, ctx)
        assert_close(arrays(state.weights), x, 1e-7)
        assert_close(arrays(state.control), c, 1e-7)
        for i in chosen:
            assert_close(arrays({k.removeprefix("control."): v for k, v in memory[i].items()}), own[i], 1e-7)


def test_plain_sgd_option_two_is_the_mean_raw_gradient():
    """From a c and a c_i that are not zero; with momentum, the way that was gone says something else."""
    zeros = Scaffold().begin(compared.server(compared.dense(), []))
    state = ControlState(zeros.weights, elsewhere(zeros.control, 1))
    memory = {f"control.{name}": value for name, value in elsewhere(zeros.control, 2).items()}
    for options, same in ((WHOLE, True), (replace(WHOLE, momentum=0.9), False)):
        local, micro_batches = compared.started(Scaffold(), memory=memory, state=state, options=options)
        for _ in range(4):
            local.step(micro_batches)
            local.steps += 1
        mean = {name: total / local.steps for name, total in local.total.items()}
        sent, now = state.weights, dict(local.model.named_parameters())
        way = {n: local.control[n] - state.control[n] + (sent[n] - now[n].detach()) / (4 * options.lr) for n in mean}
        far = max(float((way[n] - mean[n]).abs().max()) for n in mean)
        assert (far < 1e-13) is same
        assert_close(arrays(local.next_control()), arrays(mean), 1e-13)


def test_the_gradient_that_the_optimiser_sees_is_corrected_once():
    """g - c_i + c, also where a mini-batch is cut in two pieces, or has no labeled row."""
    zeros = Scaffold().begin(compared.server(compared.dense(), []))
    state = ControlState(zeros.weights, elsewhere(zeros.control, 1))
    own = elsewhere(zeros.control, 2)
    local, micro_batches = compared.started(Scaffold(), memory={f"control.{n}": v for n, v in own.items()}, state=state)
    correction = {n: (state.control[n] - own[n]).numpy() for n in own}
    data = local.ctx.data
    want = slope(lambda at: base_loss("single", logits(at, data.x.numpy()), data), arrays(state.weights))
    assert_close(gradient(local, micro_batches)[1], {n: want[n] + correction[n] for n in want}, 1e-8)
    assert_close(gradient(local, [])[1], correction, 1e-14)


@pytest.mark.parametrize("per_round", [2, 4])
@pytest.mark.parametrize("optimizer", [{}, {"name": "sgd", "lr": 0.05}])
def test_c_is_the_mean_of_all_c_i_in_every_round(experiment, per_round, optimizer):
    """c <- c + (1/N) sum_S dc_i from zeros keeps c = (1/N) sum over ALL clients of c_i."""
    e = experiment("scaffold", federation={"clients_per_round": per_round, "rounds": 4}, optimizer=optimizer)
    compared.assert_server_has_the_mean(e, "control", "control", 1e-6, 1.0)


def test_the_server_averages_buffers_and_gives_them_no_control():
    zeros = Scaffold().begin(compared.server(compared.dense(), []))
    cards = [compared.rows_of(seed=i)[0] for i in range(2)]
    state = replace(zeros, weights=zeros.weights | {"buffer": torch.zeros(2, dtype=torch.float64)})
    results = [
        ClientResult(card, ControlUpdate(zeros.weights | {"buffer": torch.full((2,), value).double()}, zeros.control))
        for card, value in zip(cards, (1.0, 3.0), strict=True)
    ]
    merged = Scaffold(server_lr=0.5).aggregate(state, results, compared.server(compared.dense(), cards))
    assert merged.weights["buffer"].tolist() == [2.0, 2.0]
    assert merged.control.keys() == SHAPES.keys()


def test_the_exact_tensors_on_the_wire():
    """2 P down, 2 P up; the client's own c_i stays with it."""
    both = {f"{part}/{name}": shape for part in ("weights", "control") for name, shape in SHAPES.items()}
    state = Scaffold().begin(compared.server(compared.dense(), []))
    assert list(compared.shapes(state).items()) == list(both.items())
    assert not any(bool(v.any()) for v in state.control.values())
    got = compared.fitted(Scaffold())
    assert list(compared.shapes(got.update).items()) == list(both.items())
    own = {k: v for k, v in compared.shapes(got.memory).items() if not k.startswith("all.")}
    assert list(own.items()) == [(f"control.{name}", shape) for name, shape in SHAPES.items()]
    for name in SHAPES:  # from zeros, the change is the new value
        assert torch.equal(got.memory[f"control.{name}"], got.update.control[name])
    again = compared.fitted(Scaffold(), memory=got.memory, state=state, round_=2)
    for name in SHAPES:
        change = again.memory[f"control.{name}"] - got.memory[f"control.{name}"]
        assert torch.equal(again.update.control[name], change)


def test_the_savings_change_no_update():
    """Control variates included, two rounds of two clients: the second round is corrected."""
    compared.assert_savings_agree(Scaffold())


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_bad_server_rate_is_refused(rate):
    with pytest.raises(ValueError, match=rf"\Amethod\.server_lr = {rate}: must be above 0\Z"):
        Scaffold(server_lr=rate)
