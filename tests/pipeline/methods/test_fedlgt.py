"""FedLGT: its head, its loss and what it shows against NumPy, its limit, and what it sends.

Oracle, from the authors' code (Liu et al., AAAI 2024): tokens of the classes, the name's vector and one for the state
of the label (none where it is unknown), go with the row's through layers of post-norm self-attention; a class's logit
is read from its own token by its own row. The loss is FedAvg's on the labels that are not shown. A label is not shown
where the model that was sent gives it a probability within the margin of 1/2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from anchorfl.models import heads
from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders.transformer import SelfAttentionLayer
from anchorfl.models.heads import GuidedHead, in_pieces
from anchorfl.pipeline.algorithm.contract import Averaging, HeadSpec
from anchorfl.pipeline.methods.fedlgt import FedLGT
from tests.pipeline import compared
from tests.pipeline.compared import C, D, N, arrays, base_loss, elsewhere, encode

P, HEADS, HIDDEN = 5, 1, 6
NAMES = torch.randn(C, P, generator=torch.Generator().manual_seed(2))


@dataclass(frozen=True, kw_only=True)
class Plain(Averaging):
    """FedAvg on the network of FedLGT."""

    name = "plain"
    head = HeadSpec(kind="guided", parts=2)


def guided(layers=2, dropout=0.0):
    return compared.dense(
        GuidedHead(NAMES, D, [SelfAttentionLayer(D, HEADS, HIDDEN, dropout, MaskSource()) for _ in range(layers)])
    )


def normed(x, w, name):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x, w, name):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def logits(w, x_NF, state_NC):
    """Return the logits row by row; one head of attention."""
    out = []
    for z_D, state_C in zip(encode(w, x_NF), state_NC, strict=True):
        token_CD = linear(w["head.names"], w, "head.project")
        for c in range(C):
            if state_C[c]:
                token_CD[c] = token_CD[c] + w["head.states"][int(state_C[c] > 0)]
        x = normed(np.vstack([z_D, token_CD]), w, "head.norm")
        for layer in ("head.layers.0", "head.layers.1"):
            q, k, v = np.split(linear(x, w, f"{layer}.qkv"), 3, axis=1)
            weight = np.exp(q @ k.T / np.sqrt(D))
            mixed = weight / weight.sum(1, keepdims=True) @ v
            x = normed(x + linear(mixed, w, f"{layer}.out"), w, f"{layer}.norm_attention")
            hidden = linear(np.maximum(linear(x, w, f"{layer}.up"), 0), w, f"{layer}.down")
            x = normed(x + hidden, w, f"{layer}.norm_feedforward")
        out.append((x[1:] * w["head.read.weight"]).sum(1) + w["head.read.bias"])
    return np.array(out)


def a_state(seed=6):
    return torch.from_numpy(np.random.default_rng(seed).integers(-1, 2, size=(N, C))).double()


def test_the_head_equals_numpy():
    model, (_, data) = guided(), compared.rows_of("multi")
    for state_NC in (a_state(), torch.zeros(N, C)):
        want = logits(arrays(model.state_dict()), data.x.numpy(), state_NC.numpy())
        assert np.abs(model.head(model.encoder(data.x), state_NC).detach().numpy() - want).max() < 1e-12
    assert torch.equal(model(data.x), model.head(model.encoder(data.x), torch.zeros(N, C)))


def test_rows_go_through_the_head_in_pieces_where_all_have_no_room(monkeypatch):
    model, (_, data) = guided().eval(), compared.rows_of("multi")
    z_ND = model.encoder(data.x)
    whole = in_pieces(model.head, z_ND)
    assert torch.equal(whole, model.head(z_ND))
    assert in_pieces(model.head, z_ND[:0]).shape == (0, C)
    monkeypatch.setattr(heads, "VALUES_AT_ONCE", 5 * model.head.values_of_row)
    called = []
    model.head.register_forward_hook(lambda head, given, out: called.append(len(out)))
    torch.testing.assert_close(in_pieces(model.head, z_ND), whole)
    assert called == [5, 5, 2]


def test_loss_and_gradient_equal_numpy(monkeypatch):
    """Labels that are shown have no loss of their own, and change that of the others."""
    local, _ = compared.started(FedLGT(layers=2), "multi", model=guided())
    data, x, state_NC = local.ctx.data, local.ctx.data.x.numpy(), a_state() * local.ctx.data.known_NC
    assert 0 < int((state_NC != 0).sum()) < int(data.known_NC.sum())
    monkeypatch.setattr(local, "states", lambda batch: state_NC[batch.index_B])
    micro_batches = [data.rows(torch.arange(0, 5), N), data.rows(torch.arange(5, N), N)]
    moved = elsewhere(local.ctx.state.weights)
    local.model.load_state_dict(moved | {"head.names": local.ctx.state.weights["head.names"]})
    hidden = replace(data, weight_NC=data.weight_NC * (state_NC == 0))
    names = arrays(local.model.state_dict())["head.names"]

    def whole(w):
        return base_loss("multi", logits(w | {"head.names": names}, x, state_NC.numpy()), hidden)

    at = {n: v for n, v in arrays(local.model.state_dict()).items() if n != "head.names"}
    got, slopes = compared.gradient(local, micro_batches)
    assert got == pytest.approx(whole(at), abs=1e-12)
    compared.assert_close(slopes, compared.slope(whole, at), 1e-7)


def test_what_is_shown():
    """A random number of labels, at most three of four here; right ones, and none that the client does not know."""
    local, _ = compared.started(FedLGT(layers=2, margin=0.0), "multi", model=guided())
    data = local.ctx.data
    known_NC = torch.ones_like(data.known_NC)
    batch = replace(data, known_NC=known_NC, y_NC=(a_state(3) > 0).double()).rows(torch.arange(N))
    drawn = torch.stack([local.states(batch) for _ in range(400)])
    assert set(drawn.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert torch.equal(drawn.sign().abs() * (2 * batch.y_BC - 1), drawn)
    counts = (drawn != 0).sum(-1)
    share = [float((counts == k).double().mean()) for k in range(C + 1)]
    assert share == pytest.approx([0.25, 0.25, 0.25, 0.25, 0.0], abs=0.03)
    assert (drawn != 0).double().mean((0, 1)).tolist() == pytest.approx([1.5 / C] * C, abs=0.03)
    unknown = torch.stack([local.states(data.rows(torch.arange(N))) for _ in range(50)])
    assert not unknown[:, data.known_NC == 0].any()


@pytest.mark.parametrize(("shown", "classes", "most"), [(0.29, 100, 29), (0.75, 4, 3), (0.7, 4, 2), (1.0, 7, 7)])
def test_the_most_that_is_shown_is_rounded_down_and_loses_none_to_rounding(shown, classes, most):
    assert FedLGT(shown=shown).most_shown(classes) == most


def test_a_label_of_which_the_model_is_unsure_is_not_shown():
    method = FedLGT(layers=2, shown=1.0, margin=0.2)
    local, _ = compared.started(method, "multi", model=guided())
    data = local.ctx.data
    at = logits(arrays(local.ctx.state.weights), data.x.numpy(), np.zeros((N, C)))
    unsure = np.abs(1 / (1 + np.exp(-at)) - 0.5) <= 0.2
    known = data.known_NC.numpy() > 0
    assert (unsure & known).any()
    assert (~unsure & known).any()
    drawn = torch.stack([local.states(data.rows(torch.arange(N))) for _ in range(200)]).numpy()
    assert np.array_equal((drawn != 0).any(0), ~unsure & known)


def test_of_what_the_model_is_unsure_is_asked_without_dropout():
    """And training goes on with it."""
    local, _ = compared.started(FedLGT(layers=2, margin=0.2), "multi", model=guided(dropout=0.9))
    assert local.model.training
    assert local.model.head.training
    at = logits(arrays(local.ctx.state.weights), local.ctx.data.x.numpy(), np.zeros((N, C)))
    unsure_NC = np.abs(1 / (1 + np.exp(-at)) - 0.5) <= 0.2
    assert 0 < unsure_NC.sum() < unsure_NC.size
    assert np.array_equal(local.unsure_NC.numpy(), unsure_NC)


def test_a_margin_of_zero_hides_what_lies_at_one_half():
    """A head that says nothing gives every label 1/2."""
    model = guided()
    for name, p in model.head.named_parameters():
        if name.startswith("read."):
            p.detach().zero_()
    local, _ = compared.started(FedLGT(layers=2, shown=1.0, margin=0.0), "multi", model=model)
    assert local.unsure_NC.all()
    assert not local.states(local.ctx.data.rows(torch.arange(N))).any()


def test_with_nothing_shown_it_is_fedavg_on_its_network_bit_for_bit(experiment):
    e = experiment("fedlgt", options={"shown": 0.0, "layers": 2})
    plain = compared.history(replace(e, method=Plain()))
    compared.assert_same_bits(compared.history(e), plain)
    shown = compared.history(experiment("fedlgt", options={"layers": 2}))
    assert any(not torch.equal(shown[0][0][name], value) for name, value in plain[0][0].items())


def test_the_names_never_move(experiment):
    first, *others = compared.history(experiment("fedlgt", options={"layers": 1}))
    names = first[0]["weights/head.names"]
    assert torch.equal(names.norm(dim=-1).round(decimals=5), torch.ones(len(names)))
    assert all(torch.equal(weights["weights/head.names"], names) for weights, *_ in others)


def test_the_exact_tensors_on_the_wire():
    """FedAvg's of this network; which labels were shown stays with the client."""
    model = guided(1)
    sent = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    compared.assert_wire(FedLGT(layers=1), model=lambda: guided(1), sent=sent)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"layers": 0}, "layers"),
        ({"shown": 1.1}, "shown"),
        ({"margin": -0.1}, "margin"),
        ({"margin": float("nan")}, "margin"),
    ],
)
def test_bad_options_are_refused(options, option):
    with pytest.raises(ValueError, match=rf"method\.{option} = "):
        FedLGT(**options)
