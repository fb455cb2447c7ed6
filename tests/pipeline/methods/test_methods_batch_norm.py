"""Methods on the network of FedBM's tables: a residual network with BatchNorm, clients that lack classes, and some
clients a round.
"""

from __future__ import annotations

import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.storage.saved_model import load_model
from tests.runs import nobody, quiet

COUNTER, MEAN = "encoder.norm1.num_batches_tracked", "encoder.norm1.running_mean"
METHODS = ("feddyn", "fedetf", "fednh", "fedprox", "fedrod", "scaffold")


@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_with_batch_norm(residual, method):
    """Nothing is NaN, statistics are averaged and not corrected, who rests remembers nothing, and messages are tensors
    alone: packed into flat buffers and unpacked, they are the same.
    """
    executor = SerialExecutor(make_run_spec(residual(method), quiet))
    cards = executor.server.cards
    assert all(bool((card.count_C == 0).any()) for card in cards)
    for round_, chosen in ((1, [0, 1]), (2, [1, 3])):
        sent = executor.server.broadcast(round_)
        assert messages.checksum(messages.unpack(messages.pack(sent))) == messages.checksum(sent)
        outcome = executor.round(round_, chosen, nobody)
        assert outcome.answered == tuple(chosen)
        assert not outcome.failed
        state = executor.snapshot()
        assert not messages.not_finite(state)
    assert [client for client in range(5) if executor.memory(client)] == [0, 1, 3]
    assert not any(messages.not_finite(dict(executor.memory(client))) for client in range(5))
    assert not any("running" in name or "num_batches" in name for c in range(5) for name in executor.memory(c))
    assert not any(name.startswith("drift/") and "running" in name for name in state)
    counter = state[f"weights/{COUNTER}"]
    assert counter.dtype == torch.int64
    steps = [-(-len(executor.runner._client(c)[1]) // 64) for c in (0, 1, 3)]
    assert int(counter) == max(steps[:2]) + max(steps[1:])
    assert float(state["weights/encoder.norm1.running_var"].min()) > 0
    scores = executor.scores(["test"])["test"].values
    assert 0 <= scores["accuracy"] <= 1


def test_statistics_belong_to_fedreps_body(residual, finished_run):
    """They travel and are averaged, and are gathered in the epochs of the head as well; the head has none."""
    e = residual("fedrep", options={"head_epochs": 1})
    executor = SerialExecutor(make_run_spec(e, quiet))
    sent = executor.server.broadcast(1)
    assert {COUNTER, MEAN} <= sent.weights.keys()
    assert not any(name.startswith("head.") for name in sent.weights)
    assert executor.round(1, [0, 1], nobody).answered == (0, 1)
    state = executor.snapshot()
    steps = [-(-len(executor.runner._client(c)[1]) // 64) for c in (0, 1)]
    assert int(state[f"weights/{COUNTER}"]) == 2 * max(steps)
    assert not messages.not_finite(state)
    for client in (0, 1):
        own = [name for name in executor.memory(client) if name.startswith("personal.")]
        assert own == ["personal.head.weight", "personal.head.bias"]
    result = finished_run(e)
    saved = load_model(result.folder / "model").model.state_dict()
    assert float(saved[MEAN].abs().max()) > 0
    assert messages.checksum(dict(saved)) == result.checksum


def test_statistics_stay_with_fedprotos_clients(residual, finished_run):
    """Each has its own, those that rested the first ones; the scores use them."""
    e = residual("fedproto")
    executor = SerialExecutor(make_run_spec(e, quiet))
    for round_, chosen in ((1, [0, 1]), (2, [1, 3])):
        assert executor.round(round_, chosen, nobody).answered == tuple(chosen)
    means = {c: executor.memory(c)[f"personal.{MEAN}"] for c in (0, 1, 3)}
    assert not any(executor.memory(c) for c in (2, 4))
    assert not torch.equal(means[0], means[1])
    counts = {c: int(executor.memory(c)[f"personal.{COUNTER}"]) for c in means}
    steps = {c: -(-len(executor.runner._client(c)[1]) // 64) for c in means}
    assert counts == {0: steps[0], 1: 2 * steps[1], 3: steps[3]}
    assert not messages.not_finite(executor.snapshot())
    result = finished_run(e)
    assert 0 < result.scores["test"]["accuracy"] < 1
