"""Corrections that go as far as gradients agree with those that a client remembers (``AgreeingTrainer``).

Oracle, per parameter: with g_1, ..., g_t the raw gradients of the round so far and c_i the mean of the client's last
round, the t-th step goes along g_t + a_t (c - c_i), a_t = clip(mean_s <g_s, c_i> / <c_i, c_i>, 0, 1); <g, c_i> /
<c_i, c_i> is the a that makes |g - a c_i| smallest. A step whose <g_s, c_i> is 0 is left out of the mean. Corrected in
full, a_t = 1 instead; in a client's first round it is 0. c_i becomes the mean of g_1, ..., g_K whatever the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm.contract import ClientResult
from anchorfl.pipeline.algorithm.control_variates import AgreeingTrainer, ControlState
from anchorfl.pipeline.methods.scaffold import Scaffold
from tests.pipeline import compared
from tests.pipeline.compared import SHAPES, Rule, arrays, assert_close, base_loss, elsewhere, gradient, logits, slope

WHOLE = replace(compared.WHOLE, state="reset")
RULES = {
    "sgd": WHOLE,
    "momentum": replace(WHOLE, momentum=0.9),
    "adam": replace(WHOLE, name="adam", lr=0.05),
}
STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Agreeing(Scaffold):
    """SCAFFOLD whose clients agree first."""

    name = "agreeing"
    in_full: bool = False

    def trainer(self, ctx):
        trainer = AgreeingTrainer(ctx)
        trainer.correct_in_full(torch.tensor(self.in_full))
        return trainer


def state_of(c=None):
    zeros = Agreeing().begin(compared.server(compared.dense(), []))
    return ControlState(zeros.weights, elsewhere(zeros.control, 1) if c is None else c)


def remembered(own):
    return {f"control.{name}": value for name, value in own.items()}


def raw_gradient(weights, data):
    return slope(lambda at: base_loss("single", logits(at, data.x.numpy()), data), weights)


def trained(options, w, c, own, data, in_full):
    """Take the steps of a client in NumPy; return (weights, mean raw gradient, last share by parameter)."""
    w, rule, raw, share = dict(w), Rule(options, list(w)), [], {}
    for _ in range(STEPS):
        raw.append(raw_gradient(w, data))
        for name in w:
            square = float((own[name] ** 2).sum())
            found = [float((g[name] * own[name]).sum()) / square for g in raw] if square else [0.0]
            share[name] = float(square > 0) if in_full else min(max(float(np.mean(found)), 0.0), 1.0)
        rule.step(w, {name: g + share[name] * (c[name] - own[name]) for name, g in raw[-1].items()})
    return w, {name: np.mean([g[name] for g in raw], axis=0) for name in w}, share


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("in_full", [False, True])
def test_four_rounds_equal_numpy(rule, in_full):
    """3 clients of which 2 take part; the shares are 0 in a client's first round, else 1 in full, and between the two
    somewhere where not.
    """
    options, method = RULES[rule], Agreeing(in_full=in_full)
    cards = [compared.rows_of(seed=i)[0] for i in range(3)]
    ctx = compared.server(compared.dense(), cards)
    state, memory, seen, shares = method.begin(ctx), [{}, {}, {}], set(), []
    x, c = arrays(state.weights), {name: np.zeros(shape) for name, shape in SHAPES.items()}
    own = [dict(c) for _ in range(3)]
    for round_, chosen in enumerate([(0, 1), (1, 2), (0, 1), (0, 2)], 1):
        results, after = [], []
        for i in chosen:
            got = compared.fitted(
                method, memory=memory[i], state=state, options=options, round_=round_, seed=i, epochs=STEPS
            )
            results.append(ClientResult(cards[i], got.update))
            memory[i] = got.memory
            y, mean, share = trained(options, x, c, own[i], compared.rows_of(seed=i)[1], in_full)
            assert i in seen or set(share.values()) == {0.0}
            shares += share.values()
            seen.add(i)
            after.append((i, y, mean))
        x = {name: sum(y[name] for _, y, _ in after) / 2 for name in x}
        c = {name: c[name] + sum(mean[name] - own[i][name] for i, _, mean in after) / 3 for name in x}
        for i, _, mean in after:
            own[i] = mean
        state = method.aggregate(state, results, ctx)
        assert_close(arrays(state.weights), x, 1e-7)
        assert_close(arrays(state.control), c, 1e-7)
    assert set(shares) == {0.0, 1.0} if in_full else any(0 < share < 1 for share in shares)


def test_who_meets_the_gradients_that_it_remembers_is_corrected_in_full():
    state = state_of()
    data = compared.rows_of()[1]
    raw = raw_gradient(arrays(state.weights), data)
    for factor, share in ((1.0, 1.0), (0.5, 1.0), (4.0, 0.25), (-1.0, 0.0)):
        own = {name: torch.from_numpy(factor * g) for name, g in raw.items()}
        local, micro_batches = compared.started(Agreeing(), memory=remembered(own), state=state)
        got = gradient(local, micro_batches)[1]
        assert_close(got, {n: g + share * (state.control[n].numpy() - own[n].numpy()) for n, g in raw.items()}, 1e-7)


def test_who_remembers_nothing_is_not_corrected():
    state = state_of()
    local, micro_batches = compared.started(Agreeing(), state=state)
    data = local.ctx.data
    assert_close(gradient(local, micro_batches)[1], raw_gradient(arrays(state.weights), data), 1e-8)
    assert not any(value.any() for value in gradient(local, [])[1].values())


def test_a_step_without_gradients_changes_no_share():
    """Nor do the steps that other clients of a stack take after a client's last of an epoch."""
    state = state_of()
    own = elsewhere(state.control, 2)
    shares = []
    for empty in (0, 3):
        local, micro_batches = compared.started(Agreeing(), memory=remembered(own), state=state)
        for _ in range(empty):
            gradient(local, [])
        gradient(local, micro_batches)
        shares.append({name: local.agreed[name] / local.counted[name] for name in own})
    assert all(torch.equal(shares[0][name], shares[1][name]) for name in own)
