"""FedRep: its limits, three rounds against NumPy under several optimizers, what moves when, and what it sends.

Oracle, from the paper (Collins et al., ICML 2021, Algorithm 1): a selected client gets the body phi, keeps its own head
h, takes steps of h along dF/dh at phi, then steps of phi along dF/dphi at the new h, and sends phi. The server's phi is
the mean of what was sent. An optimizer sees one of the two: momentum and weight decay of the one that rests are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from anchorfl.pipeline.algorithm import messages
from anchorfl.pipeline.algorithm.contract import Averaging, AveragingTrainer, ClientContext, ClientResult
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.execution.executor import SerialExecutor
from anchorfl.pipeline.methods.fedavg import FedAvg
from anchorfl.pipeline.methods.fedrep import FedRep
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.local_training import infer
from anchorfl.tasks.contract import Objective
from tests.pipeline import compared
from tests.pipeline.compared import SHAPES, WHOLE, N, Rule, arrays, assert_close, base_loss, logits, slope
from tests.runs import nobody, quiet

BODY = {name: shape for name, shape in SHAPES.items() if name.startswith("encoder.")}
HEAD = {name: shape for name, shape in SHAPES.items() if name.startswith("head.")}
OWN = {f"personal.{name}": shape for name, shape in HEAD.items()}
RULES = {
    "sgd": replace(WHOLE, state="reset"),
    "momentum": replace(WHOLE, momentum=0.9, weight_decay=0.05),
    "momentum-reset": replace(WHOLE, momentum=0.9, weight_decay=0.05, state="reset"),
    "adam": replace(WHOLE, name="adam", lr=0.05, weight_decay=0.05),
}


@dataclass(frozen=True, kw_only=True)
class BodyAlone(Averaging):
    """FedAvg whose head nobody trains."""

    name = "fedavg"

    def trainer(self, ctx):
        ctx.model.head.requires_grad_(False)
        return AveragingTrainer(ctx)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("task", ["toy-single", "toy-multi"])
def test_without_head_epochs_it_is_fedavg_of_the_body_bit_for_bit(experiment, task, weighting):
    """Plain SGD, by which a gradient of zero moves nothing."""
    plain_sgd = {"optimizer": {"name": "sgd", "lr": 0.1}}
    e = experiment("fedavg", task, **plain_sgd)
    plain = compared.history(replace(e, method=BodyAlone(weighting=weighting)))
    options = {"head_epochs": 0, "weighting": weighting}
    got = compared.history(experiment("fedrep", task, options=options, **plain_sgd))
    for (weights, loss, _, _), (weights0, loss0, _, _) in zip(got, plain, strict=True):
        # All heads are the first one, and so is their mean, up to the rounding of their shares.
        body, body0 = ({k: v for k, v in w.items() if "/head." not in k} for w in (weights, weights0))
        assert messages.checksum(body) == messages.checksum(body0)
        assert loss == loss0
        assert all(torch.allclose(weights[k], weights0[k], rtol=1e-6, atol=0) for k in weights if "/head." in k)
    trained = compared.history(experiment("fedrep", task, options={"head_epochs": 1}, **plain_sgd))
    assert messages.checksum(trained[0][0]) != messages.checksum(plain[0][0])


@pytest.mark.parametrize("rule", RULES)
def test_three_rounds_equal_numpy(rule):
    """3 clients of 12, 30 and 6 samples, of which 2 take part, the third once; 3 head epochs, then 2 of the body."""
    options, method, selected = RULES[rule], FedRep(head_epochs=3), [(0, 1), (1, 2), (0, 1)]
    cards = [replace(compared.rows_of(seed=i)[0], num_examples=n) for i, n in enumerate((12, 30, 6))]
    ctx = compared.server(compared.dense(), cards)
    state, memory = method.begin(ctx), [{}, {}, {}]
    x = arrays(state.weights)
    heads = [{name: x[name] for name in HEAD} for _ in cards]
    rules = [(Rule(options, HEAD), Rule(options, BODY)) for _ in cards]
    for round_, chosen in enumerate(selected, 1):
        results, ends = [], []
        for i in chosen:
            sent = method.broadcast(state, ctx)
            got = compared.fitted(method, memory=memory[i], state=sent, options=options, round_=round_, seed=i)
            results.append(ClientResult(cards[i], got.update))
            memory[i], data = got.memory, compared.rows_of(seed=i)[1]
            w = {name: x[name] for name in BODY} | heads[i]

            def loss(at, data=data):
                return base_loss("single", logits(at, data.x.numpy()), data)

            if options.state == "reset":
                rules[i] = Rule(options, HEAD), Rule(options, BODY)
            for part in (0, 0, 0, 1, 1):
                rules[i][part].step(w, slope(loss, w))
            ends.append(w)
            heads[i] = {name: w[name] for name in HEAD}
        share = np.array([cards[i].num_examples for i in chosen]) / sum(cards[i].num_examples for i in chosen)
        x = {name: sum(s * w[name] for s, w in zip(share, ends, strict=True)) for name in SHAPES}
        state = method.aggregate(state, results, ctx)
        assert_close(arrays(state.weights), x, 1e-7)
        for i in chosen:
            kept = {k.removeprefix("personal."): v for k, v in memory[i].items() if k.startswith("personal.")}
            assert_close(arrays(kept), heads[i], 1e-7)


def test_no_gradient_is_computed_for_the_part_that_rests():
    """Half of the time of a step is the body's backward pass, which the head's epochs do without."""
    local, micro_batches = compared.started(FedRep(head_epochs=1), "single")
    for phase, resting, moving in zip(local.epochs(1), (BODY, HEAD), (HEAD, BODY), strict=True):
        local.step(micro_batches)
        moved = {name for name, p in local.model.named_parameters() if bool(p.grad.any())}
        assert moved <= set(moving), phase
        assert moved
        assert all(not local.model.get_parameter(name).requires_grad for name in resting)


@pytest.mark.parametrize("rule", RULES)
def test_what_rests_does_not_move_at_all(rule):
    """From the second round on the moments of both parts are not zero, and still the one that rests stays."""
    method, options = FedRep(head_epochs=2), RULES[rule]
    memory = compared.fitted(method, options=options).memory if options.state == "keep" else {}
    card, data = compared.rows_of()
    model = compared.dense().train()
    sent = method.broadcast(method.begin(compared.server(model, [card])), compared.server(model, [card]))
    ctx = ClientContext(
        model, sent, card, data, memory or method.first_memory(model), Objective("single"), options, infer,
        torch.Generator(),
    )  # fmt: skip
    local, phases = method.trainer(ctx), []
    for phase in local.epochs(3):
        phases.append(phase)
        before = weights_of(model)
        local.step([data.rows(torch.arange(N), N)])
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]) is not name.startswith("head." if phase == "head" else "encoder.")
    assert phases == ["head"] * 2 + ["body"] * 3
    assert isinstance(local.epochs(1), Iterator)


def test_heads_stay_with_their_clients_and_those_that_rest_keep_theirs(experiment):
    """2 of 4 take part in a round. A head never comes from the server: it goes on from where its client left it."""
    e = experiment("fedrep", federation={"clients_per_round": 2, "rounds": 4, "epochs": 1}, options={"head_epochs": 0})
    first = {f"personal.{k}": v for k, v in make_run_spec(e, quiet).model().state_dict().items() if "head." in k}
    rounds = compared.history(e)
    compared.assert_resting_clients_keep(rounds)
    for memory in (m for _, _, memories, _ in rounds for m in memories.values() if m):
        assert all(
            torch.equal(memory[k], v) for k, v in first.items()
        )  # without head epochs, another came from elsewhere
    trained = compared.history(replace(e, method=FedRep(head_epochs=2)))[-1][2]
    heads = {
        messages.checksum({k: v for k, v in m.items() if k.startswith("personal.")}) for m in trained.values() if m
    }
    assert len(heads) == sum(bool(m) for m in trained.values()) > 1


@pytest.mark.parametrize("evaluate_on", ["server", "clients"])
def test_the_exact_tensors_on_the_wire(evaluate_on):
    """The body alone goes down. Up it comes with the head, for the score, unless clients are scored."""
    method, ctx = FedRep(evaluate_on=evaluate_on), compared.server(compared.dense(), [])
    state = method.begin(ctx)
    body = {f"weights/{name}": shape for name, shape in BODY.items()}
    kept = {f"weights/{name}": shape for name, shape in HEAD.items()} if evaluate_on == "server" else {}
    assert compared.shapes(state) == body | kept
    assert list(compared.shapes(method.broadcast(state, ctx)).items()) == list(body.items())
    got = compared.fitted(method, state=method.broadcast(state, ctx))
    head = {f"head/{name}": shape for name, shape in HEAD.items()} if evaluate_on == "server" else {}
    assert list(compared.shapes(got.update).items()) == list((body | head).items())
    assert {k: v for k, v in compared.shapes(got.memory).items() if k.startswith("personal.")} == OWN
    assert {key.split(".")[0] for key in got.memory} == {"personal", "head", "body"}
    reset = compared.fitted(method, state=method.broadcast(state, ctx), options=replace(compared.PLAIN, state="reset"))
    assert compared.shapes(reset.memory) == OWN
    after = method.aggregate(state, [ClientResult(compared.rows_of()[0], got.update)], ctx)
    assert compared.shapes(after) == compared.shapes(state)


def test_bytes_are_the_body_down_and_the_body_with_the_head_up(experiment):
    e = experiment("fedrep")
    weights = make_run_spec(e, quiet).model().state_dict()
    head = messages.nbytes({k: v for k, v in weights.items() if k.startswith("head.")})
    body = messages.nbytes(dict(weights)) - head
    for evaluate_on, up in (("server", body + head), ("clients", body)):
        outcome = SerialExecutor(
            make_run_spec(replace(e, method=FedRep(evaluate_on=evaluate_on)), quiet)
        ).round(1, [0, 1, 3], nobody)  # fmt: skip
        assert (outcome.bytes_down, outcome.bytes_up) == (3 * body, 3 * up)


def test_the_two_ways_to_score_train_alike(experiment):
    one, other = (compared.history(experiment("fedrep", options={"evaluate_on": s})) for s in ("server", "clients"))
    for (weights, loss, memories, _), (body, loss0, memories0, _) in zip(one, other, strict=True):
        assert messages.checksum({k: weights[k] for k in body}) == messages.checksum(body)
        assert loss == loss0
        assert all(messages.checksum(memories[c]) == messages.checksum(memories0[c]) for c in memories)


def test_the_savings_change_no_update():
    compared.assert_savings_agree(FedRep(head_epochs=1, weighting="uniform"))


def test_a_client_that_has_no_head_is_an_error():
    """Not a head of NaN, which is what the work-space holds for what was not sent."""
    method, ctx = FedRep(), compared.server(compared.dense(), [])
    with pytest.raises(RuntimeError, match=r"Missing key.*head\.weight"):
        compared.fitted(replace_memory(method), state=method.broadcast(method.begin(ctx), ctx))


def replace_memory(method):
    """Return the method without a first memory."""

    class Forgetful(FedRep):
        def first_memory(self, model):
            return {}

    return Forgetful(head_epochs=method.head_epochs)


def test_moments_of_both_parts_go_on():
    """A memory has the moments of both parts, each under its own name."""
    got = compared.fitted(FedRep(), options=RULES["adam"])
    assert {k.split(".")[0] for k in got.memory if k.endswith("exp_avg")} == {"head", "body"}
    again = compared.fitted(FedRep(), options=RULES["adam"], memory=got.memory)
    assert float(again.memory["head.0.step"]) == 2 * float(got.memory["head.0.step"]) == 20
    assert float(again.memory["body.0.step"]) == 2 * float(got.memory["body.0.step"]) == 4


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"\Amethod\.head_epochs = -1: must be at least 0\Z"):
        FedRep(head_epochs=-1)


def test_fedavg_asks_for_as_many_epochs_as_it_is_given():
    local, _ = compared.started(FedAvg())
    assert len(list(local.epochs(3))) == 3
