"""FedDyn: where it is FedAvg, quadratic clients against NumPy, its invariant, and what it sends.

Oracle, from the paper (Acar et al., ICLR 2021, Algorithm 1). Client k, from the server's x with g_k (zeros at first),
minimises F_k(y) - <g_k, y> + alpha/2 |y - x|^2; then g_k <- g_k - alpha (y_k - x), which is the gradient of F_k at y_k.
The server: h <- h - alpha/N sum_S (y_k - x), and the next x is mean_S y_k - h / alpha. The authors' code holds
-g_k / alpha in its place, in units of the weights: h_k <- h_k + y_k - x, x <- mean_S y_k + the mean of h_k over all
clients. Both find the point where the mean of all F_k is least, whatever these are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientResult, Update
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods.feddyn import DynState, FedDyn
from anchorfl.pipeline.run.prepare import make_run_spec
from tests.pipeline import compared
from tests.pipeline.compared import SHAPES, arrays, assert_close, base_loss, elsewhere, gradient, logits, slope
from tests.runs import nobody, quiet

SIZE = sum(int(np.prod(shape)) for shape in SHAPES.values())


def first(method):
    return method.begin(compared.server(compared.dense(), []))


def flat(tensors):
    return np.concatenate([tensors[name].detach().numpy().ravel() for name in SHAPES])


def shaped(vector):
    out, at = {}, 0
    for name, shape in SHAPES.items():
        out[name] = torch.from_numpy(vector[at : at + int(np.prod(shape))].reshape(shape).copy())
        at += int(np.prod(shape))
    return out


# ------------------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
@pytest.mark.parametrize("alpha", [0.01, 10.0])
def test_a_first_round_of_one_step_is_fedavgs_bit_for_bit(experiment, task, alpha, weighting):
    """Whatever alpha is: at y = x, with g_k = 0, both terms and their gradients are 0. In the second round they are
    not.
    """
    sections = {"federation": {"epochs": 1}, "optimizer": {"batch_size": 0}}
    plain = compared.history(experiment("fedavg", task, options={"weighting": weighting}, **sections))
    got = compared.history(experiment("feddyn", task, options={"alpha": alpha, "weighting": weighting}, **sections))
    compared.assert_same_bits(got[:1], plain[:1])
    assert messages.checksum(got[1][0]) != messages.checksum(plain[1][0])


@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_with_a_vanishing_alpha_the_first_round_is_fedavgs_bit_for_bit(experiment, task):
    """Many steps: a pull of 1e-30 is below half a unit in the last place of every gradient; one of 0.1 is not."""
    plain = compared.history(experiment("fedavg", task, options={"weighting": "uniform"}))
    compared.assert_same_bits(compared.history(experiment("feddyn", task, options={"alpha": 1e-30}))[:1], plain[:1])
    pulled = compared.history(experiment("feddyn", task, options={"alpha": 0.1}))
    assert any(not torch.equal(pulled[0][0][name], value) for name, value in plain[0][0].items())


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_loss_and_gradient_equal_numpy(kind):
    """From a g_k that is not zero, at a y that is not x; the batch comes in two pieces, the two terms once."""
    own = elsewhere({name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}, 2)
    local, micro_batches = compared.started(
        FedDyn(alpha=0.7), kind, memory={f"gradient.{n}": v for n, v in own.items()}
    )
    sent, g = arrays(local.ctx.state.weights), arrays(own)
    local.model.load_state_dict(elsewhere(local.ctx.state.weights))
    data, x = local.ctx.data, local.ctx.data.x.numpy()

    def whole(w):
        pull = sum(0.35 * ((w[n] - sent[n]) ** 2).sum() - (g[n] * (w[n] - sent[n])).sum() for n in w)
        return base_loss(kind, logits(w, x), data) + pull

    compared.assert_gradient(local, micro_batches, whole)
    at = arrays(local.model.state_dict())
    want = {name: 0.7 * (at[name] - sent[name]) - g[name] for name in at}
    assert_close(gradient(local, [])[1], want, 1e-14)  # a mini-batch without a labeled row as well


# -------------------------------------------------------------------------------------------------- quadratics


class Quadratics:
    """Clients with F_k(y) = (y - b_k) A_k (y - b_k) / 2 over all weights of ``dense``, each solved to its minimum."""

    def __init__(self, alpha, rows=(12, 12, 12)):
        rng = np.random.default_rng(1)
        self.alpha, self.rows = alpha, rows
        bases = [np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0] for _ in rows]
        self.curves = [q @ np.diag(rng.uniform(0.2, 2, SIZE)) @ q.T for q in bases]
        self.centres = [rng.normal(size=SIZE) * (k + 1) for k in range(len(rows))]
        self.cards = [replace(compared.rows_of(seed=k)[0], num_examples=n) for k, n in enumerate(rows)]

    def slope(self, k, y):
        return self.curves[k] @ (y - self.centres[k])

    def best(self, share):
        """Return where the mean of all F_k, by these shares, is least."""
        a = sum(s * curve for s, curve in zip(share, self.curves, strict=True))
        b = sum(s * curve @ c for s, curve, c in zip(share, self.curves, self.centres, strict=True))
        return np.linalg.solve(a, b)

    def trainer(self, k, x, g):
        """Return where F_k(y) - <g, y> + alpha/2 |y - x|^2 is least."""
        a = self.curves[k] + self.alpha * np.eye(SIZE)
        return np.linalg.solve(a, self.curves[k] @ self.centres[k] + g + self.alpha * x)

    def client(self, method, k, state, memory):
        """Return (update, memory, client half) with the client put where NumPy says that its loss is least."""
        ctx = compared.server(compared.dense(), self.cards)
        local, _ = compared.started(method, state=method.broadcast(state, ctx), memory=memory)
        g = flat({n: memory.get(f"gradient.{n}", torch.zeros(s, dtype=torch.float64)) for n, s in SHAPES.items()})
        y = self.trainer(k, flat(local.ctx.state.weights), g)
        local.model.load_state_dict(shaped(y))
        return local.update(), {name: v for name, v in local.memory().items() if name.startswith("gradient.")}, local


@pytest.mark.parametrize(
    ("selected", "rounds"), [([(0, 1, 2)], 100), ([(0, 1), (1, 2), (0, 2)], 240)], ids=["all", "two of three"]
)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_quadratic_clients_agree_on_the_minimum_of_their_mean(selected, rounds, weighting):
    """FedAvg's mean of minima is far from it. Every round equals the authors' form in units of the weights, and a
    client's terms take back the slope of its own loss: g_k is that slope after the round.
    """
    rows = (12, 12, 12) if weighting == "uniform" else (5, 10, 30)
    world, method = Quadratics(0.5, rows), FedDyn(alpha=0.5, weighting=weighting)
    share = np.array(rows) / sum(rows)
    ctx = compared.server(compared.dense(), world.cards)
    state, memory = first(method), [{}, {}, {}]
    x, own = flat(state.weights), [np.zeros(SIZE) for _ in rows]  # NumPy, in units of the weights
    for t in range(rounds):
        results, found = [], {}
        for k in selected[t % len(selected)]:
            update, memory[k], local = world.client(method, k, state, memory[k])
            found[k] = world.trainer(k, x, -0.5 * own[k])
            results.append(ClientResult(world.cards[k], update))
            if t < 3:
                assert np.allclose(flat(update.weights), found[k], rtol=0, atol=1e-10)
                g = flat({name: memory[k][f"gradient.{name}"] for name in SHAPES})
                assert np.allclose(g, world.slope(k, found[k]), rtol=0, atol=1e-10)
                assert np.allclose(gradient(local, [])[1]["head.weight"], -shaped(g)["head.weight"], atol=1e-10)
        for k, y in found.items():
            own[k] = own[k] + y - x
        mean = np.average(list(found.values()), axis=0, weights=share[list(found)])
        x = mean + share @ own
        state = method.aggregate(state, results, ctx)
        assert np.allclose(flat(state.weights), mean, rtol=0, atol=1e-9)
        assert np.allclose(flat(method.broadcast(state, ctx).weights), x, rtol=0, atol=1e-9)
    best = world.best(share)
    for got in (state.weights, method.broadcast(state, ctx).weights):
        assert np.abs(flat(got) - best).max() < 1e-8
    assert np.abs(share @ np.array(world.centres) - best).max() > 0.1


def test_a_large_alpha_holds_clients_where_they_start():
    world, method = Quadratics(1e9), FedDyn(alpha=1e9)
    state = first(method)
    update, _, _ = world.client(method, 0, state, {})
    assert np.abs(flat(update.weights) - flat(state.weights)).max() < 1e-6


# -------------------------------------------------------------------------------------------------- the server


@pytest.mark.parametrize("per_round", [2, 4])
@pytest.mark.parametrize("optimizer", [{}, {"name": "sgd", "lr": 0.05}])
def test_h_is_the_mean_of_all_g_k_in_every_round(experiment, per_round, optimizer):
    e = experiment("feddyn", federation={"clients_per_round": per_round, "rounds": 4}, optimizer=optimizer)
    compared.assert_server_has_the_mean(e, "drift", "gradient", 1e-5, 1e-3)


def test_what_is_scored_is_the_mean_and_what_is_sent_is_not(experiment):
    e = experiment("feddyn", options={"alpha": 0.1})
    executor = SerialExecutor(make_run_spec(e, quiet))
    executor.round(1, [0, 1, 2], nobody)
    state = executor.server.state
    sent = executor.server.broadcast(2).weights
    for name, h in state.drift.items():
        torch.testing.assert_close(sent[name], state.weights[name] - h / 0.1)
    assert any(not torch.equal(sent[name], state.weights[name]) for name in sent)
    plain = SerialExecutor(make_run_spec(replace(e, method=experiment("fedavg").method), quiet))
    plain.restore({k: v for k, v in executor.snapshot().items() if k.startswith("weights/")}, {})
    got, want = executor.scores(["test"]), plain.scores(["test"])
    assert got["test"].values == want["test"].values


@pytest.mark.parametrize(("weighting", "weight"), [("uniform", 2.0), ("samples", 2.5)])
def test_the_server_averages_buffers_by_rows_and_gives_them_no_drift(weighting, weight):
    """Parameters too with ``samples``: 10 and 30 rows, at 1 and 3."""
    method, zeros = FedDyn(weighting=weighting), first(FedDyn())
    cards = [replace(compared.rows_of(seed=i)[0], num_examples=n) for i, n in enumerate((10, 30))]
    state = replace(zeros, weights=zeros.weights | {"buffer": torch.zeros(2).double(), "count": torch.tensor(0)})
    results = []
    for card, value in zip(cards, (1.0, 3.0), strict=True):
        weights = {name: torch.full_like(w, value) for name, w in zeros.weights.items()}
        buffers = {"buffer": torch.full((2,), value).double(), "count": torch.tensor(int(value))}
        results.append(ClientResult(card, Update(weights | buffers)))
    ctx = compared.server(compared.dense(), cards)
    merged = method.aggregate(state, results, ctx)
    assert merged.weights["buffer"].tolist() == [2.5, 2.5]
    assert int(merged.weights["count"]) == 3
    assert float(merged.weights["head.bias"][0]) == weight
    assert merged.drift.keys() == SHAPES.keys()
    assert list(merged.weights) == list(state.weights)
    assert torch.equal(method.broadcast(merged, ctx).weights["buffer"], merged.weights["buffer"])


def test_the_exact_tensors_on_the_wire():
    """P down, P up, as in FedAvg: h stays on the server, g_k with the client."""
    wire = {f"weights/{name}": shape for name, shape in SHAPES.items()}
    method = FedDyn()
    state = first(method)
    assert list(compared.shapes(state)) == [*wire, *(f"drift/{name}" for name in SHAPES)]
    sent = method.broadcast(state, compared.server(compared.dense(), []))
    assert isinstance(sent, DynState)
    assert list(compared.shapes(sent).items()) == list(wire.items())
    for name, value in sent.weights.items():
        assert torch.equal(value, state.weights[name])  # from h = 0, to the bit
    got = compared.fitted(method, state=sent)
    assert list(compared.shapes(got.update).items()) == list(wire.items())
    own = {k: v for k, v in compared.shapes(got.memory).items() if not k.startswith("all.")}
    assert list(own.items()) == [(f"gradient.{name}", shape) for name, shape in SHAPES.items()]
    for name in SHAPES:
        way = got.update.weights[name] - sent.weights[name]
        assert torch.allclose(got.memory[f"gradient.{name}"], -0.01 * way, rtol=0, atol=1e-15)


def test_a_round_of_plain_sgd_equals_numpy():
    """3 epochs of one mini-batch each; x stays where it was while y moves."""
    options = replace(compared.WHOLE, lr=0.2)
    own = elsewhere({name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}, 2)
    got = compared.fitted(
        FedDyn(alpha=0.5), options=options, epochs=3, memory={f"gradient.{n}": v for n, v in own.items()}
    )  # fmt: skip
    _, data = compared.rows_of()
    sent = w = arrays(compared.dense().state_dict())
    for _ in range(3):
        g = slope(lambda at: base_loss("single", logits(at, data.x.numpy()), data), w)
        w = {n: w[n] - 0.2 * (g[n] - own[n].numpy() + 0.5 * (w[n] - sent[n])) for n in w}
    assert_close(arrays(got.update.weights), w, 1e-8)
    new = {n: own[n].numpy() - 0.5 * (w[n] - sent[n]) for n in w}
    assert_close({n: got.memory[f"gradient.{n}"].numpy() for n in w}, new, 1e-8)


def test_the_savings_change_no_update():
    compared.assert_savings_agree(FedDyn(alpha=0.5))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_a_bad_alpha_is_refused(alpha):
    with pytest.raises(ValueError, match=rf"\Amethod\.alpha = {alpha}: must be above 0\Z"):
        FedDyn(alpha=alpha)
