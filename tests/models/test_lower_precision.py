"""Training in bfloat16: what it changes and what it must not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders.resnet import ResNet
from anchorfl.models.encoders.sparse import SparseEncoder
from anchorfl.models.encoders.transformer import TransformerEncoder
from anchorfl.models.lower_precision import ROWS, use_bfloat16

# 8 bits of precision: a relative error of 2^-9 per product, which partly cancel in a sum
CLOSE = {"rtol": 0.0, "atol": 0.02}


def two_precisions():
    """Make a sparse encoder, its copy in bfloat16, and inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        plain = SparseEncoder(40, 32, 64, 0.0, MaskSource(), 0.5)
    low = copy.deepcopy(plain)
    use_bfloat16(low)
    rng = torch.Generator().manual_seed(0)
    x = torch.stack([torch.randint(1, 41, (16, 8), generator=rng).float(), torch.rand(16, 8, generator=rng)], 2)
    return plain, low, x


def gradients(encoder, x):
    encoder.zero_grad()
    z_BD = encoder(x)
    z_BD.square().sum().backward()
    return z_BD.detach(), torch.cat([p.grad.ravel() for p in encoder.parameters()])


def test_training_is_near_float32_and_in_float32_outside():
    plain, low, x = two_precisions()
    (z_BD, grad), (low_z_BD, low_grad) = gradients(plain, x), gradients(low, x)
    assert low_z_BD.dtype == low_grad.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in low.parameters())
    torch.testing.assert_close(low_z_BD, z_BD, **CLOSE)
    assert not torch.equal(low_z_BD, z_BD)
    assert torch.cosine_similarity(grad, low_grad, 0) > 0.999


def test_a_network_with_convolutions_trains_in_bfloat16_and_is_scored_in_float32():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        plain = ResNet("resnet8", 1, 8, stem="small", norm="batch")
    low = copy.deepcopy(plain)
    use_bfloat16(low)
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(low.eval()(x), plain.eval()(x))
    (z_BD, grad), (low_z_BD, low_grad) = gradients(plain.train(), x), gradients(low.train(), x)
    assert low_z_BD.dtype == low_grad.dtype == torch.float32
    assert not torch.equal(low_z_BD, z_BD)
    assert torch.cosine_similarity(z_BD, low_z_BD).min() > 0.99
    assert torch.cosine_similarity(grad, low_grad, 0) > 0.95
    with torch.autocast("cpu", torch.bfloat16):
        before = low(x)
        with torch.no_grad():
            low.conv1.weight.mul_(-1)
        assert not torch.equal(low(x), before), "a changed weight is seen"


def test_a_layer_without_a_bias_has_none():
    low = nn.Sequential(nn.Linear(8, 5, bias=False))
    plain, x = copy.deepcopy(low), torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    use_bfloat16(low)
    torch.testing.assert_close(gradients(low, x)[0], gradients(plain, x)[0], **CLOSE)


def test_scores_are_in_float32():
    plain, low, x = two_precisions()
    assert torch.equal(low.eval()(x), plain.eval()(x))


def test_a_changed_weight_is_seen_within_an_outer_autocast():
    """An optimizer changes weights in place, which autocast's cache of cast weights does not see."""
    _, low, x = two_precisions()
    with torch.autocast("cpu", torch.bfloat16):
        before = low(x)
        with torch.no_grad():
            low.layers[0].weight.mul_(2)
        assert not torch.equal(low(x), before)


def test_a_copy_trains_its_own_weights_and_the_state_fits():
    plain, low, x = two_precisions()
    copied = copy.deepcopy(low)
    nn.init.zeros_(copied.layers[-1].weight)
    assert copied(x).abs().max() < 1 < 10 * low(x).abs().max()
    low.load_state_dict(plain.state_dict())
    assert isinstance(low, SparseEncoder)


def test_the_same_bits_twice():
    _, low, x = two_precisions()
    assert torch.equal(gradients(low, x)[1], gradients(low, x)[1])


def whole(*shape, rng):
    """Whole numbers, whose products and short sums bfloat16 holds exactly."""
    return torch.randint(-2, 3, shape, generator=rng).float()


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS - 5])
def test_rows_that_fill_up_a_product_change_nothing(rows):
    """The products and both gradients are float32's to the bit where bfloat16 is exact, whatever the number of rows."""
    rng = torch.Generator().manual_seed(rows)
    plain = nn.Linear(6, 5)
    with torch.no_grad():
        for p in plain.parameters():
            p.copy_(whole(*p.shape, rng=rng))
    low = nn.Sequential(copy.deepcopy(plain))
    use_bfloat16(low)
    # so few rows with a gradient that no sum of the weight's gradient leaves what is exact
    x, pull = whole(rows, 6, rng=rng), whole(rows, 5, rng=rng) * (torch.arange(rows) < 8)[:, None]
    out = []
    for layer in (plain, low):
        inner = x.clone().requires_grad_()
        y = layer(inner)
        (y * pull).sum().backward()
        out.append([y.detach(), inner.grad, *(p.grad for p in layer.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*out, strict=True))


def test_a_transformer_trains_near_float32(transformer):
    plain, low = transformer(), transformer()
    use_bfloat16(low)
    x = torch.randint(0, 30, (7, 11), generator=torch.Generator().manual_seed(0))
    (z_BD, grad), (low_z_BD, low_grad) = gradients(plain.train(), x), gradients(low.train(), x)
    torch.testing.assert_close(low_z_BD, z_BD, rtol=0.0, atol=0.05)
    assert not torch.equal(low_z_BD, z_BD)
    assert torch.cosine_similarity(grad, low_grad, 0) > 0.999
    assert torch.equal(low.eval()(x), plain.eval()(x))


@pytest.fixture
def transformer():
    def make():
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            entry = nn.Embedding(30, 16, padding_idx=0)
            return TransformerEncoder(entry, 16, 4, 32, 0.0, 11, MaskSource())

    return make
