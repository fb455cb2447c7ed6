"""Methods of FedBM's tables on the network of these tables: a residual network with BatchNorm, clients that lack
classes, and some clients a round.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from anchorfl.models.build import ModelOptions
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.prepare import make_run_spec
from tests.runs import nobody, quiet

METHODS = ("feddyn", "fedetf", "fednh", "fedprox", "fedrod", "scaffold")


@pytest.fixture
def executor(experiment):
    """Digits, 5 clients with 4 of the 10 classes each."""

    def make(method):
        e = experiment(
            method, "digits", federation={"rounds": 2, "clients_per_round": 2, "epochs": 1},
            optimizer={"name": "sgd", "momentum": 0.9, "skip_zero_rows": False, "microbatch_tokens": 0,
            "batch_size": 64},
        )  # fmt: skip
        model = ModelOptions(network="resnet8", width=64, norm="batch")
        task = dataclasses.replace(e.task, clients=5, classes_per_client=4)
        return SerialExecutor(make_run_spec(dataclasses.replace(e, model=model, task=task), quiet))

    return make


@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_with_batch_norm(executor, method):
    """Nothing is NaN, statistics are averaged and not corrected, who rests remembers nothing, and messages are tensors
    alone: packed into flat buffers and unpacked, they are the same.
    """
    run = executor(method)
    cards = run.server.cards
    assert all(bool((card.count_C == 0).any()) for card in cards)
    for round_, chosen in ((1, [0, 1]), (2, [1, 3])):
        sent = run.server.broadcast(round_)
        assert messages.checksum(messages.unpack(messages.pack(sent))) == messages.checksum(sent)
        outcome = run.round(round_, chosen, nobody)
        assert outcome.answered == tuple(chosen)
        assert not outcome.failed
        state = run.snapshot()
        assert not messages.not_finite(state)
    assert [client for client in range(5) if run.memory(client)] == [0, 1, 3]
    assert not any(messages.not_finite(dict(run.memory(client))) for client in range(5))
    assert not any("running" in name or "num_batches" in name for c in range(5) for name in run.memory(c))
    assert not any(name.startswith("drift/") and "running" in name for name in state)
    counter = state["weights/encoder.norm1.num_batches_tracked"]
    assert counter.dtype == torch.int64
    steps = [-(-len(run.runner._client(c)[1]) // 64) for c in (0, 1, 3)]
    assert int(counter) == max(steps[:2]) + max(steps[1:])
    assert float(state["weights/encoder.norm1.running_var"].min()) > 0
    scores = run.scores(["test"])["test"].values
    assert 0 <= scores["accuracy"] <= 1
