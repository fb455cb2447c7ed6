"""What the tests of the compared methods share: a small network with its NumPy twin, a client for it, clients of ragged
texts, and whole federations on the toy tasks.

Shape suffixes: N rows, F features, D width, C classes.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from anchorfl.models.build import ModelOptions, build
from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.heads import LinearHead
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientResult, ServerContext
from anchorfl.pipeline.algorithm.optimizers import OptimizerOptions
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.local_training import TrainingSpec, fit, infer
from anchorfl.pipeline.training.run_spec import one_thread
from anchorfl.pipeline.training.sampling import select
from anchorfl.tasks.contract import Card, ClientData, Objective
from tests.runs import nobody, quiet

N, F, D, C = 12, 5, 3, 4
AWARE = torch.tensor([True, True, False, False])
SHAPES = {"encoder.0.weight": (D, F), "encoder.0.bias": (D,), "head.weight": (C, D), "head.bias": (C,)}
"""Every tensor of ``dense``, in the order in which it is sent."""
WORDS, LENGTH, KEYS = 15, 12, "encoder.layer.qkv.bias"
PLAIN = OptimizerOptions(batch_size=8, skip_zero_rows=False, microbatch_tokens=0)
SAVINGS = [
    replace(PLAIN, skip_zero_rows=True),
    replace(PLAIN, microbatch_tokens=20),
    replace(PLAIN, skip_zero_rows=True, microbatch_tokens=20),
]


# ------------------------------------------------------------------------------- a network that NumPy computes, float64


def dense(head: nn.Module | None = None) -> Classifier:
    """tanh(x A' + a) W' + b, with weights large enough to bend; or another head on that encoder."""
    model = Classifier(nn.Sequential(nn.Linear(F, D), nn.Tanh()), head or LinearHead(D, C), MaskSource()).double()
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=p.shape)))
    return model


def elsewhere(weights, seed=5):
    """Other weights of the same shapes, not far away."""
    rng = np.random.default_rng(seed)
    return {name: value + 0.3 * torch.from_numpy(rng.normal(size=value.shape)) for name, value in weights.items()}


def rows_of(kind="single", seed=0):
    """A client of ``dense``. Single-label: the 5 rows of class 0 and the 3 of class 1 have their label, 4 have none."""
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
    """The client half on a fresh ``dense``, or on ``model``, and the whole client as one mini-batch in two pieces."""
    card, data = rows_of(kind)
    model = (dense() if model is None else model).train()
    sent = method.begin(server(model, [card])) if state is None else state
    model.load_state_dict(sent.weights)
    ctx = ClientContext(model, sent, card, data, memory or {}, Objective(kind), options, infer, torch.Generator())
    return method.trainer(ctx), [data.rows(torch.arange(0, 5), N), data.rows(torch.arange(5, N), N)]


def arrays(tensors):
    """Tensors as arrays of their own."""
    return {name: value.detach().numpy().copy() for name, value in tensors.items()}


def gradient(local, micro_batches):
    """Loss and gradients of one mini-batch, by the code under test."""
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
    """FedAvg's loss of all rows as one mini-batch: softmax, or weighted sigmoid cross-entropy."""
    y_NC, weight_NC = data.y_NC.numpy(), data.weight_NC.numpy()
    if kind == "single":
        return -(weight_NC * np.log(softmax(s_NC))).sum() / len(s_NC)
    p_NC = 1 / (1 + np.exp(-s_NC))
    return -(weight_NC * (y_NC * np.log(p_NC) + (1 - y_NC) * np.log(1 - p_NC))).sum() / s_NC.size


def slope(loss, w, step=1e-5):
    """Gradient of ``loss(weights)`` by central differences; exact to about 1e-9 here."""
    out = {}
    for name, value in w.items():
        out[name] = np.empty_like(value)
        for at in np.ndindex(value.shape):
            up, down = copy.deepcopy(w), copy.deepcopy(w)
            up[name][at] += step
            down[name][at] -= step
            out[name][at] = (loss(up) - loss(down)) / (2 * step)
    return out


def assert_close(got, want, bound):
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert np.abs(np.asarray(got[name]) - value).max() < bound, name


def shapes(message) -> dict[str, tuple[int, ...]]:
    """What travels: path -> shape, in order."""
    return {path: tuple(t.shape) for path, t in messages.tensors(message)}


def fitted(method, kind="single", *, memory=None, state=None, options=PLAIN, epochs=2, round_=1, seed=0, model=None):
    """One client in one round; ``model``: the work-space."""
    card, data = rows_of(kind, seed)
    model = dense() if model is None else model
    ctx = server(model, [card])
    sent = method.broadcast(method.begin(ctx), ctx) if state is None else state
    training = TrainingSpec(method, Objective(kind), options, epochs, 3)
    return fit(training, model, card, data, sent, memory or method.first_memory(model), round_)


# -------------------------------------------------------------------------------------------------------- ragged texts


def texts(who=0, rows=60):
    """Ragged rows of tokens, four of five unlabeled, so that some mini-batches of 8 have no labeled row."""
    rng = np.random.default_rng(who)
    length = torch.from_numpy(rng.integers(1, LENGTH + 1, size=rows))
    x = torch.from_numpy(rng.integers(1, WORDS, size=(rows, LENGTH)).astype(np.int32))
    x[torch.arange(LENGTH) >= length[:, None]] = 0
    given = torch.from_numpy(rng.random(rows) < 0.2).float()[:, None]
    y = torch.eye(C)[torch.from_numpy(rng.integers(2, size=rows))] * given
    known = given.expand(rows, C).clone()
    data = ClientData(x, y, known, Objective("single").weights(y, known), length)
    return Card(who, rows, y.sum(0).long(), AWARE), data


def network(dropout=0.0) -> Classifier:
    return build(
        ModelOptions(width=8, heads=2, feedforward=6, dropout=dropout), input_kind="tokens", shape=(LENGTH,),
        vocabulary=WORDS, classes=C, head="linear", unit=False, vectors_CP=None, seed=9,
    )  # fmt: skip


def trained(method, options, *, dropout=0.0, double=False):
    """Two rounds of two clients of texts, server and memories included; what the first sends in the second round. Two,
    since the last network of a single client is the server's, and so is its control variate.
    """
    one_thread()  # as in a run; small tensors gain nothing from more
    model, clients = network(dropout), [texts(0), texts(1)]
    model = model.double() if double else model
    ctx = server(model, [card for card, _ in clients])
    state, memories = method.begin(ctx), [method.first_memory(model) for _ in clients]
    training = TrainingSpec(method, Objective("single"), options, 2, 5)
    for round_ in (1, 2):
        sent = method.broadcast(state, ctx)
        got = [fit(training, model, *clients[i], sent, memories[i], round_) for i in (0, 1)]
        results = [ClientResult(card, one.update) for (card, _), one in zip(clients, got, strict=True)]
        state, memories = method.aggregate(state, results, ctx), [one.memory for one in got]
    return got[0].update


def gap(one, other):
    """Largest difference of a sent tensor over its largest value, without the bias of the attention's keys, whose
    gradient is rounding (tests/pipeline/training/test_local_training.py).
    """
    worst, others = 0.0, dict(messages.tensors(other))
    for path, value in messages.tensors(one):
        distance = (value - others[path]).abs()
        if path.endswith(KEYS):
            distance[8:16] = 0
        worst = max(worst, float(distance.max() / others[path].abs().max().clamp(min=1e-12)))
    return worst


def assert_savings_agree(method):
    """What a client sends in its second round under every saving: all of it in float64, weights to 1e-6 in float32."""
    for double, bound in ((True, 1e-12), (False, 1e-6)):
        plain = trained(method, PLAIN, double=double)
        for options in SAVINGS:
            fast = trained(method, options, double=double)
            assert gap(fast if double else fast.weights, plain if double else plain.weights) < bound


# ---------------------------------------------------------------------------------------------------- whole federations


def history(e):
    """(weights after the round, its mean loss, memory of every client, state) after each round of an experiment."""
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
    """Every round: the same weights and loss, and every tensor that FedAvg's clients remember is remembered alike."""
    for (weights, loss, memories, _), (weights0, loss0, memories0, _) in zip(got, want, strict=True):
        assert messages.checksum(weights) == messages.checksum(weights0)
        assert loss == loss0
        for client, memory in memories0.items():
            assert messages.checksum({k: memories[client][k] for k in memory}) == messages.checksum(memory)
    assert any(memories0.values())


def assert_scored_as_fedavg(experiment, name, options=None):
    """The state after two rounds has the scores that FedAvg's server gives the same weights."""
    e = experiment(name, options=options, federation={"rounds": 2})
    executor = SerialExecutor(make_run_spec(e, quiet))
    for round_ in (1, 2):
        executor.round(round_, [0, 1, 2], nobody)
    plain = SerialExecutor(make_run_spec(replace(e, method=experiment("fedavg").method), quiet))
    plain.restore(executor.snapshot(), {})
    got, want = executor.scores(["validation", "test"]), plain.scores(["validation", "test"])
    assert {n: s.values for n, s in got.items()} == {n: s.values for n, s in want.items()}
