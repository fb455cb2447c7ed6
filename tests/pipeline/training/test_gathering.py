"""Updates that come in at random, over random workers, give the bits of one after the other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Averaging, Method, ServerState, Update
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Grid, Term, bounds_of
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.errors import RejectedError, UpdateError
from anchorfl.pipeline.training.gathering import Gathering
from anchorfl.tasks.contract import Card

QUICK = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**32)
METHOD = Averaging()
WEIGHTS = {"w": torch.ones(4, 3), "n": torch.tensor(0), "b": torch.zeros(5)}


def cards(count):
    none = torch.zeros(1)
    return [Card(client, 1 + 7 * client, none, none) for client in range(count)]


def updates(rng, count, huge):
    """Updates of all clients; those of ``huge`` are not for the grid."""
    out = {}
    for client in range(count):
        scale = 1e6 if client in huge else 1.0
        values = {
            n: torch.from_numpy(np.asarray(scale * rng.normal(size=v.shape))).to(v.dtype) for n, v in WEIGHTS.items()
        }
        out[client] = Update(values | {"n": torch.tensor(int(rng.integers(9)))})
    return out


def begun(count, grid):
    gathering = Gathering(METHOD, cards(count))
    gathering.begin(grid)
    return gathering


def grid_of(count):
    return Grid({"weights": bounds_of(WEIGHTS)}, {"": float(sum(card.num_examples for card in cards(count)))}, 1e4)


def over_workers(sent, rng, grid):
    """A server's gathering after workers in random calls, one of several clients, or of one."""
    server = begun(len(sent), grid)
    clients = rng.permutation(list(sent)).tolist()
    while clients:
        call = [clients.pop() for _ in range(min(len(clients), int(rng.integers(1, 5))))]
        worker = begun(len(sent), grid)
        for client in call:
            worker.add(client, sent[client])
        part = worker.part()
        # as on its way: nothing but tensors, in memory that is written over afterwards
        packed = messages.pack(part.sums)
        server.add_part(dataclasses.replace(part, sums=messages.unpack(packed, copy=False)))
        for buffer in packed.buffers.values():
            buffer[:] = 99
        for client, update in part.whole.items():
            lent = messages.rebuild(update, lambda _, t: t.clone())
            server.add(client, lent)
            server.flush()
            for _, value in messages.tensors(lent):
                value.fill_(77)
    return server


class Weighted(Averaging):
    """A mean whose weights clients decide."""

    def contribution(self, result):
        return Contribution({"weights": Term(result.update.weights, float(result.update.weights["b"][0]))})


@pytest.mark.parametrize("weight", [-1.0, float("inf")])
def test_a_weight_that_no_mean_has_is_refused(weight):
    """A negative one was added to the divisor, and its values left out."""
    gathering = Gathering(Weighted(), cards(2))
    gathering.add(0, Update(WEIGHTS | {"b": torch.ones(5)}))
    with pytest.raises(UpdateError, match="to the mean 'weights' has a weight that is negative or not finite"):
        gathering.add(1, Update(WEIGHTS | {"b": torch.full((5,), weight)}))
    assert torch.equal(gathering.means()["weights"]["w"], WEIGHTS["w"])


class Named(Averaging):
    """A mean of tensors that clients name, and ids of their own of any number."""

    def contribution(self, result):
        own = {"ids": torch.zeros(1 + result.card.client)}
        return Contribution({"weights": Term(result.update.weights, 1.0)}, own)


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_who_has_another_form_does_not_depend_on_who_came_first(grid, order):
    sent = {c: Update(dict(WEIGHTS)) for c in range(3)}
    sent[2] = Update({**WEIGHTS, "more": torch.ones(2)})
    got, want = (Gathering(Named(), cards(3)) for _ in range(2))
    for gathering, clients in ((got, order), (want, (0, 1))):
        gathering.begin(grid_of(3) if grid else None)
        for client in clients:
            gathering.add(client, sent[client])
    assert [*got.drop_others()] == [2]
    assert got.norms.keys() == {0, 1}
    assert messages.checksum(got.means().values) == messages.checksum(want.means().values)
    assert got.drop_others() == {}
    got.add(2, sent[0])  # it trained again
    assert got.drop_others() == {}


def test_sums_of_workers_are_not_thrown_away():
    worker, server = (begun(3, grid_of(3)) for _ in range(2))
    for client in (0, 1):
        worker.add(client, Update(dict(WEIGHTS)))
    server.add(2, Update(dict(WEIGHTS)))
    server.add_part(worker.part())
    assert server.drop_others() == {}
    assert server.norms.keys() == {0, 1, 2}


@QUICK
@given(SEEDS, st.integers(1, 9), st.integers(0, 3))
def test_any_calls_of_any_workers_give_the_bits_of_one_after_the_other(seed, count, huge):
    rng, grid = np.random.default_rng(seed), grid_of(count)
    sent = updates(rng, count, set(rng.choice(count, size=min(huge, count), replace=False).tolist()))
    one = begun(count, grid)
    for client, update in sent.items():
        one.add(client, update)
    want = one.means()
    for _ in range(3):
        got = over_workers(sent, rng, grid).means()
        assert messages.checksum(got.values["weights"]) == messages.checksum(want.values["weights"])
        assert torch.equal(got.weight["weights"], want.weight["weights"])
        assert list(got.clients) == list(want.clients) == list(range(count))
    plain = METHOD.merge(ServerState({}), begun_whole(sent).means(), None).weights
    for name, value in plain.items():
        assert torch.allclose(want["weights"][name].float(), value.float(), rtol=1e-6, atol=1e-7), name


def begun_whole(sent):
    gathering = begun(len(sent), None)
    for client, update in sent.items():
        gathering.add(client, update)
    assert list(gathering.whole) == list(sent)
    assert all(gathering.whole[client] is update for client, update in sent.items())
    return gathering


@QUICK
@given(SEEDS)
def test_the_mean_of_one_client_is_that_client(seed):
    sent = updates(np.random.default_rng(seed), 1, ())
    got = over_workers(sent, np.random.default_rng(0), grid_of(1)).means()
    assert messages.checksum(got["weights"]) == messages.checksum(sent[0].weights)


@QUICK
@given(SEEDS, st.integers(2, 6))
def test_what_is_dropped_leaves_no_trace(seed, count):
    """A client of weights out of scale is always whole, so that it can be refused; so is the first."""
    rng, grid = np.random.default_rng(seed), grid_of(count + 1)
    sent = updates(rng, count + 1, {count})
    with_it, without = over_workers(sent, rng, grid), begun(count + 1, grid)
    for client in range(count):
        without.add(client, sent[client])
    assert with_it.norms[count] > grid.largest_norm
    assert with_it.drop(count)
    assert with_it.norms == without.norms
    assert messages.checksum(with_it.means()["weights"]) == messages.checksum(without.means()["weights"])
    assert not with_it.drop(0)
    alone = begun(1, grid)
    alone.add(0, sent[0])
    assert alone.drop(0)
    assert (alone.results(), alone.norms) == ([], {})
    alone.add(0, sent[0])
    assert [r.card.client for r in alone.results()] == [0]


# ----------------------------------------------------------------------------------------------------------- the server


def server(experiment):
    return SerialExecutor(make_run_spec(experiment("fedavg"), lambda line: None)).server


def changed(sent, factor):
    return dataclasses.replace(sent, weights={k: factor * v for k, v in sent.weights.items()})


def test_an_update_comes_once(experiment):
    s = server(experiment)
    sent = s.broadcast(1)
    s.collect(1, 0, sent)
    with pytest.raises(ValueError, match="round 1: client 0 has sent its update already"):
        s.collect(1, 0, sent)
    with pytest.raises(ValueError, match=r"round 1: updates of \[0\] to merge, not of \[0, 1\]"):
        s.aggregate(1, [0, 1])


def test_a_round_that_begins_anew_forgets(experiment):
    s = server(experiment)
    for _ in range(2):
        sent = s.broadcast(1)
        s.collect(1, 0, changed(sent, 2))
    s.aggregate(1, [0])
    assert messages.checksum(s.state.weights) == messages.checksum(changed(sent, 2).weights)


def test_a_merge_that_breaks_the_model_asks_the_others_again(experiment, monkeypatch):
    """A sum does not give a client back: the largest is refused, all others send theirs once more."""
    s = server(experiment)
    before, sent = messages.checksum(s.snapshot()), s.broadcast(1)
    broken = changed(sent, float("inf"))
    for client, factor in enumerate((1.0, 1.5, 2.0)):
        s.collect(1, client, changed(sent, factor))
    with monkeypatch.context() as patch:
        patch.setattr(type(s.method), "merge", lambda self, state, means, ctx: broken)
        with pytest.raises(RejectedError, match="client 2: merged by FedAvg with its update, the largest") as refusal:
            s.aggregate(1, [0, 1, 2])
    assert (list(refusal.value.reasons), refusal.value.again) == ([2], (0, 1))
    assert messages.checksum(s.snapshot()) == before
    for client in (0, 1):
        s.collect(1, client, sent)
    s.aggregate(1, [0, 1])
    assert messages.checksum(s.state.weights) == messages.checksum(sent.weights)


def test_a_sum_that_was_harmed_on_its_way_is_refused_for_all_its_clients(experiment):
    s = server(experiment)
    sent = s.broadcast(1)
    worker = Gathering(s.method, s.cards)
    worker.begin(s.grid(1))
    for client in (0, 1):
        worker.add(client, sent)
    part = worker.part()
    part.sums["sums"]["weights"]["values"][next(iter(sent.weights))].fill_(float("nan"))
    s.collect_part(1, part)
    with pytest.raises(RejectedError, match=r"client 0: its sum with other clients', tensor .* non-finite") as refusal:
        s.aggregate(1, [0, 1])
    assert list(refusal.value.reasons) == [0, 1]


def test_a_sum_of_another_shape_is_refused_though_it_comes_first(experiment):
    s = server(experiment)
    sent = s.broadcast(1)
    worker = Gathering(s.method, s.cards)
    for clients, harmed in (((0, 1), True), ((2, 3), False)):
        worker.begin(s.grid(1))
        for client in clients:
            worker.add(client, sent)
        part = worker.part()
        if harmed:
            name, first = next(iter(part.sums["sums"]["weights"]["values"].items()))
            part.sums["sums"]["weights"]["values"][name] = first.reshape(-1)[:1]
        s.collect_part(1, part)
    with pytest.raises(RejectedError, match=r"client 0: its sum with other clients', tensor .* is \(1,\)") as refusal:
        s.aggregate(1, [0, 1, 2, 3])
    assert list(refusal.value.reasons) == [0, 1]
    s.aggregate(1, [2, 3])
    assert messages.checksum(s.state.weights) == messages.checksum(sent.weights)


def test_a_grid_is_for_sums_alone(experiment):
    """Robust averages and filters see every update."""
    for options, has in (({}, True), ({"aggregation": "median", "quorum": 1.0}, False), ({"clip_norm": 1.0}, False)):
        s = SerialExecutor(make_run_spec(experiment("fedavg", federation=options), lambda line: None)).server
        assert (s.grid(1) is not None) == has


def test_a_method_says_how_it_aggregates_when_it_is_made():
    """With neither half, or one, it would fail after its first round; beside an own ``aggregate``, it needs none."""

    class Neither(Method):
        begin = trainer = None

    class Half(Neither):
        contribution = None

    class Whole(Neither):
        def aggregate(self, state, results, ctx):
            return state

    for kind in (Neither, Half):
        with pytest.raises(TypeError, match="merge"):
            kind()
    assert not Whole().sums
