"""FedNH: its limit, its client and its prototypes against NumPy, and what it sends.

Oracle, from the paper (Dai et al., AAAI 2023, Algorithm 1): logits are s W u, u a representation at length 1, W unit
prototypes that stay while the body and s are trained. Then client k finds mu_k,c, the mean of u over its n_k,c samples
of class c, at length 1. The server: mu_c = sum_k n_k,c mu_k,c / sum_k n_k,c at length 1, and W_c <- rho W_c + (1 - rho)
mu_c at length 1; the other weights are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from anchorfl.models.heads import PrototypeHead
from anchorfl.pipeline.algorithm.contract import Averaging, ClientResult, HeadSpec, Update
from anchorfl.pipeline.algorithm.parameters import weights_of
from anchorfl.pipeline.methods.fednh import FedNH
from anchorfl.pipeline.run.prepare import make_run_spec
from anchorfl.pipeline.training.local_training import infer
from tests.pipeline import compared
from tests.pipeline.compared import C, D, arrays, assert_close, base_loss, elsewhere, encode, gradient, slope
from tests.runs import quiet

ROWS = "head.rows"
SHAPES = {"encoder.0.weight": (D, 5), "encoder.0.bias": (D,), "head.scale": (), ROWS: (C, D)}


@dataclass(frozen=True, kw_only=True)
class Plain(Averaging):
    """FedAvg on the network of FedNH, whose prototypes it never moves."""

    name = "plain"
    head = HeadSpec(kind="prototype", first_scale=20.0)


def prototyped(scale=2.0):
    model = compared.dense(PrototypeHead(C, D, scale))
    model.head.rows.copy_(torch.from_numpy(unit(np.random.default_rng(4).normal(size=(C, D)))))
    return model


def unit(rows):
    return rows / np.sqrt((rows**2).sum(-1, keepdims=True))


def logits(w, x_NF):
    return w["head.scale"] * unit(encode(w, x_NF)) @ w[ROWS].T


def reports_of(counts, seed=3, rows=None):
    """Make clients with these counts per class and prototypes of their own, zeros where the count is 0."""
    rng, out = np.random.default_rng(seed), []
    for i, count in enumerate(counts):
        count_C = np.array(count)
        mine = unit(rng.normal(size=(C, D))) * (count_C > 0)[:, None]
        card = replace(compared.rows_of(seed=i)[0], num_examples=10 * (i + 1), count_C=torch.from_numpy(count_C))
        weights = elsewhere(weights_of(prototyped()), seed=i) | {ROWS: torch.from_numpy(mine)}
        out.append(ClientResult(card, Update(weights)))
    return out


def test_with_rho_one_it_is_fedavg_on_its_network_bit_for_bit(experiment):
    """And the prototypes are the first ones; below one, they move from the first round on."""
    e = experiment("fednh", options={"rho": 1.0})
    first = make_run_spec(e, quiet).model().state_dict()[ROWS]
    got = compared.history(e)
    compared.assert_same_bits(got, compared.history(replace(e, method=Plain())))
    assert all(torch.equal(weights[f"weights/{ROWS}"], first) for weights, *_ in got)
    moved = compared.history(experiment("fednh"))
    assert not torch.equal(moved[0][0][f"weights/{ROWS}"], first)
    for weights, *_ in moved:
        torch.testing.assert_close(weights[f"weights/{ROWS}"].norm(dim=1), torch.ones(4))


def test_loss_and_gradient_equal_numpy():
    """Encoder and scale have one, prototypes have none."""
    local, micro_batches = compared.started(FedNH(), model=prototyped())
    data, x = local.ctx.data, local.ctx.data.x.numpy()
    at = arrays(local.model.state_dict())

    def whole(w):
        return base_loss("single", logits(at | w, x), data)

    loss, got = gradient(local, micro_batches)
    assert loss == pytest.approx(whole({}), abs=1e-12)
    assert_close(got, slope(whole, {name: value for name, value in at.items() if name != ROWS}), 1e-8)


def test_local_training_leaves_the_prototypes_and_sends_where_the_classes_lie():
    """By the trained encoder; momentum and decay reach no prototype. Unlabeled rows count nowhere."""
    options = replace(compared.PLAIN, name="sgd", lr=0.1, momentum=0.9, weight_decay=0.1)
    model = prototyped()
    state = FedNH().begin(compared.server(model, []))
    got = compared.fitted(FedNH(), state=state, model=model, options=options).update.weights
    assert torch.equal(model.head.rows, state.weights[ROWS])
    assert not torch.equal(got["encoder.0.weight"], state.weights["encoder.0.weight"])
    _, data = compared.rows_of()
    u_ND, y_NC = unit(encode(arrays(got), data.x.numpy())), data.y_NC.numpy()
    assert y_NC.sum(0).tolist()[2:] == [0, 0]
    for c in (0, 1):
        want = u_ND[y_NC[:, c] == 1].mean(0)
        assert np.allclose(got[ROWS][c].numpy(), want / np.linalg.norm(want), rtol=0, atol=1e-12)
    assert not got[ROWS][2:].any()


def test_classes_are_found_without_dropout(experiment):
    """In evaluation mode, whatever mode training left the model in."""
    e = experiment("fednh", model={"dropout": 0.5})
    run_spec = make_run_spec(e, quiet)
    objective, model = run_spec.objective(), run_spec.model().train()
    data, card = run_spec.data().client(0, objective), run_spec.data().cards()[0]
    state = e.method.begin(compared.server(model, [card]))
    local, _ = compared.started(FedNH(), model=model.double(), state=state)
    local.model = model.float()
    local.ctx = replace(local.ctx, data=data, card=card)
    first, again = local.local_rows(), local.local_rows()
    assert model.training
    assert torch.equal(first, again)
    model.eval()
    u_ND = torch.nn.functional.normalize(infer(model, data), dim=-1)
    assert torch.equal((data.known_NC * data.y_NC).sum(0).long(), card.count_C)
    for c in range(C):
        mine = u_ND[(data.known_NC * data.y_NC)[:, c] == 1]
        want = torch.nn.functional.normalize(mine.mean(0), dim=0) if len(mine) else torch.zeros(u_ND.shape[1])
        torch.testing.assert_close(first[c], want)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_prototypes_of_the_server_equal_numpy(rho):
    """Three clients of unequal counts; nobody has class 3, whose prototype stays to the bit."""
    counts = [[5, 0, 2, 0], [1, 4, 0, 0], [0, 30, 3, 0]]
    results = reports_of(counts)
    model = prototyped()
    state = FedNH().begin(compared.server(model, []))
    got = FedNH(rho=rho).aggregate(state, results, compared.server(model, [r.card for r in results])).weights[ROWS]
    old = state.weights[ROWS].numpy()
    for c in range(3):
        mu = sum(n[c] * r.update.weights[ROWS][c].numpy() for n, r in zip(counts, results, strict=True))
        want = unit(rho * old[c] + (1 - rho) * unit(mu / sum(n[c] for n in counts)))
        assert np.allclose(got[c].numpy(), want, rtol=0, atol=1e-12)
    assert torch.equal(got[3], state.weights[ROWS][3])


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_a_prototype_stays_where_the_clients_cancel_out_and_moves_along_one_axis(rho):
    """Class 0: two clients with as many samples lie on opposite sides, so that the mean is zeros. Class 1: both lie on
    the first axis, where all but one number is zero.
    """
    results = reports_of([[5, 5, 0, 0], [5, 5, 0, 0]])
    one, other = (r.update.weights[ROWS] for r in results)
    other[0] = -one[0]
    one[1] = other[1] = torch.eye(D, dtype=one.dtype)[0]
    ctx = compared.server(prototyped(), [r.card for r in results])
    state = FedNH().begin(ctx)
    got, old = FedNH(rho=rho).aggregate(state, results, ctx).weights[ROWS], state.weights[ROWS]
    assert torch.equal(got[0], old[0])
    want = unit(rho * old[1].numpy() + (1 - rho) * np.eye(D)[0])
    assert np.allclose(got[1].numpy(), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_everything_else_is_fedavgs_mean(weighting):
    results = reports_of([[5, 0, 2, 0], [1, 4, 0, 0]])
    ctx = compared.server(prototyped(), [r.card for r in results])
    method = FedNH(weighting=weighting)
    got = method.aggregate(method.begin(ctx), results, ctx).weights
    shares = [10, 20] if weighting == "samples" else [1, 1]
    for name in ("encoder.0.weight", "encoder.0.bias", "head.scale"):
        want = np.average([r.update.weights[name].numpy() for r in results], axis=0, weights=shares)
        assert np.allclose(got[name].numpy(), want, rtol=0, atol=1e-13)


def test_where_nobody_has_a_labeled_row_all_prototypes_stay():
    results = reports_of([[0, 0, 0, 0], [0, 0, 0, 0]])
    ctx = compared.server(prototyped(), [r.card for r in results])
    state = FedNH().begin(ctx)
    got = FedNH().aggregate(state, results, ctx).weights
    assert torch.equal(got[ROWS], state.weights[ROWS])
    assert all(bool(torch.isfinite(value).all()) for value in got.values())


def test_the_first_scale_is_an_option(experiment):
    for options, scale in (({}, 20.0), ({"first_scale": 1.0}, 1.0)):
        model = make_run_spec(experiment("fednh", options=options), quiet).model()
        assert float(model.head.scale.detach()) == scale


def test_the_exact_tensors_on_the_wire():
    """Body, scale and C x D prototypes, both ways; nothing else is remembered than the optimizer's moments."""
    compared.assert_wire(FedNH(), model=prototyped, sent=SHAPES)


@pytest.mark.parametrize("options", [{"rho": -0.1}, {"rho": 1.1}, {"rho": float("nan")}, {"first_scale": 0.0}])
def test_bad_options_are_refused(options):
    with pytest.raises(
        ValueError, match=r"\Amethod\.rho = \S+ must be in \[0, 1\], method\.first_scale = \S+ above 0\Z"
    ):
        FedNH(**options)
