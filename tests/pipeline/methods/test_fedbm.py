"""FedBM: both halves off is FedAvg bit for bit, steps against finite differences, and which tensors travel when.

Shape suffixes: C classes, M prompts, D width of the concepts.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from anchorfl.models.build import build
from anchorfl.models.classifier import Classifier
from anchorfl.models.dropout import MaskSource
from anchorfl.models.heads import ConceptHead
from anchorfl.models.options import ModelOptions
from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import ClientContext, ClientResult, ServerContext, Update
from anchorfl.pipeline.algorithm.generator_training import (
    CONCEPTS,
    GENERATOR,
    GeneratorTraining,
    image_source,
    prediction_loss,
    train_generator,
)
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.methods.anchor import Anchor
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.methods.fedbm import FROZEN, FedBM, row_loss, without_frozen
from anchorfl.pipeline.training.local_training import TrainingSpec, fit, infer
from anchorfl.tasks.contract import Card, ClientData, InputSpec, Objective
from anchorfl.tasks.errors import InputError

C, M, D, SIDE, ROWS = 3, 4, 5, 8, 10
SINGLE = Objective("single")
SGD = OptimizerOptions(name="sgd", lr=0.1, batch_size=4, skip_zero_rows=False, microbatch_tokens=0)
QUICK = {"generator_every": 2, "generator_steps": 2, "generator_batch": 6, "synthetic_per_batch": 3, "lambda_dis": 0.0}
SPEC = InputSpec("image", (1, SIDE, SIDE), mean=(0.2,), std=(0.5,), levels=255)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def concepts():
    found = torch.randn(C, M, D, generator=rng(1))
    return found / found.norm(dim=2, keepdim=True)


def network(method, options=ModelOptions(width=6, dropout=0.0)):  # noqa: B008 - frozen
    return build(
        options, input_kind="image", shape=(1, SIDE, SIDE), vocabulary=0, classes=C, head=method.head.kind, unit=True,
        vectors_CP=None, seed=9, concept_width=D,
    )  # fmt: skip


def client(number, rows=ROWS):
    x = torch.randn(rows, 1, SIDE, SIDE, generator=rng(20 + number))
    y = torch.eye(C)[torch.arange(rows) % C]
    known = torch.ones_like(y)
    card = Card(number, rows, y.sum(0).long(), torch.ones(C, dtype=torch.bool))
    return card, ClientData(x, y, known, SINGLE.weights(y, known))


def server(model, cards, round_=1, rounds=10):
    return ServerContext(
        model, cards, SINGLE, None, rng(100 + round_), round_, rounds, concepts_CMD=concepts(), spec=SPEC,
        workspace=model,
    )  # fmt: skip


def federation(method, rounds, *, chosen=None, options=SGD, model=None):
    """Return the states after every round, and what every client received in it: (round, client, names)."""
    model = network(method) if model is None else model
    clients = [client(0), client(1, 7)]
    cards = [card for card, _ in clients]
    state, memories, states, received = method.begin(server(model, cards)), [{}, {}], [], []
    training = TrainingSpec(method, SINGLE, options, 1, 5)
    for round_ in range(1, rounds + 1):
        ctx, results = server(model, cards, round_, rounds), []
        sent = method.broadcast(state, ctx)
        for i in (chosen or {}).get(round_, (0, 1)):
            client_message = method.client_message(state, cards[i])
            received.append((round_, i, sorted(client_message)))
            got = fit(training, model, *clients[i], sent, memories[i], round_, client_message)
            memories[i] = got.memory
            results.append(ClientResult(cards[i], got.update))
        state = method.aggregate(state, results, server(model, cards, round_, rounds))
        states.append(state)
    return states, received


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_both_halves_it_is_fedavg_bit_for_bit(weighting):
    bare = FedBM(lkcc=False, cgde=False, weighting=weighting)
    got, _ = federation(bare, 3)
    want, _ = federation(FedAvg(weighting=weighting), 3)
    assert messages.checksum(got[-1].weights) == messages.checksum(want[-1].weights)


def test_before_the_generators_first_training_it_is_lkcc_alone():
    """Rounds 1 and 2 of a generator that is trained after round 2."""
    got, _ = federation(FedBM(**QUICK), 3)
    want, _ = federation(FedBM(cgde=False), 3)
    same = [messages.checksum(a.weights) == messages.checksum(b.weights) for a, b in zip(got, want, strict=True)]
    assert same == [True, True, False]


def test_generated_images_join_mini_batches_without_a_labeled_row():
    """So leaving rows without a loss out changes nothing, in this method as in others."""

    def half_labeled(options):
        card, data = client(0)
        data = replace(data, weight_NC=data.weight_NC * (torch.arange(ROWS) < 3)[:, None])
        model = network(FedBM(**QUICK))
        state = FedBM(**QUICK).begin(server(model, [card]))
        state, round_ = FedBM(**QUICK).peak_state(state, 10)
        assert round_ == 2
        method = FedBM(**QUICK)
        training = TrainingSpec(method, SINGLE, options, 2, 5)
        return fit(training, model, card, data, method.broadcast(state, server(model, [card])), {}, 1,
                   method.client_message(state, card)).update.weights  # fmt: skip

    got, want = (
        half_labeled(replace(SGD, batch_size=2, skip_zero_rows=True)),
        half_labeled(replace(SGD, batch_size=2)),
    )
    assert messages.checksum(got) == messages.checksum(want)


def test_what_is_measured_for_memory():
    """The round of the generator's first training, with a generator in its message; without one, round 1."""
    method, card = FedBM(**QUICK), client(0)[0]
    state = method.begin(server(network(method), [card]))
    heavy, round_ = method.peak_state(state, 10)
    assert round_ == 2
    assert any(name.startswith(GENERATOR) for name in method.client_message(heavy, card))
    assert not any(name.startswith(GENERATOR) for name in method.client_message(state, card))
    assert method.peak_state(state, 2) == (state, 1)
    assert FedBM(cgde=False).peak_state(state, 10) == (state, 1)
    assert [FedBM(lkcc=a, cgde=b).head.concepts for a in (True, False) for b in (True, False)] == [
        True,
        True,
        True,
        False,
    ]


def by_differences(model, loss):
    """Return the slope of ``loss()`` by differences in some numbers of every parameter: (name, place, value)."""
    out = []
    for name, p in model.named_parameters():
        for flat in np.random.default_rng(p.numel()).choice(p.numel(), min(12, p.numel()), replace=False):
            at = np.unravel_index(int(flat), tuple(p.shape))
            with torch.no_grad():
                p[at] += 1e-6
                up = float(loss().detach())
                p[at] -= 2e-6
                down = float(loss().detach())
                p[at] += 1e-6
            out.append((name, at, (up - down) / 2e-6))
    return out


def test_a_clients_step_on_rows_and_generated_images():
    """The mean of the bound over 4 rows and 3 images, whose draw is repeated by hand; the frozen half stays."""
    method = FedBM(tau=3.0, **QUICK)
    model = network(method, ModelOptions(width=3, dropout=0.0)).double()
    card, data = client(0)
    data = replace(data, x=data.x.double(), y_NC=data.y_NC.double(), weight_NC=data.weight_NC.double())
    state = method.begin(server(model, [card]))
    state = replace(state, version=torch.tensor(1), concepts_CMD=state.concepts_CMD.double())
    state = replace(state, weights={n: v.double() for n, v in state.weights.items()})
    state = replace(
        state, generator={n: v.double() if v.is_floating_point() else v for n, v in state.generator.items()}
    )
    model.load_state_dict(state.weights)
    ctx = ClientContext(
        model, method.broadcast(state, server(model, [card])), card, data, {}, SINGLE, SGD, infer, rng(7),
        method.client_message(state, card),
    )  # fmt: skip
    local = method.trainer(ctx)
    source = image_source(state.generator, state.concepts_CMD, True, data.scaling)
    source.generator.double()
    local.source.generator.double()
    batch = data.rows(torch.arange(4), 4)
    made, of_B = source.draw(3, rng(7))

    def bound():
        x, y_B = torch.cat([batch.x, made]), torch.cat([batch.y_BC.argmax(1), of_B])
        h = torch.nn.functional.linear(model.encoder(x), model.head.project.weight, model.head.project.bias)
        h = h / h.norm(dim=1, keepdim=True)
        e_CMD = state.concepts_CMD
        mean, variance = e_CMD.mean(1), ((e_CMD - e_CMD.mean(1, keepdim=True)) ** 2).sum(1) / (M - 1)
        score = 3 * h @ mean.T + 9 / 2 * h**2 @ variance.T
        entropy = score.exp().sum(1).log() - score[torch.arange(7), y_B]
        return (entropy + 9 / 2 * (h**2 * variance[y_B]).sum(1)).sum() / 7

    loss = local.gradients([batch])
    assert float(loss) == pytest.approx(float(bound().detach()), rel=1e-7)
    for name, at, want in by_differences(model, bound):
        assert float(model.get_parameter(name).grad[at]) == pytest.approx(want, rel=1e-4, abs=1e-7), (name, at)
    local.step([batch])
    for name in FROZEN:
        assert torch.equal(model.get_buffer(name), state.weights[name])


def test_who_is_told_what_and_when():
    """The frozen classifier once; concepts with the first generator; the generator after each training that a client
    has not had: client 1 sleeps through the training after round 4 and gets that after round 6 alone.
    """
    frozen = sorted(FROZEN)
    _, received = federation(FedBM(**QUICK), 7, chosen={1: (0,), 5: (0,), 6: (0,)})
    names = {(r, i): [n for n in client_message if not n.startswith(GENERATOR)] for r, i, client_message in received}
    has = {(r, i): any(n.startswith(GENERATOR) for n in client_message) for r, i, client_message in received}
    assert names[1, 0] == frozen
    assert names[2, 1] == frozen
    assert names[3, 0] == names[3, 1] == [CONCEPTS]
    assert all(
        not client_message for key, client_message in names.items() if key not in ((1, 0), (2, 1), (3, 0), (3, 1))
    )
    assert [key for key, has_it in has.items() if has_it] == [(3, 0), (3, 1), (5, 0), (7, 0), (7, 1)]


def test_what_is_sent_down_and_up_in_every_round():
    method = FedBM(**QUICK)
    model = network(method)
    card, data = client(0)
    state = method.begin(server(model, [card]))
    sent = method.broadcast(state, server(model, [card]))
    every = set(model.state_dict()) - set(FROZEN)
    assert set(sent.weights) == every
    assert {path for path, t in messages.tensors(sent) if t.numel()} == {f"weights/{name}" for name in every}
    got = fit(
        TrainingSpec(method, SINGLE, SGD, 1, 5), model, card, data, sent, {}, 1, method.client_message(state, card)
    )
    assert {path for path, _ in messages.tensors(got.update)} == {f"weights/{name}" for name in every}


def test_the_generator_is_trained_in_its_rounds_but_not_after_the_last():
    states, _ = federation(FedBM(**QUICK), 6)
    assert [int(s.version) for s in states] == [0, 1, 1, 2, 2, 2]
    sums = [messages.checksum(s.generator) for s in states]
    assert sums[0] != sums[1] == sums[2] != sums[3] == sums[4] == sums[5]


def test_training_goes_on_from_the_last_and_moves_the_generator_alone():
    method = FedBM(**QUICK)
    model = network(method)
    state = method.begin(server(model, [client(0)[0]]))
    model.load_state_dict(state.weights)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    source = image_source(state.generator, state.concepts_CMD, True, SPEC.scaling())
    training = GeneratorTraining(row_loss, 1.0, 0.0, 30, 16, 3e-3)
    losses = train_generator(source, model, training, rng(3))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert not source.generator.training


def normalized(method=None):
    """Return a network with BatchNorm, and the state of the server that has it."""
    method = method or FedBM(**QUICK)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(6)
        layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 6)
        model = Classifier(nn.Sequential(*layers), ConceptHead(C, 6, D), MaskSource())
    return model, method.begin(server(model, [client(0)[0]]))


def nothing(model, x_B, class_B):
    """Stand for a loss of images that is 0."""
    return 0 * model(x_B).sum(1)


def test_training_leaves_batch_norms_statistics_alone():
    model, state = normalized()
    model.load_state_dict(state.weights)
    source = image_source(state.generator, state.concepts_CMD, True, SPEC.scaling())
    train_generator(source, model.train(), GeneratorTraining(row_loss, 1.0, 0.1, 3, 16, 3e-3), rng(3))
    assert all(torch.equal(v, state.weights[n]) for n, v in model.state_dict().items())


@pytest.mark.parametrize(("div", "dis"), [(1.0, 0.0), (0.0, 1.0)], ids=["div", "dis"])
def test_each_loss_of_the_generator_is_added_and_falls(div, dis):
    """Alone, each is above 0 and training makes it smaller: images of a class differ, statistics come closer."""
    model, state = normalized()
    model.load_state_dict(state.weights)
    source = image_source(state.generator, state.concepts_CMD, True, SPEC.scaling())
    losses = train_generator(source, model, GeneratorTraining(nothing, div, dis, 40, 16, 3e-3), rng(3))
    assert min(losses) > 0
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_the_prediction_loss_is_cross_entropy_and_the_bound_lies_above_it():
    """Equation 6 in NumPy, from logits; equation 4 adds the concepts' variance, which is small."""
    model, state = normalized()
    model.load_state_dict(state.weights)
    model.eval()
    x, class_B = torch.randn(9, 1, SIDE, SIDE, generator=rng(5)), torch.arange(9) % C
    with torch.no_grad():
        logits_BC = model(x).double().numpy()
        got, bound = prediction_loss(model, x, class_B).numpy(), row_loss(model, x, class_B).numpy()
    want = np.log(np.exp(logits_BC).sum(1)) - logits_BC[np.arange(9), class_B.numpy()]
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    assert not np.allclose(got, bound, atol=1e-4)


def test_the_generator_learns_by_the_loss_that_is_named():
    states = {loss: federation(FedBM(**QUICK, generator_loss=loss), 3)[0] for loss in ("bound", "cross_entropy")}
    one, other = (messages.checksum(states[loss][1].generator) for loss in states)
    assert one != other
    assert messages.checksum(states["bound"][0].weights) == messages.checksum(states["cross_entropy"][0].weights)


def test_without_language_no_text_encoder_is_asked():
    """A linear classifier and conditions of noise, as wide as the representation; the generator learns all the same."""
    bare = FedBM(**QUICK, lkcc=False, concept_conditions=False)
    assert not bare.head.concepts
    assert all(FedBM(**QUICK, **more).head.concepts for more in ({}, {"lkcc": False}, {"concept_conditions": False}))
    model, cards = network(bare), [client(0)[0], client(1, 7)[0]]
    state = bare.begin(replace(server(model, cards), concepts_CMD=None))
    assert state.concepts_CMD.shape == (C, 1, 6)
    assert not state.concepts_CMD.any()
    trained = bare.aggregate(
        state,
        [ClientResult(card, Update(weights_of(model))) for card in cards],
        replace(server(model, cards, 2), concepts_CMD=None),
    )
    assert messages.checksum(trained.generator) != messages.checksum(state.generator)


def test_a_generators_steps_are_adams_one_after_the_other():
    """Three steps, each with the gradient of its own draw, and one Adam from the first to the last."""
    model, state = normalized()
    model.load_state_dict(state.weights)
    got, want = (image_source(state.generator, state.concepts_CMD, True, SPEC.scaling()) for _ in range(2))
    losses = train_generator(got, model, GeneratorTraining(row_loss, 0.0, 0.0, 3, 16, 3e-3), rng(3))
    draws, weights, expected = rng(3), list(want.generator.train().parameters()), []
    adam = torch.optim.Adam(weights, lr=3e-3, betas=(0.5, 0.999))
    model.eval()
    for _ in range(3):
        class_B = want.labels(16, draws)
        x_B = want.prepared(want.generator(want.conditions(class_B, draws)), draws)
        loss = row_loss(model, x_B, class_B).mean()
        for p, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            p.grad = gradient
        adam.step()
        expected.append(float(loss.detach()))
    assert losses == pytest.approx(expected, rel=1e-5)
    for one, other in zip(got.generator.parameters(), weights, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_conditions_are_those_of_the_classes_in_training_and_at_the_clients():
    """With one prompt a class, a condition is nearest to the concept of the class that the image is taken for."""
    e_CMD = 10 * concepts()[:, :1]
    values = FedBM(**QUICK).begin(server(network(FedBM(**QUICK)), [client(0)[0]])).generator
    source, seen, classes = image_source(values, e_CMD, True, SPEC.scaling()), [], []
    source.generator.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))

    def loss(model, x_B, class_B):
        classes.append(class_B)
        return nothing(model, x_B, class_B)

    train_generator(source, network(FedBM(**QUICK)), GeneratorTraining(loss, 0.0, 0.0, 2, 40, 1e-3), rng(3))
    classes.append(source.draw(40, rng(4))[1])
    assert len(seen) == len(classes) == 3
    for z_BD, class_B in zip(seen, classes, strict=True):
        assert torch.equal(torch.cdist(z_BD, e_CMD[:, 0]).argmin(1), class_B)
        assert set(class_B.tolist()) == set(range(C)), "every class is drawn"


def test_a_training_starts_from_the_servers_weights_whatever_the_work_space_held():
    method = FedBM(**QUICK | {"generator_every": 1})
    model, state = normalized(method)
    report = ClientResult(client(0)[0], type("Sent", (), {"weights": without_frozen(state.weights)})())
    sums = []
    for left in (0.0, 3.0):
        with torch.no_grad():
            for value in model.state_dict().values():
                value.fill_(left)
        after = method.aggregate(state, [report], server(model, [client(0)[0]], 1, 50))
        sums.append(messages.checksum(after.generator))
    assert sums[0] == sums[1] != messages.checksum(state.generator)


def test_a_new_generator_takes_the_place_of_the_one_that_a_client_kept():
    method, (card, data) = FedBM(**QUICK), client(0)
    model = network(method)
    state = method.begin(server(model, [card]))
    state = replace(state, version=torch.tensor(1))
    newer = replace(state, generator={n: v + 1 if v.is_floating_point() else v for n, v in state.generator.items()})
    training, memory = TrainingSpec(method, SINGLE, SGD, 1, 5), {}
    for round_, one in ((1, state), (2, newer)):
        sent = method.broadcast(one, server(model, [card]))
        memory = fit(training, model, card, data, sent, memory, round_, method.client_message(one, card)).memory
        assert all(torch.equal(memory[GENERATOR + n], v) for n, v in one.generator.items())


@pytest.mark.parametrize(("pixels", "room"), [(8, 1), (28, 1), (64, 2), (128, 4), (224, 7)])
def test_the_room_of_a_crop_grows_with_the_image(pixels, room):
    """So many rows or columns at most are black at each edge, in some image so many."""
    spec = InputSpec("image", (1, pixels, pixels), mean=(0.0,), std=(1.0,), levels=255)
    method = FedBM(**QUICK)
    values = method.begin(replace(server(network(method), [client(0)[0]]), spec=spec)).generator
    source = image_source(values, concepts(), True, spec.scaling())
    seen = source.prepared(torch.ones(60, 1, pixels, pixels), rng(1))[:, 0]
    black = torch.cat([(seen.sum(2) == 0).sum(1), (seen.sum(1) == 0).sum(1)])
    assert int(black.max()) == room


def test_trainings_leave_nothing_behind():
    """The reference's hooks stay: 12 trainings make 12 of them on every layer. Nor is a tensor kept."""
    method = FedBM(**{**QUICK, "generator_every": 1, "generator_steps": 1, "lambda_dis": 0.1})
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 6)
    model = Classifier(nn.Sequential(*layers), ConceptHead(C, 6, D), MaskSource())
    state = method.begin(server(model, [client(0)[0]]))
    report = ClientResult(client(0)[0], type("Sent", (), {"weights": without_frozen(state.weights)})())
    alive = []
    for round_ in range(1, 13):
        state = method.aggregate(state, [report], server(model, [client(0)[0]], round_, 50))
        if round_ % 3 == 0:  # behind thousands of other tests this takes a second
            gc.collect()
            alive.append(sum(t.nbytes for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter)))
    assert int(state.version) == 12
    assert alive[0]
    assert np.median(np.diff(alive)) <= 0  # what measures coverage keeps one state for good
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_a_run_whose_generator_never_makes_an_image_says_so():
    assert not FedBM(generator_every=4).notice(5)
    line = "the generator makes no image in 5 rounds: it is first trained after method.generator_every = 5"
    assert FedBM().notice(5) == Anchor(synthetic_per_batch=4).notice(5) == line
    assert not FedBM(cgde=False).notice(5)
    assert not Anchor().notice(5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tau": 0.0}, "method.tau = 0.0: must be above 0"),
        ({"generator_lr": 0.0}, "method.generator_lr = 0.0"),
        ({"lambda_dis": -1.0}, "at least 0"),
        ({"generator_every": 0}, "at least 1"),
        ({"generator_batch": 1}, "generator_batch = 1: must be at least 2"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        FedBM(**options)


def test_what_the_generator_cannot_do_is_refused():
    method = FedBM()
    ctx = server(network(method), [client(0)[0]])
    with pytest.raises(InputError, match="compared with BatchNorm's running statistics, and this network has none"):
        method.begin(ctx)
    tokens = replace(ctx, spec=InputSpec("tokens", (9,)))
    with pytest.raises(
        InputError, match=r"makes images, the input is of kind 'tokens': do without it \(method\.cgde = false"
    ):
        FedBM(lambda_dis=0.0).begin(tokens)
    wide = replace(ctx, spec=InputSpec("image", (1, 8, 9)))
    with pytest.raises(InputError, match="the generator: images of"):
        FedBM(lambda_dis=0.0).begin(wide)


@pytest.mark.parametrize(("classifier", "spread"), [("distribution", True), ("mean", False), ("random", False)])
def test_what_is_frozen(classifier, spread):
    method = FedBM(classifier=classifier, cgde=False)
    weights = method.begin(server(network(method), [client(0)[0]])).weights
    assert bool((weights["head.variance"] > 0).all()) == spread
    is_mean = torch.allclose(weights["head.mean"], concepts().mean(1))
    assert is_mean == (classifier != "random")
