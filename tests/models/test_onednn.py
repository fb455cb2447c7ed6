"""Linear layers by oneDNN: the products of torch's BLAS up to rounding, where they are used, and nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anchorfl.models.heads import LinearHead
from anchorfl.models.onednn import SMALLEST, OneDnnLinear, product, use_onednn

ROUNDING = 2e-6
"""Relative to the sum of the absolute values of the terms, some float32 roundings of a sum of 300 terms."""


def pair(n_in, n_out, *, bias=True):
    """Make a plain layer and its twin by oneDNN, with equal parameters."""
    plain = nn.Linear(n_in, n_out, bias=bias)
    twin = nn.Sequential(copy.deepcopy(plain))
    use_onednn(twin)
    return plain, twin[0]


def close(got, terms_a, terms_b):
    """Return True where ``got`` is a @ b in float64 up to rounding."""
    want, size = terms_a @ terms_b, np.abs(terms_a) @ np.abs(terms_b)
    return bool((np.abs(got.detach().numpy() - want) <= ROUNDING * size + 1e-12).all())


@pytest.mark.parametrize("shape", [(517, 300), (3, 170, 300)])
def test_three_products_of_a_layer(shape):
    plain, layer = pair(300, 64)
    x = torch.randn(*shape, requires_grad=True)
    out = layer(x)
    grad = torch.randn_like(out)
    out.backward(grad)
    x_MK, grad_MN = (t.detach().reshape(-1, t.shape[-1]).double().numpy() for t in (x, grad))
    weight_NK = plain.weight.detach().double().numpy()
    assert out.shape == (*shape[:-1], 64)
    assert close((out - plain.bias).reshape(-1, 64), x_MK, weight_NK.T)
    assert close(x.grad.reshape(-1, 300), grad_MN, weight_NK)
    assert close(layer.weight.grad, grad_MN.T, x_MK)
    assert close(layer.bias.grad, np.ones(len(grad_MN)), grad_MN)
    assert torch.equal(layer(x), out)  # one order of additions, call after call


def test_a_layer_without_bias_and_an_input_without_gradient():
    plain, layer = pair(300, 64, bias=False)
    x = torch.randn(517, 300)
    layer(x).sum().backward()
    plain(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-4)
    assert x.grad is None


@pytest.mark.parametrize(
    ("rows", "kind"), [(SMALLEST // (300 * 64) - 1, torch.float32), (517, torch.float64), (0, torch.float32)]
)
def test_small_ones_and_other_types_stay_with_the_blas(rows, kind):
    plain, layer = (part.to(kind) for part in pair(300, 64))
    x = torch.randn(rows, 300, dtype=kind)
    assert torch.equal(layer(x), F.linear(x, plain.weight, plain.bias))


def test_one_by_oneDNN_is_reached(monkeypatch):
    _, layer = pair(300, 64)
    monkeypatch.setattr("anchorfl.models.onednn._linear", lambda *a: 1 / 0)
    layer(torch.randn(SMALLEST // (300 * 64), 300))
    with pytest.raises(ZeroDivisionError):
        layer(torch.randn(SMALLEST // (300 * 64) + 1, 300))


def test_only_plain_layers_change_and_parameters_stay():
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(4, 5), nn.ReLU()), "head": LinearHead(5, 3)})
    before = {name: value for name, value in model.state_dict(keep_vars=True).items()}
    use_onednn(model)
    assert type(model["encoder"][0]) is OneDnnLinear
    assert type(model["head"]) is LinearHead
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("lacks", [(torch.backends.mkldnn, "is_available"), (torch.ops, "mkldnn")])
def test_a_torch_without_it(monkeypatch, lacks):
    """Without the library, or without the operation that is needed of it."""
    monkeypatch.setattr(*lacks, lambda: False)
    with pytest.raises(ValueError, match=r"optimizer\.onednn: this build of torch has no oneDNN"):
        use_onednn(nn.Linear(2, 2))


def test_products_of_transposed_matrices():
    a, b = torch.randn(300, 517).T, torch.randn(64, 300).T
    assert close(product(a, b), a.double().numpy(), b.double().numpy())
