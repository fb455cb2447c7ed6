"""One-class federations: a small float64 network, clients of one class each with rows that they partly share, and both
ways through a round.

Shape suffixes: N distinct rows, F features, D width, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.heads import CosineHead
from anchorfl.pipeline.algorithm.contract import ClientResult, ServerContext
from anchorfl.pipeline.algorithm.label_collection import run_key
from anchorfl.pipeline.algorithm.options import OptimizerOptions, in_round
from anchorfl.pipeline.execution.batched_executor import BatchedStep, batched_step
from anchorfl.pipeline.training.local_training import TrainingSpec, fit
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.arrays.sparse_rows import RowBlock
from anchorfl.tasks.contract import Card, ClientData, Objective

F, D, C = 5, 6, 4
ETA = 0.1
SGD = OptimizerOptions(name="sgd", lr=ETA, batch_size=0)


def network(parts=1, seed=3) -> Classifier:
    """tanh(x A' + a), one encoder whatever the parts, and unit rows."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder = nn.Sequential(nn.Linear(F, D), nn.Tanh(), nn.Linear(D, D))
        return Classifier(encoder, CosineHead(C, D, parts), MaskSource()).double()


@dataclass
class Rows:
    """Stands for ``anchorfl.tasks.ingest.distinct_rows.Pool`` without files."""

    x_NF: torch.Tensor
    holders: Labels

    def __len__(self):
        return len(self.x_NF)

    def inputs(self, index_B, device):
        return self.x_NF[torch.from_numpy(index_B)]


def rows(count=23, seed=0) -> Rows:
    """Make rows with one to three of the classes; every class has some."""
    rng = np.random.default_rng(seed)
    y_NC = rng.random((count, C)) < [0.7, 0.4, 0.2, 0.1]
    y_NC[np.arange(count), rng.integers(0, C, count)] = True
    y_NC[:C] |= np.eye(C, dtype=bool)
    return Rows(torch.from_numpy(rng.normal(size=(count, F))), Labels.of_matrix(y_NC))


def clients(data: Rows) -> list[tuple[Card, ClientData]]:
    """Make one client per class, with all its rows."""
    out = []
    for c in range(C):
        x = data.x_NF[torch.from_numpy(np.flatnonzero(data.holders.matrix()[:, c]))]
        y = torch.zeros(len(x), C, dtype=torch.float64)
        y[:, c] = 1
        aware = torch.eye(C, dtype=torch.bool)[c]
        known = aware.double().expand(len(x), C).clone()
        out.append(
            (Card(c, len(x), y.sum(0).long(), aware), ClientData(x, y, known, Objective("multi").weights(y, known)))
        )
    return out


def server(model, cards, initial_messages=(), seed=0, round_=1):
    rng = torch.Generator().manual_seed(seed + round_)
    noise = np.random.default_rng(seed + round_)
    return ServerContext(model, cards, Objective("multi"), None, rng, round_, 3, initial_messages, noise_rng=noise)


def parts(rows):
    """Yield a client's rows as it makes its message from, two at a time."""
    positive, known = rows.y_NC.numpy() > 0, rows.known_NC.numpy() > 0
    for start in range(0, len(rows), 2):
        at = slice(start, start + 2)
        length = None if rows.length_N is None else rows.length_N[at]
        yield RowBlock(replace(rows, x=rows.x[at], length_N=length), Labels.of_matrix(positive[at]), known[at])


def begun(method, model, data, seed=0):
    """Return the state before round 1, and the cards."""
    held = clients(data)
    initial_messages = (
        [method.initial_message(card, parts(rows), run_key(seed)) for card, rows in held]
        if method.sends_initial_message
        else []
    )
    return method.begin(server(model, [card for card, _ in held], initial_messages, seed, 0)), [
        card for card, _ in held
    ]


def explicit(method, data, rounds=3, *, options=SGD, epochs=1, chosen=range(C), model=None):
    """States after every round and mean losses, client by client."""
    model = model or network(method.head.parts)
    state, cards = begun(method, model, data)
    held, training, memories, out = clients(data), TrainingSpec(method, Objective("multi"), options, epochs, 5), {}, []
    for round_ in range(1, rounds + 1):
        ctx, results, losses = server(model, cards, round_=round_), [], []
        sent = method.broadcast(state, ctx)
        for c in chosen:
            got = fit(
                training, model, *held[c], sent, memories.get(c, {}), round_, method.client_message(state, cards[c])
            )
            memories[c] = got.memory
            results.append(ClientResult(cards[c], got.update))
            losses.append(got.loss)
        state = method.aggregate(state, results, ctx)
        out.append((state, np.mean(losses)))
    return out


def at_once(method, data, rounds=3, *, options=SGD, piece=1000, chosen=range(C), model=None):
    """Do the same by batched passes."""
    model = model or network(method.head.parts)
    state, cards = begun(method, model, data)
    pooling, out, chosen = method.batched_round(), [], list(chosen)
    rows_C = torch.tensor([card.num_examples for card in cards])
    weight_C = torch.zeros(C, dtype=torch.float64)
    weight_C[chosen] = pooling.client_weights(rows_C[chosen])
    answered_C = torch.zeros(C, dtype=torch.bool)
    answered_C[chosen] = True
    for round_ in range(1, rounds + 1):
        o = in_round(options, round_)
        step = BatchedStep(
            pooling, weight_C / weight_C.sum(), rows_C, o.lr, o.weight_decay, pooling.class_embedding_lr(round_), piece
        )
        weights, loss_C = batched_step(model, state.weights, data, step)
        state = pooling.finish_round(state, weights, answered_C, server(model, cards, round_=round_))
        out.append((state, float(loss_C[chosen].mean())))
    return out


def gap(got, want):
    """Largest difference of weights or loss over all rounds."""
    worst = 0.0
    for (state, loss), (state0, loss0) in zip(got, want, strict=True):
        worst = max(worst, abs(loss - loss0))
        for name, value in state0.weights.items():
            worst = max(worst, float((state.weights[name] - value).abs().max()))
    return worst
