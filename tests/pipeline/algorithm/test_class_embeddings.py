"""FedAwS, FedALC and their baselines: the client's step against an independent derivation; the limits; what travels.

Shape suffixes: N rows, C classes, D width.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.class_embeddings import CLASS_ROWS, RowUpdate
from anchorfl.pipeline.algorithm.contract import ClientResult
from anchorfl.pipeline.methods import METHODS
from anchorfl.pipeline.training.local_training import TrainingSpec, fit
from anchorfl.tasks.arrays.labels import Labels
from anchorfl.tasks.contract import Objective
from tests.pipeline.compared import assert_close, shapes
from tests.pipeline.compared import slope as differences
from tests.pipeline.one_class import ETA, SGD, C, D, begun, clients, explicit, network, parts, rows, server

FEDALC, FEDAWS = METHODS["fedalc"], METHODS["fedaws"]


# ------------------------------------------------------------------------------------------------------------- a client


def test_a_client_takes_one_step_on_theta_and_its_row():
    """Eq. 14 by finite differences in NumPy: theta - eta dR/dtheta, and the row likewise, back at length 1."""
    method, data = METHODS["fedavg-positive"](class_embedding_lr=0.3), rows()
    model = network()
    state, cards = begun(method, model, data)
    card, held = clients(data)[1]
    names = [n for n, _ in model.named_parameters() if n != CLASS_ROWS]
    w = {n: state.weights[n].numpy().copy() for n in names} | {"row": state.weights[CLASS_ROWS][1].numpy().copy()}
    x = held.x.numpy()

    def risk(w):
        h = np.tanh(x @ w["encoder.0.weight"].T + w["encoder.0.bias"]) @ w["encoder.2.weight"].T + w["encoder.2.bias"]
        cosine = (h / np.linalg.norm(h, axis=1, keepdims=True)) @ w["row"]
        return (np.maximum(0, 0.9 - cosine) ** 2).mean()

    grad = differences(risk, w)
    want = {n: w[n] - ETA * grad[n] for n in names}
    row = w["row"] - 0.3 * grad["row"]
    training = TrainingSpec(method, Objective("multi"), SGD, 1, 0)
    sent = method.broadcast(state, server(model, cards))
    got = fit(training, model, card, held, sent, {}, 1, method.client_message(state, card))
    assert got.loss == pytest.approx(risk(w), abs=1e-12)
    assert_close({n: got.update.weights[n].numpy() for n in names}, want, 1e-8)
    assert np.abs(got.update.row_D.numpy() - row / np.linalg.norm(row)).max() < 1e-8
    assert not got.memory


@pytest.mark.parametrize("epochs", [1, 3])
def test_every_mini_batch_takes_a_step_of_its_own_gradient(epochs):
    """A step on theta and row is the same whether it is the third of a round, or the first of one that begins there."""
    method, data = METHODS["fedavg-positive"](class_embedding_lr=0.3), rows()
    model = network()
    state, cards = begun(method, model, data)
    card, held = clients(data)[1]
    sent, own = method.broadcast(state, server(model, cards)), method.client_message(state, card)
    whole = fit(TrainingSpec(method, Objective("multi"), SGD, epochs, 0), model, card, held, sent, {}, 1, own).update
    for _ in range(epochs):
        once = fit(TrainingSpec(method, Objective("multi"), SGD, 1, 0), model, card, held, sent, {}, 1, own).update
        sent, own = replace(sent, weights=once.weights), {"row": once.row_D}
    assert torch.allclose(whole.row_D, once.row_D, rtol=0, atol=1e-12)
    assert all(torch.allclose(v, once.weights[n], rtol=0, atol=1e-12) for n, v in whole.weights.items())


def test_a_class_without_a_client_leaves_the_others_their_rows():
    """Clients 0 and 1 identify classes 1 and 3: their rows are those of the classes, whatever the clients' numbers."""
    method, model = METHODS["fedavg-positive"](), network()
    cards = [replace(clients(rows())[c][0], client=number) for number, c in enumerate((1, 3))]
    state = method.begin(server(model, cards))
    before = state.weights[CLASS_ROWS]
    told = [method.client_message(state, card)["row"] for card in cards]
    assert torch.equal(torch.stack(told), before[[1, 3]])
    updates = [RowUpdate({n: v for n, v in state.weights.items() if n != CLASS_ROWS}, -row) for row in told]
    results = [ClientResult(card, update) for card, update in zip(cards, updates, strict=True)]
    after = method.aggregate(state, results, server(model, cards)).weights[CLASS_ROWS]
    assert torch.equal(after, before * torch.tensor([1, -1, 1, -1])[:, None])


def test_a_row_beyond_the_margin_has_no_loss():
    method = METHODS["fedavg-positive"](margin=0.9)
    z = torch.tensor([[1.0, 0.0], [0.95, 0.1], [0.0, 1.0]], dtype=torch.float64)
    row = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(3, -1)
    assert method.batched_round().loss(z, row).tolist() == pytest.approx([0, 0, 0.81])


# ---------------------------------------------------------------------------------------------------------- the limits


@pytest.mark.parametrize("name", ["fedalc", "fedaws"])
def test_lambda_0_is_fedavg_bit_for_bit(name):
    got, want = explicit(METHODS[name](lambda_=0.0), rows()), explicit(METHODS["fedavg-positive"](), rows())
    assert [messages.checksum(s.weights) for s, _ in got] == [messages.checksum(s.weights) for s, _ in want]
    other = explicit(METHODS[name](lambda_=1000.0), rows())
    assert messages.checksum(other[0][0].weights) != messages.checksum(want[0][0].weights)


@pytest.mark.parametrize("form", ["neg_d2", "hinge_adaptive", "hinge_const"])
def test_equal_correlations_are_fedaws_bit_for_bit(form):
    """Every pair has the same weight where no two labels occur together."""
    data = rows()
    alone = type(data)(data.x_NF, Labels.of_matrix(np.eye(C, dtype=bool)[np.arange(len(data)) % C]))
    got, want = (explicit(m(regularizer=form, lambda_=500.0, neighbours=2), alone) for m in (FEDALC, FEDAWS))
    assert [messages.checksum(s.weights) for s, _ in got] == [messages.checksum(s.weights) for s, _ in want]
    apart = [explicit(m(regularizer=form, lambda_=500.0, neighbours=2), data) for m in (FEDALC, FEDAWS)]
    assert messages.checksum(apart[0][0][0].weights) != messages.checksum(apart[1][0][0].weights)


def test_flag_with_uniform_labels_is_fedavg_and_with_occurrences_weighs_by_rows():
    for labels, weighting in (("uniform", "uniform"), ("occurrence", "samples")):
        got = explicit(METHODS["flag"](label_weights=labels), rows())
        want = explicit(METHODS["fedavg-positive"](class_embedding_lr=0.0, weighting=weighting), rows())
        assert [messages.checksum(s.weights) for s, _ in got] == [messages.checksum(s.weights) for s, _ in want]


def test_fedmlh_with_one_part_and_a_bucket_each_is_fixed_rows():
    """One network, whose rows come from buckets: with as many buckets as draws need, no two classes share one."""
    method = METHODS["fedmlh"](hash_tables=1, buckets=1000)
    assert len({method.bucket(0, c) for c in range(C)}) == C
    state, _ = begun(method, network(), rows())
    fixed = METHODS["fedavg-positive"](class_embedding_lr=0.0)
    model = network()
    with torch.no_grad():
        model.get_parameter(CLASS_ROWS).copy_(state.weights[CLASS_ROWS])
    got, want = explicit(method, rows()), explicit(fixed, rows(), model=model)
    assert [messages.checksum(s.weights) for s, _ in got] == [messages.checksum(s.weights) for s, _ in want]


def test_fedmlh_gives_classes_of_a_bucket_the_same_part():
    method = METHODS["fedmlh"](hash_tables=3, buckets=2)
    state, _ = begun(method, network(3), rows())
    part_CRD = state.weights[CLASS_ROWS].view(C, 3, D // 3)
    for r, a, b in itertools.product(range(3), range(C), range(C)):
        same = method.bucket(r, a) == method.bucket(r, b)
        assert torch.equal(part_CRD[a, r], part_CRD[b, r]) == same


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_a_server_adam_step_is_adams(decay):
    """Two steps of Adam in NumPy on theta - mean of theta, the second with a rate that has decayed."""
    method, data = (
        METHODS["fedavg-positive"](server="adam", server_lr=0.02, server_lr_decay=decay, class_embedding_lr=0.0),
        rows(),
    )
    plain = METHODS["fedavg-positive"](class_embedding_lr=0.0)
    m = v = 0.0
    model = network()
    state, cards = begun(method, model, data)
    theta = state.weights["encoder.0.weight"].numpy().copy()
    for t in (1, 2):
        before = {k: x.clone() for k, x in state.weights.items()}
        held = network()
        held.load_state_dict(before)
        mean = explicit(plain, data, 1, model=held)[0][0].weights
        g = theta - mean["encoder.0.weight"].numpy()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - 0.02 * decay ** (t - 1) * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        state = method.finish_round(state, mean, state.sent_C, replace(server(model, cards), round=t))
        assert np.abs(state.weights["encoder.0.weight"].numpy() - theta).max() < 1e-12


def test_rows_come_to_rest_with_their_rates():
    """A step on a row and the regularizer's in round 4 at a decay of 0.5 are those of an eighth of the rates."""
    data, options = rows(), {"lambda_": 300.0, "neighbours": 2}
    slow = FEDAWS(class_embedding_lr=0.4, class_embedding_lr_decay=0.5, **options)
    eighth = FEDAWS(class_embedding_lr=0.05, **options | {"lambda_": 37.5})
    model = network()
    state, cards = begun(slow, model, data)
    card, held = clients(data)[1]
    sent = slow.broadcast(state, server(model, cards))
    training = [TrainingSpec(method, Objective("multi"), SGD, 1, 5) for method in (slow, eighth)]
    moved = [fit(t, model, card, held, sent, {}, 4, slow.client_message(state, card)).update.row_D for t in training]
    assert torch.equal(*moved)
    settled = [
        m.update_class_rows(state.weights[CLASS_ROWS], state, replace(server(model, cards), round=4))[0]
        for m in (slow, eighth)
    ]
    assert torch.equal(*settled)
    assert not torch.equal(
        settled[0], slow.update_class_rows(state.weights[CLASS_ROWS], state, replace(server(model, cards), round=1))[0]
    )


@pytest.mark.parametrize("decay", [0.0, 1.5])
@pytest.mark.parametrize("name", ["server_lr_decay", "class_embedding_lr_decay"])
def test_a_decay_out_of_range_is_refused(name, decay):
    with pytest.raises(ValueError, match=rf"method\.{name} = .*: must be in \(0, 1\]"):
        METHODS["fedalc"](**{name: decay})


# --------------------------------------------------------------------------------------------------------- what travels


THETA = {f"weights/{n}": tuple(p.shape) for n, p in network().named_parameters() if n != CLASS_ROWS}


@pytest.mark.parametrize("name", ["fedalc", "fedaws", "fedavg-positive", "fedalc-fixed", "flag", "fedmlh"])
def test_theta_and_one_row_travel_and_no_other(name):
    method = METHODS[name](hash_tables=1) if name == "fedmlh" else METHODS[name]()
    moves = bool(method.class_embedding_lr)
    state, cards = begun(method, network(), rows())
    sent = {k: s for k, s in shapes(method.broadcast(state, server(network(), cards))).items() if s != (0,)}
    assert sent == THETA
    assert shapes(method.client_message(state, cards[2])) == {"row": (D,)}
    assert torch.equal(method.client_message(state, cards[2])["row"], state.weights[CLASS_ROWS][2])
    later = explicit(method, rows(), 1)[0][0]
    assert shapes(method.client_message(later, cards[2])) == ({"row": (D,)} if moves else {}), "a fixed row goes once"


def test_a_client_that_was_missing_gets_its_fixed_row_later():
    method = METHODS["flag"]()
    state, _ = explicit(method, rows(), 1, chosen=[0, 2])[0]
    _, cards = begun(method, network(), rows())
    assert [bool(method.client_message(state, card)) for card in cards] == [False, True, False, True]
    assert len(explicit(method, rows(), 3, chosen=[1, 2])) == 3


def test_a_fixed_row_is_sent_once_in_a_run():
    """Also where a client was last seen several rounds ago, and others came in between."""
    method, model = METHODS["flag"](), network()
    state, cards = begun(method, model, rows())
    asked = []
    for round_, chosen in enumerate(([0, 1], [2], [0, 3]), 1):
        results = []
        for c in chosen:
            told = method.client_message(state, cards[c])
            asked.append((round_, c, bool(told)))
            results.append(ClientResult(cards[c], RowUpdate({"encoder.0.bias": torch.zeros(2)}, torch.zeros(0))))
        state = method.aggregate(state, results, server(model, cards, round_=round_))
    assert asked == [(1, 0, True), (1, 1, True), (2, 2, True), (3, 0, False), (3, 3, True)]


def test_hash_functions_of_fedmlh_are_independent():
    """Of 1,000 classes in 50 buckets, two functions give about a 50th the same bucket, and no bucket stays empty."""
    method = METHODS["fedmlh"](hash_tables=4, buckets=50)
    of_RC = np.array([[method.bucket(r, c) for c in range(1000)] for r in range(4)])
    for one, other in itertools.combinations(of_RC, 2):
        assert 5 < (one == other).sum() < 40
    assert all(set(of_C) == set(range(50)) for of_C in of_RC)


def test_what_clients_tell_is_a_digest_per_row():
    data = rows()
    for name in ("fedalc", "fedalc-fixed"):
        initial_messages = [
            METHODS[name]().initial_message(card, parts(held), b"k" * 32) for card, held in clients(data)
        ]
        assert [messages.nbytes(t) for t in initial_messages] == [
            32 * card.num_examples + 32 for card, _ in clients(data)
        ]
    plain = FEDALC(matching="sha256")
    card, held = clients(data)[0]

    def checksum(method, key):
        return messages.checksum(method.initial_message(card, parts(held), key))

    assert checksum(plain, b"k" * 32) == checksum(plain, b"o" * 32)
    assert checksum(FEDALC(), b"k" * 32) != checksum(FEDALC(), b"o" * 32)
    assert not METHODS["fedaws"].sends_initial_message


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedalc", {"lambda_": -1.0}, "lambda_ must be at least 0"),
        ("fedalc", {"neighbours": 0}, "neighbours must be at least 1"),
        ("fedaws", {"nu": 3.0}, r"nu in \(0, 2\]"),
        ("fedaws", {"margin": 0.0}, "margin = 0.0: must be in"),
        ("fedaws", {"class_embedding_lr": -0.1}, "class_embedding_lr must be at least 0"),
        ("fedaws", {"class_embedding_lr": 0.0}, r"fixes class rows, and method\.lambda_ = 10 moves them"),
        ("fedalc", {"class_embedding_lr": 0.0}, r"fixes class rows, and method\.lambda_ = 10 moves them"),
        ("fedalc", {"dp_noise": -1.0}, "noise = -1.0"),
        ("fedalc-fixed", {"class_embedding_lr": 0.1}, "does not move rows"),
        ("fedalc-fixed", {"alpha": -1.0}, "alpha and beta"),
        ("fedalc-fixed", {"steps": -1}, "steps and tolerance"),
        ("fedalc-fixed", {"tolerance": -0.1}, "steps and tolerance"),
        ("fedalc-fixed", {"lr": 0.0}, "lr above 0"),
        ("fedmlh", {"buckets": 0}, "hash_tables and buckets"),
        ("fedmlh", {"class_embedding_lr": 0.1}, "does not move rows"),
    ],
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(ValueError, match=words):
        METHODS[name](**options)
