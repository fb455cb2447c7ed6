"""Pieces of the tests of compared methods: a small network with its NumPy twin, a client for it, clients of ragged
texts, and whole federations on the toy tasks.

Shape suffixes: N rows, F features, D width, C classes.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from anchorfl.models.build import build
from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.heads import LinearHead
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientResult, ServerContext
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.local_training import TrainingSpec, fit, infer
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.pipeline.training.sampling import select
from anchorfl.tasks.contract import Card, ClientData, Objective
from tests.pipeline.ragged import LENGTH, PLAIN, SAVINGS, WORDS
from tests.pipeline.ragged import client as texts
from tests.runs import nobody, quiet

N, F, D, C = 12, 5, 3, 4
AWARE = torch.tensor([True, True, False, False])
SHAPES = {"encoder.0.weight": (D, F), "encoder.0.bias": (D,), "head.weight": (C, D), "head.bias": (C,)}
"""Every tensor of ``dense``, in the order in which it is sent."""
KEYS = "encoder.layer.qkv.bias"
WHOLE = OptimizerOptions(name="sgd", lr=0.1, batch_size=N, skip_zero_rows=False, microbatch_tokens=0)
"""Plain SGD whose step is on all rows of the client."""


# ------------------------------------------------------------------------------- a network that NumPy computes, float64


def dense(head: nn.Module | None = None) -> Classifier:
    """Return tanh(x A' + a) W' + b, with weights large enough to bend; or another head on that encoder."""
    model = Classifier(nn.Sequential(nn.Linear(F, D), nn.Tanh()), head or LinearHead(D, C), MaskSource()).double()
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=p.shape)))
    return model


def elsewhere(weights, seed=5):
    """Return other weights of the same shapes, not far away."""
    rng = np.random.default_rng(seed)
    return {name: value + 0.3 * torch.from_numpy(rng.normal(size=value.shape)) for name, value in weights.items()}


def rows_of(kind="single", seed=0):
    """Make a client of ``dense``. Single-label: 5 rows of class 0 and 3 of class 1 have their label, 4 have none."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(N, F)))
    if kind == "single":
        y = torch.eye(C, dtype=torch.float64)[torch.from_numpy(rng.permutation(N) % 5 % C)]
        known = (y * AWARE).any(1, keepdim=True).double().expand(N, C).clone()
    else:
        y = torch.from_numpy(rng.random((N, C)) < 0.4).double()
        known = AWARE.double().expand(N, C).clone()
    y = y * known
    card = Card(seed, N, y.sum(0).long(), AWARE)
    return card, ClientData(x, y, known, Objective(kind).weights(y, known))


def server(model, cards):
    return ServerContext(model, cards, Objective("single"), None, torch.Generator(), 1, 1)


def started(method, kind="single", *, memory=None, options=PLAIN, state=None, model=None):
    """Return the client half on a fresh ``dense``, or on ``model``, and the client as one mini-batch in two pieces."""
    card, data = rows_of(kind)
    model = (dense() if model is None else model).train()
    sent = method.begin(server(model, [card])) if state is None else state
    model.load_state_dict(sent.weights)
    ctx = ClientContext(model, sent, card, data, memory or {}, Objective(kind), options, infer, torch.Generator())
    return method.trainer(ctx), [data.rows(torch.arange(0, 5), N), data.rows(torch.arange(5, N), N)]


def arrays(tensors):
    """Copy tensors into arrays."""
    return {name: value.detach().numpy().copy() for name, value in tensors.items()}


def gradient(local, micro_batches):
    """Return loss and gradients of one mini-batch, by the code under test."""
    loss = float(local.gradients(micro_batches))
    return loss, {name: p.grad.numpy().copy() for name, p in local.model.named_parameters()}


def encode(w, x_NF):
    return np.tanh(x_NF @ w["encoder.0.weight"].T + w["encoder.0.bias"])


def logits(w, x_NF):
    return encode(w, x_NF) @ w["head.weight"].T + w["head.bias"]


def softmax(s_NC):
    e_NC = np.exp(s_NC - s_NC.max(1, keepdims=True))
    return e_NC / e_NC.sum(1, keepdims=True)


def base_loss(kind, s_NC, data):
    """Return FedAvg's loss of all rows as one mini-batch: softmax, or weighted sigmoid cross-entropy."""
    y_NC, weight_NC = data.y_NC.numpy(), data.weight_NC.numpy()
    if kind == "single":
        return -(weight_NC * np.log(softmax(s_NC))).sum() / len(s_NC)
    p_NC = 1 / (1 + np.exp(-s_NC))
    return -(weight_NC * (y_NC * np.log(p_NC) + (1 - y_NC) * np.log(1 - p_NC))).sum() / s_NC.size


def slope(loss, w, step=1e-5):
    """Return the gradient of ``loss(weights)`` by central differences; exact to about 1e-9 here."""
    out = {}
    for name, value in w.items():
        out[name] = np.empty_like(value)
        for at in np.ndindex(value.shape):
            up, down = copy.deepcopy(w), copy.deepcopy(w)
            up[name][at] += step
            down[name][at] -= step
            out[name][at] = (loss(up) - loss(down)) / (2 * step)
    return out


class Rule:
    """An optimizer of the library over some arrays, in NumPy, by its documented rules."""

    def __init__(self, options, names):
        self.o, self.names, self.k = options, names, 0
        self.first, self.second = ({name: np.zeros(SHAPES[name]) for name in names} for _ in range(2))

    def step(self, w, gradient):
        self.k += 1
        for name in self.names:
            d = gradient[name] + self.o.weight_decay * w[name]
            if self.o.name == "adam":
                self.first[name] = 0.9 * self.first[name] + 0.1 * d
                self.second[name] = 0.999 * self.second[name] + 0.001 * d**2
                root = np.sqrt(self.second[name] / (1 - 0.999**self.k)) + 1e-8
                d = self.first[name] / (1 - 0.9**self.k) / root
            elif self.o.momentum:
                self.first[name] = d if self.k == 1 else self.o.momentum * self.first[name] + d
                d = self.first[name]
            w[name] = w[name] - self.o.lr * d


def assert_close(got, want, bound):
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert np.abs(np.asarray(got[name]) - value).max() < bound, name


def assert_gradient(local, micro_batches, loss):
    """Assert that the code under test computes ``loss(weights)`` and its gradient."""
    at = arrays(local.model.state_dict())
    got, slopes = gradient(local, micro_batches)
    assert got == pytest.approx(loss(at), abs=1e-12)
    assert_close(slopes, slope(loss, at), 1e-8)


def shapes(message) -> dict[str, tuple[int, ...]]:
    """Return path -> shape of what travels, in order."""
    return {path: tuple(t.shape) for path, t in messages.tensors(message)}


def assert_wire(method, own=None, *, model=dense, sent=None, memory=None):
    """Assert that the weights alone travel, down and up, and that a client keeps moments and ``own``: name -> shape."""
    wire = [(f"weights/{name}", shape) for name, shape in (sent or SHAPES).items()]
    assert list(shapes(method.begin(server(model(), []))).items()) == wire
    got = fitted(method, memory=memory, model=model())
    assert list(shapes(got.update).items()) == wire
    kept = shapes(got.memory)
    assert [(k, v) for k, v in kept.items() if not k.startswith("all.")] == list((own or {}).items())
    assert {k.rsplit(".", 1)[1] for k in kept if k.startswith("all.")} == {"exp_avg", "exp_avg_sq", "step"}
    reset = fitted(method, memory=memory, model=model(), options=replace(PLAIN, state="reset"))
    assert shapes(reset.memory) == (own or {})


def fitted(method, kind="single", *, memory=None, state=None, options=PLAIN, epochs=2, round_=1, seed=0, model=None):
    """Train one client for one round; ``model``: the work-space."""
    card, data = rows_of(kind, seed)
    model = dense() if model is None else model
    ctx = server(model, [card])
    sent = method.broadcast(method.begin(ctx), ctx) if state is None else state
    training = TrainingSpec(method, Objective(kind), options, epochs, 3)
    return fit(training, model, card, data, sent, memory or method.first_memory(model), round_)


# -------------------------------------------------------------------------------------------------------- ragged texts


def network(dropout=0.0) -> Classifier:
    return build(
        ModelOptions(width=8, heads=2, feedforward=6, dropout=dropout), input_kind="tokens", shape=(LENGTH,),
        vocabulary=WORDS, classes=C, head="linear", unit=False, vectors_CP=None, seed=9,
    )  # fmt: skip


def trained(method, options, *, dropout=0.0, double=False):
    """Train two clients of texts for two rounds, server and memories included; return the first one's second update.
    Two, since the last network of a single client is the server's, and so is its control variate.
    """
    one_thread()  # as in a run; small tensors gain nothing from more
    model, clients = network(dropout), [texts(0), texts(1)]
    model = model.double() if double else model
    ctx = server(model, [card for card, _ in clients])
    state, memories = method.begin(ctx), [method.first_memory(model) for _ in clients]
    training = TrainingSpec(method, Objective("single"), options, 1, 5)
    for round_ in (1, 2):
        sent = method.broadcast(state, ctx)
        got = [fit(training, model, *clients[i], sent, memories[i], round_) for i in (0, 1)]
        results = [ClientResult(card, one.update) for (card, _), one in zip(clients, got, strict=True)]
        state, memories = method.aggregate(state, results, ctx), [one.memory for one in got]
    return got[0].update


def gap(one, other):
    """Return the largest difference of a sent tensor over its largest value, without the bias of the attention's keys,
    whose gradient is rounding (tests/pipeline/training/test_local_training.py).
    """
    worst, others = 0.0, dict(messages.tensors(other))
    for path, value in messages.tensors(one):
        distance = (value - others[path]).abs()
        if path.endswith(KEYS):
            distance[8:16] = 0
        worst = max(worst, float(distance.max() / others[path].abs().max().clamp(min=1e-12)))
    return worst


def assert_savings_agree(method):
    """Assert that a client sends the same in its second round under every saving; in float32 weights alone, to 1e-6."""
    for double, bound, savings in ((True, 1e-12, SAVINGS), (False, 1e-6, ["both"])):
        plain = trained(method, PLAIN, double=double)
        for name in savings:
            fast = trained(method, SAVINGS[name], double=double)
            assert gap(fast if double else fast.weights, plain if double else plain.weights) < bound


# ---------------------------------------------------------------------------------------------------- whole federations


@cache
def history(e):
    """Run an experiment; return (weights, mean loss, memory of every client, state) after each round. Not to change."""
    executor, out = SerialExecutor(make_run_spec(e, quiet)), []
    for round_ in range(1, e.federation.rounds + 1):
        chosen = select(e.task.clients, e.federation.clients_per_round, round_, e.seed)
        outcome = executor.round(round_, chosen, nobody)
        assert outcome.answered == tuple(chosen)
        memories = {client: dict(executor.memory(client)) for client in range(e.task.clients)}
        state = executor.snapshot()
        weights = {k: v for k, v in state.items() if k.startswith("weights/")}
        out.append((weights, outcome.loss, memories, state))
    return out


def assert_same_bits(got, want):
    """Assert that every round has the same weights and loss, and that what FedAvg's clients keep is kept alike."""
    for (weights, loss, memories, _), (weights0, loss0, memories0, _) in zip(got, want, strict=True):
        assert messages.checksum(weights) == messages.checksum(weights0)
        assert loss == loss0
        for client, memory in memories0.items():
            assert messages.checksum({k: memories[client][k] for k in memory}) == messages.checksum(memory)
    assert any(memories0.values())


def assert_resting_clients_keep(rounds):
    """Assert that in each round two memories change and the others stay; return the last ones."""
    before, rested = {client: {} for client in rounds[0][2]}, 0
    for _, _, memories, _ in rounds:
        moved = [c for c in memories if messages.checksum(memories[c]) != messages.checksum(before[c])]
        assert len(moved) == 2
        rested += sum(bool(before[c]) for c in memories if c not in moved)
        before = memories
    assert rested > 0
    return before


def assert_server_has_the_mean(e, part, own, bound, least):
    """Assert that ``part`` of the server's state is the mean of ``own`` over ALL clients in every round, whoever takes
    part; clients that rest keep theirs, those that never took part have zeros.
    """
    rounds = history(e)
    for _, _, memories, state in rounds:
        held = {k.removeprefix(f"{part}/"): v for k, v in state.items() if k.startswith(f"{part}/")}
        assert held
        for name, value in held.items():
            each = [m.get(f"{own}.{name}", torch.zeros_like(value)).double() for m in memories.values()]
            mean = sum(each) / len(each)
            assert float((value.double() - mean).abs().max()) <= bound * max(least, float(mean.abs().max())), name
    assert sum(bool(memory) for memory in rounds[0][2].values()) == e.federation.clients_per_round


def assert_scored_as_fedavg(experiment, name, options=None):
    """Assert that the state after two rounds has the scores that FedAvg's server gives the same weights."""
    e = experiment(name, options=options, federation={"rounds": 2})
    executor = SerialExecutor(make_run_spec(e, quiet))
    for round_ in (1, 2):
        executor.round(round_, [0, 1, 2], nobody)
    plain = SerialExecutor(make_run_spec(replace(e, method=experiment("fedavg").method), quiet))
    plain.restore(executor.snapshot(), {})
    got, want = executor.scores(["validation", "test"]), plain.scores(["validation", "test"])
    assert {n: s.values for n, s in got.items()} == {n: s.values for n, s in want.items()}
