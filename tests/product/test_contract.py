"""Every shipped method passes the checks that authors of plug-ins get, and the checks find what they are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, Contribution, ServerState, Term, Update
from anchorfl.pipeline.methods import METHODS
from anchorfl.tasks.toy.single import toy_single
from anchorfl.testing import check_experiment, check_limit, check_method, check_task, small_experiment, stopped_before

CALLS = [0]


@pytest.mark.parametrize("method", METHODS)
def test_a_shipped_method_keeps_the_contract(experiment, tmp_path, method):
    """With moments that clients keep; on Ray's actors: tests/ray/test_executors.py."""
    check_experiment(experiment(method, optimizer={"state": "keep"}), tmp_path, ray=False)


@dataclass(frozen=True, kw_only=True)
class InPlace(Averaging):
    """Its server adds to the state that it was given."""

    name = "in-place"

    def merge(self, state, means, ctx):
        for key, value in state.weights.items():
            value.copy_(means["weights"][key])
        return ServerState(dict(state.weights))


class Scribbler(AveragingTrainer):
    replayable = False

    def update(self):
        next(iter(self.ctx.state.weights.values())).fill_(1.0)
        return super().update()


@dataclass(frozen=True, kw_only=True)
class Scribbles(Averaging):
    """Its clients write into what they are sent."""

    name = "scribbles"

    def trainer(self, ctx):
        return Scribbler(ctx)


@dataclass(frozen=True, kw_only=True)
class FirstCounts(Averaging):
    """Whoever comes first weighs most."""

    name = "first-counts"

    def contribution(self, result):
        CALLS[0] += 1
        return Contribution({"weights": Term(result.update.weights, 1 / CALLS[0])})


@dataclass(frozen=True)
class Wordy(Update):
    word: str = "a text"


class WordyTrainer(AveragingTrainer):
    def update(self):
        return Wordy(super().update().weights)


@dataclass(frozen=True, kw_only=True)
class SendsText(Averaging):
    """What it sends is no tensor."""

    name = "sends-text"

    def trainer(self, ctx):
        return WordyTrainer(ctx)


class Forgetter(AveragingTrainer):
    """Remembers in the module what belongs into ``memory``."""

    replayable = False

    def update(self):
        CALLS[0] += 1
        weights = super().update().weights
        return Update({name: value * (1 + 1e-3 * CALLS[0]) for name, value in weights.items()})


@dataclass(frozen=True, kw_only=True)
class Forgets(Averaging):
    name = "forgets"

    def trainer(self, ctx):
        return Forgetter(ctx)


class Idle(AveragingTrainer):
    replayable = False

    def epochs(self, epochs):
        return iter(())


@dataclass(frozen=True, kw_only=True)
class Idles(Averaging):
    """Ignores what clients learn, and the seed with it."""

    name = "idles"

    def begin(self, ctx):
        return ServerState({name: torch.zeros_like(value) for name, value in super().begin(ctx).weights.items()})

    def trainer(self, ctx):
        return Idle(ctx)


@dataclass(frozen=True, kw_only=True)
class Misspelt(Averaging):
    name = "misspelt"
    unused = {"optimizer.lr_rate": "method.lr"}  # noqa: RUF012


@dataclass(frozen=True, kw_only=True)
class NegativeWeights(Averaging):
    """Whose model got worse weighs less than nothing."""

    name = "negative-weights"

    def contribution(self, result):
        return Contribution({"weights": Term(result.update.weights, 1.0 - 2 * result.card.client)})


class CountsActive(AveragingTrainer):
    def active(self, data):
        return data.weight_NC.sum(-1).long()


@dataclass(frozen=True, kw_only=True)
class Counts(Averaging):
    """Its rows are chosen by numbers, which are taken for places."""

    name = "counts"

    def trainer(self, ctx):
        return CountsActive(ctx)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (NegativeWeights, "client 1: its contribution.. to the mean 'weights' has a weight that is negative"),
        (Counts, r"counts: a client fails: InputError: active\(\) of CountsActive gives torch.int64"),
        (InPlace, "in-place: merge or aggregate changes the state"),
        (Scribbles, "scribbles: a client writes into what it was sent"),
        (FirstCounts, "first-counts: the state after a round depends on the order"),
        (SendsText, "sends-text: a client fails: TypeError: message field 'word' is a str"),
        (Forgets, "forgets: a second run of the same seed: ends with other weights"),
        (Idles, "idles: another seed gives the same weights"),
        (Misspelt, "misspelt: unused names optimizer.lr_rate"),
    ],
)
def test_a_broken_promise_is_named(tmp_path, method, said):
    CALLS[0] = 0
    with pytest.raises(AssertionError, match=said):
        check_experiment(small_experiment(method()), tmp_path, ray=False)


def test_a_limit_that_is_none_is_named(tmp_path):
    check_limit(METHODS["fedprox"](mu=0.0), "fedavg", tmp_path / "is")
    with pytest.raises(AssertionError, match="fedprox with these options is not fedavg bit for bit"):
        check_limit(METHODS["fedprox"](mu=1.0), "fedavg", tmp_path / "is not")
    with pytest.raises(AssertionError, match="for no common kind of task"):
        check_limit(OnlyMulti(), METHODS["fedproto"](), tmp_path / "nothing")


@dataclass(frozen=True, kw_only=True)
class OnlyMulti(Averaging):
    name = "only-multi"
    supports = replace(Averaging.supports, kinds=("multi",))


@dataclass(frozen=True, kw_only=True)
class ScoredNowhere(Averaging):
    name = "scored-nowhere"
    evaluate_on = "client"


def test_a_misspelt_part_is_named(tmp_path):
    with pytest.raises(AssertionError, match=r"ScoredNowhere\.evaluate_on = 'client': one of server, clients"):
        check_method(ScoredNowhere(), tmp_path)


def test_a_shipped_task_passes(tmp_path):
    check_task("toy-multi", tmp_path)


def encoding(how):
    """A task whose encode is wrong."""

    def task():
        good = toy_single()

        def encode(table, spec):
            out = good.encode(table, spec)
            if how == "fails where there are no rows":
                np.stack([np.asarray(row[:1]) for row in out["x"].to_pylist()])
            shift = len(table) if how == "counts the rows" else 0
            x = [[1 + (token + shift) % 3 for token in row] for row in out["x"].to_pylist()]
            return out.set_column(out.column_names.index("x"), "x", pa.array(x, out["x"].type))

        return replace(good, name="wrong", encode=encode)

    return task


counts_the_rows, fails_without_rows = encoding("counts the rows"), encoding("fails where there are no rows")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("counts_the_rows", "wrong: encode gives a row another x where other rows stand beside it"),
        ("fails_without_rows", "wrong: encode fails on a piece of its rows: ValueError"),
    ],
)
def test_an_encode_that_looks_around_is_named(tmp_path, task, said):
    """Files, and blocks of Ray Data, hold other rows together."""
    with pytest.raises(AssertionError, match=said):
        check_task(f"{__name__}:{task}", tmp_path)


def test_a_run_that_ends_early_is_not_taken_for_stopped():
    with pytest.raises(AssertionError, match="ended before round 5"), stopped_before(5):
        pass
