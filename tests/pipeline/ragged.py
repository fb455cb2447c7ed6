"""Pieces of the tests of local training: a small network, clients of ragged texts, and rows without a length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from anchorfl.models.build import build
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm.contract import ServerState
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.methods.fedalign import AlignState, FedAlign
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.tasks.contract import Card, ClientData, Objective

C, D, WORDS, LENGTH = 4, 8, 15, 12
SINGLE = Objective("single")
PLAIN = OptimizerOptions(batch_size=8, skip_zero_rows=False, microbatch_tokens=0)
SAVINGS = {
    "rows": replace(PLAIN, skip_zero_rows=True),
    "pieces": replace(PLAIN, microbatch_tokens=20),
    "both": replace(PLAIN, skip_zero_rows=True, microbatch_tokens=20),
}
METHODS = {
    "fedavg": FedAvg(),
    "fedalign": FedAlign(q1=80.0, q2=40.0),
    "joint": FedAlign(q1=80.0, q2=40.0, alternating=False),
}


def client(seed=0, rows=60, labeled=0.2):
    """Make ragged rows of tokens, most of them unlabeled: about one mini-batch of 8 in six has no labeled row."""
    rng = np.random.default_rng(seed)
    length = torch.from_numpy(rng.integers(1, LENGTH + 1, size=rows))
    x = torch.from_numpy(rng.integers(1, WORDS, size=(rows, LENGTH)).astype(np.int32))
    x[torch.arange(LENGTH) >= length[:, None]] = 0
    given = torch.from_numpy(rng.random(rows) < labeled).float()[:, None]
    y = torch.eye(C)[torch.from_numpy(rng.integers(2, size=rows))] * given
    known = given.expand(rows, C).clone()
    aware = torch.tensor([True, True, False, False])
    card = Card(seed, rows, y.sum(0).long(), aware)
    return card, ClientData(x, y, known, SINGLE.weights(y, known), length)


def network(method, dropout=0.0):
    vectors = torch.randn(C, D, generator=torch.Generator().manual_seed(4))
    return build(
        ModelOptions(width=D, heads=2, feedforward=6, dropout=dropout), input_kind="tokens", shape=(LENGTH,),
        vocabulary=WORDS, classes=C, head=method.head.kind, unit=True, vectors_CP=vectors, seed=9,
    )  # fmt: skip


def state_of(method, model):
    weights = weights_of(model)
    return AlignState(weights, torch.zeros(0)) if isinstance(method, FedAlign) else ServerState(weights)


def images(n=6, fill=None):
    """Make rows without a length, all labeled."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1)) if fill is None else torch.full((n, 3), fill)
    y = torch.eye(2)[torch.arange(n) % 2]
    card = Card(3, n, y.sum(0).long(), torch.ones(2).bool())
    return card, ClientData(x, y, torch.ones(n, 2), y)
