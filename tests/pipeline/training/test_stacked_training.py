"""Stacks of clients give what each client gives alone: in float64 to 1e-9, so that no difference hides in rounding."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import AveragingTrainer
from anchorfl.pipeline.algorithm.optimizers import SGD as OurSGD
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.methods.fedprox import ProxTrainer
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.errors import QuorumError
from anchorfl.pipeline.training.local_training import FitResult
from anchorfl.pipeline.training.server import Server
from anchorfl.pipeline.training.stacked_training import Stack, _joined
from anchorfl.tasks.errors import InputError
from tests.faulty import Faulty, FaultyTrainer
from tests.runs import nobody, quiet

STACKED = [name for name, method in METHODS.items() if method.supports.stack]
SGD = {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-3, "microbatch_tokens": 0}
PAIRS = [(name, kind) for name in STACKED for kind in METHODS[name].supports.kinds]


def double(tree):
    return messages.rebuild(tree, lambda _, value: value.double() if value.is_floating_point() else value)


def double_rows(rows):
    names = ("y_NC", "known_NC", "weight_NC", *(("x",) if rows.x.is_floating_point() else ()))
    return replace(rows, **{name: getattr(rows, name).double() for name in names})


def results(e, stack, rounds=3):
    """Return every update and memory, by client and round, of some rounds from the first weights."""
    run_spec = make_run_spec(e, quiet)
    runner, server = ClientRunner(run_spec), Server(run_spec)
    runner.model.double()
    read = runner._client
    runner._client = lambda client: (read(client)[0], double_rows(read(client)[1]))
    runner.first_memory = double(runner.first_memory)
    memories, out = {}, {}
    for round_ in range(1, rounds + 1):
        sent = double(server.broadcast(round_))
        clients = range(e.task.clients) if round_ == 2 else range(1, e.task.clients)
        if stack:
            done = dict(runner.fit_stacked(round_, sent, memories, {c: {} for c in clients}, stack))
        else:
            done = {c: runner.fit(c, round_, sent, memories.get(c, {})) for c in clients}
        for client, result in done.items():
            assert isinstance(result, FitResult), result
            memories[client] = result.memory
            out[client, round_] = result
    return out


def check_equal(mine, other, tolerance=1e-9):
    assert mine.keys() == other.keys()
    for key, result in mine.items():
        assert result.loss == pytest.approx(other[key].loss, rel=1e-6)
        for a, b in ((result.update, other[key].update), (result.memory, other[key].memory)):
            values, others = dict(messages.tensors(a)), dict(messages.tensors(b))
            assert values.keys() == others.keys()
            for name, value in values.items():
                torch.testing.assert_close(value, others[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_client_sends_and_keeps_what_it_would_alone(experiment, name, kind):
    """With dropout, ragged texts, momentum and weight decay, clients of unlike rows, and some new in a round."""
    e = experiment(name, f"toy-{kind}", optimizer=SGD)
    check_equal(results(e, 4), results(e, 0))


@pytest.mark.parametrize("options", [{"refresh": "epoch"}, {"alternate_every": "epoch"}, {"alternating": False}])
def test_the_ways_of_fedalign(experiment, options):
    e = experiment("fedalign", options=options, optimizer=SGD)
    check_equal(results(e, 4), results(e, 0))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedalign"])
def test_adam_keeps_each_clients_own_steps(experiment, name):
    """Clients come back with other numbers of steps behind them. Adam divides rounding by rounding where a gradient is
    about zero, so the bound is wider.
    """
    e = experiment(name, optimizer={"microbatch_tokens": 0})
    one = results(e, 0)
    assert len({float(value) for r in one.values() for n, value in r.memory.items() if n.endswith("0.step")}) > 2
    check_equal(results(e, 4), one, tolerance=1e-6)


@pytest.mark.parametrize("name", ["moon", "scaffold", "fedalign", "anchor"])
@pytest.mark.parametrize("size", [2, 3])
def test_smaller_stacks_give_the_same(experiment, size, name):
    """Of three clients, stacks of two leave one; of four, stacks of three."""
    e = experiment(name, optimizer=SGD)
    check_equal(results(e, size), results(e, 4))


def test_clients_of_anchor_whose_gradients_are_corrected_in_full_beside_others(experiment):
    """Clients 0 and 1 identify all classes: theirs as far as they agree with those of the round before."""
    e = experiment("anchor", optimizer=SGD)
    every = tuple(range(4))
    e = replace(e, task=replace(e.task, client_classes=json.dumps([every, every, every[:2], every[2:]])))
    check_equal(results(e, 4), results(e, 0))


@pytest.mark.parametrize("change", [{}, {"skip_zero_rows": False}, {"crop": 2, "flip": "both"}, {"batch_size": 0}])
def test_images(experiment, change):
    e = images(experiment, "fedavg", **change)
    check_equal(results(e, 4), results(e, 0))


@pytest.mark.parametrize(("name", "norm"), [("fedavg", "batch"), ("scaffold", "group"), ("fedrep", "batch")])
def test_residual_networks(experiment, name, norm):
    """With BatchNorm, rows of one client are never beside padding, and its statistics are its own."""
    e = images(experiment, name, {"head_epochs": 1} if name == "fedrep" else {}, skip_zero_rows=False)
    e = replace(e, model=replace(e.model, network="resnet8", norm=norm))
    check_equal(results(e, 4, rounds=2), results(e, 0, rounds=2), tolerance=1e-7)


def images(experiment, name, method=None, **optimizer):
    options = {**SGD, "lr": 0.01, "batch_size": 32} | optimizer
    e = experiment(name, "digits", options=method, optimizer=options, federation={"epochs": 1})
    return replace(e, task=replace(e.task, classes_per_client=3))


def executed(e, cohorts=([0, 1, 2], [1, 2, 3])):
    executor = SerialExecutor(make_run_spec(e, quiet))
    return executor, [executor.round(round_, cohort, nobody) for round_, cohort in enumerate(cohorts, start=1)]


def test_a_run_of_stacks_has_the_same_bits_again_and_those_of_one_by_one_to_rounding(experiment):
    e = experiment("fedavg", optimizer=SGD, federation={"stack": 3})
    first, again = executed(e)[0].snapshot(), executed(e)[0].snapshot()
    assert messages.checksum(first) == messages.checksum(again)
    alone = executed(experiment("fedavg", optimizer=SGD))[0].snapshot()
    assert messages.checksum(first) != messages.checksum(alone)
    for name, value in alone.items():
        torch.testing.assert_close(first[name], value, rtol=1e-4, atol=1e-5)


class Stackable(FaultyTrainer):
    replayable = True


def test_a_client_that_fails_costs_itself(experiment, tmp_path, monkeypatch):
    """Its first update is not finite, its second comes from a stack of one."""
    faulty = Faulty(clients=(1,), kind="nan", times=1, folder=str(tmp_path))
    monkeypatch.setattr(Faulty, "trainer", lambda self, ctx: Stackable(ctx, self))
    e = replace(experiment("fedavg", optimizer=SGD, federation={"stack": 3}), method=faulty)
    executor, outcomes = executed(e)
    assert outcomes[0].answered == (0, 1, 2)
    assert [(f.client, f.kind) for f in outcomes[0].retried] == [(1, "rejected")]
    assert not outcomes[1].retried
    assert not messages.not_finite(executor.snapshot())


def test_an_error_in_the_steps_of_a_stack_is_each_clients(experiment, monkeypatch):
    monkeypatch.setattr(Stack, "train", lambda self: 1 / 0)
    with pytest.raises(QuorumError, match=r"clients 0, 1, 2: .*division by zero"):
        executed(experiment("fedavg", optimizer=SGD, federation={"stack": 3}))


def test_the_fault_of_one_client_in_the_steps_of_a_stack_costs_itself(experiment, monkeypatch):
    """It cost all of the stack, twice, and ended the run."""
    plain = AveragingTrainer.active

    def active(self, rows):
        if self.ctx.card.client == 2:
            raise ValueError("bad row")
        return plain(self, rows)

    monkeypatch.setattr(AveragingTrainer, "active", active)
    e = experiment("fedavg", optimizer=SGD, federation={"stack": 4})
    runner, server = ClientRunner(run_spec := make_run_spec(e, quiet)), Server(run_spec)
    done = dict(runner.fit_stacked(1, server.broadcast(1), {}, {c: {} for c in range(4)}, 4))
    assert [client for client, result in done.items() if isinstance(result, Exception)] == [2]
    assert str(done[2]) == "bad row"


@pytest.mark.parametrize("most", [2, 1, 0])
def test_a_stack_that_runs_out_of_memory_is_halved(experiment, monkeypatch, most):
    """Down to one client; what it then has no memory for is that client's fault."""
    e, train, sizes = experiment("fedavg", optimizer=SGD, federation={"stack": 3}), Stack.train, list[int]()

    def short(self):
        sizes.append(len(self.members))
        if len(self.members) > most:
            raise torch.OutOfMemoryError("no more")
        train(self)

    monkeypatch.setattr(Stack, "train", short)
    if not most:
        with pytest.raises(QuorumError, match=r"clients 0, 1, 2: .*no more"):
            executed(e)
        return
    executor, outcomes = executed(e)
    assert not any(o.failed or o.retried for o in outcomes)
    halved = {2: [3, 2, 1], 1: [3, 2, 1, 1, 1]}[most]
    assert sizes == halved * 2  # rounds
    monkeypatch.undo()
    for name, value in executed(e)[0].snapshot().items():
        torch.testing.assert_close(executor.snapshot()[name], value, rtol=1e-4, atol=1e-5)


def test_the_stack_of_a_network_that_pays(experiment):
    small = images(experiment, "fedavg")
    small = replace(small, federation=replace(small.federation, stack=0))
    assert SerialExecutor(make_run_spec(small, quiet)).stack == 3
    large = replace(small, model=replace(small.model, width=256))
    assert SerialExecutor(make_run_spec(large, quiet)).stack == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedalc", "optimizer": SGD}, "another method than 'fedalc'"),
        ({"optimizer": {}}, "optimizer.microbatch_tokens = 0 for rows with a length"),
        ({"optimizer": SGD | {"precision": "bfloat16"}}, "optimizer.precision = 'float32'"),
        ({"optimizer": SGD | {"onednn": True}}, "optimizer.onednn = False"),
        ({"optimizer": SGD, "cluster": {"executor": "forked"}}, "set cluster.executor to 'serial'"),
        ({"optimizer": SGD, "federation": {"stack": -1}}, "federation.stack = -1: must be at least 0"),
        ({"optimizer": SGD, "federation": {"stack": 2, "batched_clients": True}}, "leave federation.stack out"),
    ],
)
def test_stacks_that_cannot_be_are_refused_in_one_line(experiment, changes, message):
    changes = {"method": "fedavg", "federation": {"stack": 3}} | changes
    with pytest.raises(ValueError, match=message):
        SerialExecutor(make_run_spec(experiment(**changes), quiet))


def test_a_method_whose_steps_are_its_own_is_refused_in_one_line(experiment, monkeypatch):
    monkeypatch.setattr(AveragingTrainer, "replayable", False)
    with pytest.raises(InputError, match="AveragingTrainer has steps of its own"):
        executed(experiment("fedavg", optimizer=SGD, federation={"stack": 3}))


def test_a_loss_that_reads_one_clients_card_is_refused(experiment, monkeypatch):
    def loss(self, batch):
        return self.ctx.objective.loss(self.model(batch.x), batch) * self.ctx.card.num_examples

    monkeypatch.setattr(AveragingTrainer, "loss", loss)
    with pytest.raises(InputError, match="'num_examples' of a client's data, card"):
        executed(experiment("fedavg", optimizer=SGD, federation={"stack": 3}))


@pytest.mark.parametrize("item", [lambda m: m["x"], lambda m: "x" in m, len, list])
def test_so_is_one_that_reads_its_memory(experiment, monkeypatch, item):
    monkeypatch.setattr(AveragingTrainer, "loss", lambda self, batch: item(self.ctx.memory))
    with pytest.raises(InputError, match="of a client's data, card, memory or message"):
        executed(experiment("fedavg", optimizer=SGD, federation={"stack": 3}))


def test_texts_of_unlike_lengths(experiment):
    """A client's rows are padded to its own longest one; of four, all have one of the longest that there may be."""
    e = experiment("fedavg", optimizer=SGD, federation={"stack": 3})
    e = replace(e, task=replace(e.task, clients=20, classes_per_client=2))
    alone = replace(e, federation=replace(e.federation, stack=1))
    runner = ClientRunner(make_run_spec(e, quiet))
    cohorts = [[3, 4, 5], [6, 7, 8]]
    assert len({runner._client(client)[1].x.shape[1] for client in cohorts[1]}) > 1
    one, other = (executed(each, cohorts)[0].snapshot() for each in (e, alone))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.AdamW,
        torch.optim.RMSprop,
        partial(torch.optim.SGD, momentum=0.9, nesterov=True),
        partial(torch.optim.Adam, amsgrad=True),
        lambda p, lr: torch.optim.Adam([{"params": [one]} for one in p], lr=lr),
    ],
)
def test_optimizers_with_steps_of_their_own_are_refused(experiment, monkeypatch, kind):
    """Their steps were plain SGD's or Adam's in a stack."""
    monkeypatch.setattr(AveragingTrainer, "make_optimizers", lambda t: {"all": kind(t.model.parameters(), lr=0.1)})
    with pytest.raises(InputError, match=r"has an optimizer \(\w+\) that is not torch's Adam or SGD with one group"):
        executed(experiment("fedavg", optimizer=SGD, federation={"stack": 3}))


def test_optimizers_of_unlike_rates_are_refused(experiment, monkeypatch):
    def make_optimizers(trainer):
        return {"all": torch.optim.SGD(trainer.model.parameters(), lr=0.1 * (1 + trainer.ctx.card.client))}

    monkeypatch.setattr(AveragingTrainer, "make_optimizers", make_optimizers)
    with pytest.raises(InputError, match="the clients' optimizers have other rates"):
        executed(experiment("fedavg", optimizer=SGD, federation={"stack": 3}))


def test_a_penalty_may_be_none(experiment, monkeypatch):
    e = experiment("fedprox", optimizer=SGD, federation={"stack": 3})
    monkeypatch.setattr(ProxTrainer, "penalty", lambda self: None)
    none = executed(e)[0].snapshot()
    assert messages.checksum(none) == messages.checksum(executed(replace(e, method=METHODS["fedavg"]()))[0].snapshot())
    monkeypatch.setattr(ProxTrainer, "penalty", lambda self: None if self.ctx.card.client else torch.zeros(()))
    with pytest.raises(InputError, match="some of the clients have a penalty, and others none"):
        executed(e)


def test_attributes_that_some_clients_share_are_each_clients_own():
    same, mine, others = torch.ones(2), torch.zeros(2), torch.full((2,), 3.0)
    joined = _joined([{"a": same, "b": mine}, {"a": same, "b": others}], "x")
    assert torch.equal(joined["a"], torch.ones(2, 2))
    assert torch.equal(joined["b"], torch.stack([mine, others]))
    assert _joined([{"a": same}, {"a": same}], "x") is None
    with pytest.raises(InputError, match="x holds more than tensors"):
        _joined([{"a": "word", "b": mine}, {"a": "word", "b": others}], "x")


class OwnVectorTrainer(AveragingTrainer):
    """Adds a vector of the client's own to the logits, with an optimizer of its own."""

    replayable, refresh = True, "epoch"

    def __init__(self, ctx):
        classes = ctx.data.y_NC.shape[1]
        self.own_C = nn.Parameter(ctx.memory.get("own", torch.zeros(classes, dtype=torch.float64)).clone())
        super().__init__(ctx)
        self.own_C.grad = torch.zeros_like(self.own_C)
        self.parameters = [*self.parameters, self.own_C]

    def make_optimizers(self):
        return super().make_optimizers() | {"own": OurSGD([self.own_C], lr=1.0)}

    def loss(self, batch):
        return self.ctx.objective.loss(self.model(batch.x) + self.own_C, batch)

    def memory(self):
        return super().memory() | {"own": self.own_C.detach().clone()}


def test_a_trainers_own_parameters_are_trained_after_its_rows_were_asked_for_anew(experiment, monkeypatch):
    """They stood still from the second epoch on."""
    monkeypatch.setattr(FedAvg, "trainer", lambda self, ctx: OwnVectorTrainer(ctx))
    e = experiment("fedavg", optimizer=SGD, federation={"epochs": 3})
    check_equal(results(e, stack=3, rounds=1), results(e, stack=0, rounds=1))


class OfAllRowsTrainer(AveragingTrainer):
    """Weighs its loss by a mean over all of the client's rows, which a stack would have of padded ones."""

    replayable = True

    def __init__(self, ctx):
        super().__init__(ctx)
        self.z_NC = self.model.head(ctx.infer(self.model, ctx.data)).detach()

    def loss(self, batch):
        return super().loss(batch) * self.z_NC.square().mean()


def test_a_loss_over_all_rows_of_a_client_is_no_number_in_a_stack(experiment, monkeypatch):
    """It was a wrong one, where the client's rows had been padded with zeros."""
    monkeypatch.setattr(FedAvg, "trainer", lambda self, ctx: OfAllRowsTrainer(ctx))
    e = experiment("fedavg", optimizer=SGD)
    e = replace(e, task=replace(e.task, partition="dirichlet", beta=0.3))
    run_spec = make_run_spec(e, quiet)
    runner, sent = ClientRunner(run_spec), Server(run_spec).broadcast(1)
    clients = range(run_spec.experiment.task.clients)
    done = dict(runner.fit_stacked(1, sent, {}, {c: {} for c in clients}, len(clients)))
    rows = {c: len(runner._client(c)[1]) for c in clients}
    for client, result in done.items():
        if rows[client] == max(rows.values()):
            assert result.loss == pytest.approx(runner.fit(client, 1, sent, {}).loss, rel=1e-5)
        else:
            assert "non-finite values" in str(result)
