"""FedProto: its limits, rounds against NumPy, the nearest prototype, what a client keeps and what it sends.

Oracle, from the paper (Tan et al., AAAI 2022) in the form of the authors' code: with z the representation of a row and
p_y the prototype of its class, the loss of a mini-batch is its cross-entropy + lambda_ * sum (z - p_y)^2 / (rows * D),
over the rows whose class has a prototype; then the client sends the mean of z over its rows of each class, by the
network as it ends. Server: p_c is the plain mean over the participants that have class c; without any it stays.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientResult
from anchorfl.pipeline.algorithm.parameters import load_sent, weights_of
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods.fedproto import FedProto, ProtoState
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.local_training import TrainingSpec, fit, infer
from anchorfl.tasks.contract import Card, ClientData, Objective
from tests.pipeline import compared
from tests.pipeline.compared import SHAPES, C, D, N, arrays, assert_close, base_loss, elsewhere, encode, logits, slope
from tests.runs import nobody, quiet

OWN = {f"personal.{name}": shape for name, shape in SHAPES.items()}
WHOLE = replace(compared.WHOLE, state="reset")


def client_of(i):
    """Make client i: 5 rows of class i, 3 of class i + 1, and 4 without a label."""
    rng = np.random.default_rng(i)
    x = torch.from_numpy(rng.normal(size=(N, compared.F)))
    class_N = torch.tensor([i] * 5 + [i + 1] * 3 + [-1] * 4)[torch.from_numpy(rng.permutation(N))]
    known = (class_N >= 0)[:, None].double().expand(N, C).clone()
    y = torch.eye(C, dtype=torch.float64)[class_N.clamp(min=0)] * known
    card = Card(i, N, y.sum(0).long(), y.sum(0) > 0)
    return card, ClientData(x, y, known, Objective("single").weights(y, known))


def state_of(held, seed=4):
    """Make a state whose classes ``held`` have prototypes."""
    rng = np.random.default_rng(seed)
    held_C = torch.tensor([c in held for c in range(C)])
    return ProtoState({}, torch.from_numpy(rng.normal(size=(C, D))) * held_C[:, None], held_C)


def started(method, state, weights=None):
    """Return the client half of client 1 at some weights, and all its rows as one mini-batch in two pieces."""
    card, data = client_of(1)
    model = compared.dense().train()
    memory = method.first_memory(model)
    load_sent(model, {})
    ctx = ClientContext(model, state, card, data, memory, Objective("single"), WHOLE, infer, torch.Generator())
    local = method.trainer(ctx)
    if weights is not None:
        model.load_state_dict(weights)
    return local, [data.rows(torch.arange(0, 5), N), data.rows(torch.arange(5, N), N)]


def distance(w, data, prototypes, held):
    """Compute the second term without lambda_, row by row."""
    total, z_ND = 0.0, encode(w, data.x.numpy())
    for n in range(N):
        c = int(data.y_NC[n].argmax())
        if data.known_NC[n, 0] and c in held:
            total += ((z_ND[n] - prototypes[c]) ** 2).sum() / (N * D)
    return total


def test_one_client_alone_is_fedavg_bit_for_bit(experiment):
    """Both only train where there is nobody else and no distance."""
    alone = {"federation": {"clients_per_round": 1, "rounds": 3}}
    e = experiment("fedavg", **alone)
    e = replace(e, task=replace(e.task, clients=1, partition="iid"))
    plain = compared.history(e)
    got = compared.history(replace(e, method=FedProto(lambda_=0.0)))
    for (weights, loss, memories, _), (_, loss0, memories0, _) in zip(plain, got, strict=True):
        own = {
            f"weights/{k.removeprefix('personal.')}": v for k, v in memories0[0].items() if k.startswith("personal.")
        }
        assert messages.checksum(own) == messages.checksum(weights)
        assert loss0 == loss
        assert all(torch.equal(memories0[0][k], v) for k, v in memories[0].items())


def test_there_is_no_distance_before_there_are_prototypes(experiment):
    e = experiment("fedproto", federation={"clients_per_round": 4, "rounds": 2})
    near, free = compared.history(e), compared.history(replace(e, method=FedProto(lambda_=0.0)))
    for round_, same in ((0, True), (1, False)):
        memories, memories0 = near[round_][2], free[round_][2]
        for client in range(4):
            assert (messages.checksum(memories[client]) == messages.checksum(memories0[client])) is same


@pytest.mark.parametrize("held", [(0, 1, 2, 3), (1,), ()])
def test_loss_and_gradient_equal_numpy(held):
    """Client 1 has classes 1 and 2 and rows without a label; the mini-batch comes in two pieces."""
    state = state_of(held)
    local, micro_batches = started(FedProto(lambda_=0.7), state, elsewhere(compared.dense().state_dict()))
    data, prototypes = local.ctx.data, state.rows_CD.numpy()

    def whole(w):
        s_NC = logits(w, data.x.numpy())
        return base_loss("single", s_NC, data) + 0.7 * distance(w, data, prototypes, held)

    compared.assert_gradient(local, micro_batches, whole)
    assert bool(distance(arrays(local.model.state_dict()), data, prototypes, held) > 0) is bool(held)


def test_four_rounds_equal_numpy():
    """3 clients with classes 01, 12 and 23, of which some take part; class 3 stays as it is while client 2 rests."""
    method, selected = FedProto(lambda_=0.7), [(0, 2), (0, 1), (1, 2), (0,)]
    clients = [client_of(i) for i in range(3)]
    ctx = compared.server(compared.dense(), [card for card, _ in clients])
    state, training = method.begin(ctx), TrainingSpec(method, Objective("single"), WHOLE, 2, 3)
    memory = [method.first_memory(compared.dense()) for _ in clients]
    own = [arrays(compared.dense().state_dict()) for _ in clients]
    rows, held = np.zeros((C, D)), set()
    for round_, chosen in enumerate(selected, 1):
        results, means = [], {c: [] for c in range(C)}
        for i in chosen:
            card, data = clients[i]
            got = fit(training, compared.dense(), card, data, state, memory[i], round_)
            memory[i], w, x = got.memory, own[i], data.x.numpy()
            results.append(ClientResult(card, got.update))

            def whole(at, data=data, x=x, rows=rows, held=frozenset(held)):
                return base_loss("single", logits(at, x), data) + 0.7 * distance(at, data, rows, held)

            for _ in range(2):
                g = slope(whole, w)
                w = {name: value - WHOLE.lr * g[name] for name, value in w.items()}
            own[i] = w
            for c in range(C):
                if of_class := [n for n in range(N) if data.y_NC[n, c] == 1]:
                    means[c].append(encode(w, x[of_class]).mean(0))
            assert_close(arrays({k.removeprefix("personal."): v for k, v in memory[i].items()}), w, 1e-7)
        for c in range(C):
            if means[c]:
                rows = np.concatenate([rows[:c], np.mean(means[c], axis=0)[None], rows[c + 1 :]])
                held.add(c)
        state = method.aggregate(state, results, ctx)
        assert np.abs(state.rows_CD.numpy() - rows).max() < 1e-7
        assert set(state.held_C.nonzero().flatten().tolist()) == held
    assert held == {0, 1, 2, 3}


def test_the_nearest_prototype_decides_and_one_that_is_not_there_never_does():
    state = state_of((0, 2))
    model, method = compared.dense(), FedProto(inference="prototype")
    memory = {f"personal.{name}": value for name, value in elsewhere(model.state_dict()).items()}
    own = method.personal_model(model, state, memory)
    z_ND = own.encoder(client_of(0)[1].x).detach()
    far_NC = ((z_ND[:, None] - state.rows_CD) ** 2).mean(-1)
    got_NC = own.head(z_ND)
    assert got_NC.argmax(-1).tolist() == [(0, 2)[int(n)] for n in far_NC[:, [0, 2]].argmin(-1)]
    assert len(set(got_NC.argmax(-1).tolist())) == 2
    expected = (-far_NC)[:, [0, 2]].log_softmax(-1)
    assert torch.allclose(got_NC.log_softmax(-1)[:, [0, 2]], expected, atol=1e-12)
    assert bool(torch.isfinite(got_NC.log_softmax(-1)).all())
    assert (
        method.personal_model(model, state_of(()), memory).head(z_ND).softmax(-1) == 1 / C
    ).all()  # before there are any


@pytest.mark.parametrize("inference", ["classifier", "prototype"])
def test_a_clients_own_model_has_the_weights_of_its_memory(inference):
    model = compared.dense()
    own = elsewhere(model.state_dict())
    got = FedProto(inference=inference).personal_model(
        model, state_of((0,)), {f"personal.{k}": v for k, v in own.items()}
    )
    assert isinstance(got, Classifier)
    assert all(torch.equal(v, own[k]) for k, v in weights_of(model).items())
    x = client_of(0)[1].x
    assert torch.equal(got.encoder(x), model.encoder(x))
    assert torch.equal(got(x), model(x)) is (inference == "classifier")


def test_means_are_of_the_network_in_evaluation():
    """Dropout 0.5: the means that are sent are those of the weights that are kept, and draw no mask."""
    model = compared.network(dropout=0.5)
    method, (card, data) = FedProto(), compared.texts()
    training = TrainingSpec(method, Objective("single"), compared.PLAIN, 1, 3)
    state = method.begin(compared.server(model, [card]))
    got = fit(training, model, card, data, state, method.first_memory(model), 1)
    model.load_state_dict({k.removeprefix("personal."): v for k, v in got.memory.items() if k.startswith("personal.")})
    z_ND = infer(model, data)
    for row_D, c in zip(got.update.rows_KD, got.update.held_C.nonzero().flatten(), strict=True):
        assert torch.allclose(row_D, z_ND[data.y_NC[:, c] == 1].mean(0), atol=1e-6)


def test_own_networks_survive_and_clients_that_rest_keep_theirs(experiment):
    rounds = compared.history(experiment("fedproto", federation={"clients_per_round": 2, "rounds": 4}))
    assert all(weights == {} for weights, *_ in rounds)
    last = compared.assert_resting_clients_keep(rounds)
    assert len({messages.checksum(memory) for memory in last.values()}) == 4


def test_the_exact_tensors_on_the_wire():
    """Down every prototype and which of them there are; up a row for each class that the client has."""
    method, (card, data) = FedProto(), client_of(1)
    state = method.begin(compared.server(compared.dense(), [card]))
    down = {"rows_CD": (C, D), "held_C": (C,)}
    assert list(compared.shapes(method.broadcast(state, None)).items()) == list(down.items())
    assert not state.held_C.any()
    for options, kept in ((WHOLE, OWN), (compared.PLAIN, None)):
        training = TrainingSpec(method, Objective("single"), options, 2, 3)
        got = fit(training, compared.dense(), card, data, state, method.first_memory(compared.dense()), 1)
        assert list(compared.shapes(got.update).items()) == [("rows_KD", (2, D)), ("held_C", (C,))]
        assert got.update.held_C.tolist() == [False, True, True, False]
        assert {k: v for k, v in compared.shapes(got.memory).items() if k.startswith("personal.")} == OWN
        assert {k.split(".")[0] for k in got.memory} == ({"personal"} if kept else {"personal", "all"})


def test_bytes_are_those_of_the_prototypes(experiment):
    e = experiment("fedproto")
    executor = SerialExecutor(make_run_spec(e, quiet))
    outcome = executor.round(1, [0, 1, 3], nobody)
    width, classes = e.model.width, len(executor.server.cards[0].count_C)
    held = sum(int((executor.server.cards[c].count_C > 0).sum()) for c in (0, 1, 3))
    assert outcome.bytes_down == 3 * (classes * width * 4 + classes)
    assert outcome.bytes_up == held * width * 4 + 3 * classes


@pytest.mark.parametrize("double", [True, False])
def test_the_savings_change_nothing(double):
    """Three rounds of one client of texts, which is near its own prototypes from round 2 on."""
    ends = []
    for options in (compared.PLAIN, *compared.SAVINGS.values()):
        model, (card, data) = compared.network(), compared.texts()
        model = model.double() if double else model
        method = FedProto()
        ctx = compared.server(model, [card])
        state, memory = method.begin(ctx), method.first_memory(model)
        training = TrainingSpec(method, Objective("single"), replace(options, state="reset"), 2, 5)
        for round_ in (1, 2, 3):
            got = fit(training, model, card, data, state, memory, round_)
            state, memory = method.aggregate(state, [ClientResult(card, got.update)], ctx), got.memory
        ends.append(memory | {"rows": state.rows_CD})
    for end in ends[1:]:
        for name, value in end.items():
            gap_, size = (value - ends[0][name]).abs(), float(ends[0][name].abs().max())
            if name.endswith(compared.KEYS):
                gap_[8:16] = 0  # a gradient of rounding (compared.gap)
            assert float(gap_.max()) / max(size, 1e-12) < (1e-12 if double else 1e-5), name


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"\Amethod\.lambda_ = -1\.0: must be at least 0\Z"):
        FedProto(lambda_=-1.0)
