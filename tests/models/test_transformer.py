"""The transformer encoder against torch's own layer, and what padding and seeds may not change."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from anchorfl.models.build import build
from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders.transformer import SelfAttentionLayer, TransformerEncoder, sinusoids
from anchorfl.models.options import ModelOptions

WIDTH, HEADS, HIDDEN, LENGTH, VOCABULARY, FEATURES = 12, 3, 7, 9, 20, 5
CASES = [(kind, padded) for kind in ("tokens", "series") for padded in (False, True)]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def small(kind, seed=1, dropout=0.0):
    """Build the encoder with every bias moved off its initial zero."""
    options = ModelOptions(width=WIDTH, heads=HEADS, feedforward=HIDDEN, dropout=dropout)
    shape = (LENGTH,) if kind == "tokens" else (LENGTH, FEATURES)
    encoder = build(
        options, input_kind=kind, shape=shape, vocabulary=VOCABULARY, classes=4, head="linear", unit=False,
        vectors_CP=None, seed=seed,
    ).encoder  # fmt: skip
    with torch.no_grad():
        for p in encoder.parameters():
            p += 0.1 * torch.randn(p.shape, generator=rng(seed))
    return encoder


def rows(kind, lengths, seed=2):
    """Inputs of the given real lengths, zero behind them."""
    longest = max(lengths)
    if kind == "tokens":
        x = torch.randint(1, VOCABULARY, (len(lengths), longest), generator=rng(seed))
    else:
        x = torch.randn(len(lengths), longest, FEATURES, generator=rng(seed))
    for i, length in enumerate(lengths):
        x[i, length:] = 0
    return x


def twin(layer):
    """``nn.TransformerEncoderLayer`` that shares the layer's parameters, so gradients land in the same place."""
    library = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, activation="relu", batch_first=True)
    attention = library.self_attn
    attention.in_proj_weight, attention.in_proj_bias = layer.qkv.weight, layer.qkv.bias
    attention.out_proj.weight, attention.out_proj.bias = layer.out.weight, layer.out.bias
    library.linear1, library.linear2 = layer.up, layer.down
    library.norm1, library.norm2 = layer.norm_attention, layer.norm_feedforward
    return library


def library_encoder(encoder, x, lengths, *, training):
    """z = mean over real positions of LayerNorm(layer(entry(x) + positions)), row by row, by the library's layer."""
    library = twin(encoder.layer).train(training)
    real = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
    z = library(encoder.entry(x) + sinusoids(x.shape[1], WIDTH), src_key_padding_mask=None if real.all() else ~real)
    z = encoder.norm(z)
    return torch.stack([z[i, : lengths[i]].mean(0) for i in range(len(lengths))])


def gradients(module, z):
    weight = torch.randn(z.shape, generator=rng(3))
    return dict(
        zip(dict(module.named_parameters()), torch.autograd.grad((z * weight).sum(), module.parameters()), strict=True)
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("kind", "padded"), CASES)
def test_encoder_equals_the_library_forward_and_backward(kind, padded, training):
    encoder = small(kind).train(training)
    lengths = [6, 1, 9, 4] if padded else [9, 9, 9]
    x = rows(kind, lengths)
    got, want = encoder(x), library_encoder(encoder, x, lengths, training=training)
    assert torch.allclose(got, want, atol=1e-5, rtol=0)
    ours, theirs = gradients(encoder, got), gradients(encoder, want)
    for name in ours:
        assert torch.allclose(ours[name], theirs[name], atol=1e-5, rtol=1e-5), name


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_layer_equals_the_library_at_every_position(padded, training):
    layer = small("tokens").layer.train(training)
    x = torch.randn(3, LENGTH, WIDTH, generator=rng(), requires_grad=True)
    hidden = torch.arange(LENGTH) >= torch.tensor([[LENGTH - 4 * padded], [LENGTH], [LENGTH - padded]])
    bias = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)[:, None, None, :] if padded else None
    got = layer(x, bias)
    want = twin(layer).train(training)(x, src_key_padding_mask=hidden if padded else None)
    assert torch.allclose(got, want, atol=1e-5, rtol=0)
    weight = torch.randn(got.shape, generator=rng(3))
    (ours,), (theirs,) = (torch.autograd.grad((z * weight).sum(), [x]) for z in (got, want))
    assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["tokens", "series"])
def test_a_row_is_the_same_alone_and_padded_beside_a_longer_one(kind):
    encoder = small(kind)
    lengths = [3, 9, 5, 1]
    x = rows(kind, lengths)
    together = encoder(x)
    for i, length in enumerate(lengths):
        assert torch.allclose(encoder(x[i : i + 1, :length])[0], together[i], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["tokens", "series"])
def test_a_fully_padded_row_gives_zeros_and_no_nan_backwards(kind):
    encoder = small(kind)
    for lengths in ([4, 0, 2], [0, 0]):
        x = rows(kind, [*lengths, 5])[: len(lengths)]
        z = encoder(x)
        assert torch.equal(z[lengths.index(0)], torch.zeros(WIDTH))
        assert z.isfinite().all()
        assert all(g.isfinite().all() for g in gradients(encoder, z).values())


def test_an_empty_row_beside_others_changes_neither_them_nor_their_gradient():
    encoder = small("tokens")
    x = rows("tokens", [4, 0])
    both, alone = encoder(x), encoder(x[:1])
    assert torch.allclose(both[0], alone[0], atol=1e-6, rtol=0)
    ours, theirs = (torch.autograd.grad(z[0].sum(), encoder.layer.qkv.weight)[0] for z in (both, alone))
    assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-5)


def test_parameters_of_the_r8_network():
    """726 x 256, attention 4 (256^2 + 256), feed-forward 257 x 64 + 65 x 256, norms 3 x 512, head 257 x 8."""
    model = build(
        ModelOptions(), input_kind="tokens", shape=(1000,), vocabulary=726, classes=8, head="linear", unit=True,
        vectors_CP=None, seed=0,
    )  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == 185_856 + 263_168 + 33_088 + 1_536 + 2_056 == 485_704
    assert sum(v.numel() for v in model.state_dict().values()) == 485_704  # the positions do not travel


@pytest.mark.parametrize(("length", "width"), [(1, 2), (50, 8), (13, 7), (1000, 256)])
def test_sinusoids_by_their_definition(length, width):
    """PE(pos, 2i) = sin(pos / 10000^(2i / d)), PE(pos, 2i + 1) = cos of the same angle."""
    table = sinusoids(length, width)
    assert table.shape == (length, width)
    for position in range(0, length, max(1, length // 7)):
        for j in range(width):
            angle = position / 10000 ** (2 * (j // 2) / width)
            assert float(table[position, j]) == pytest.approx(math.cos(angle) if j % 2 else math.sin(angle), abs=1e-6)


def test_initial_values_are_those_of_the_library():
    """Xavier over the stacked [3D, D] matrix: uniform in +-sqrt(6 / 4D), standard deviation that over sqrt 3."""
    layer = SelfAttentionLayer(64, 4, 16, 0.0, MaskSource())
    library = nn.TransformerEncoderLayer(64, 4, 16, batch_first=True)
    bound = math.sqrt(6 / 256)
    layer.requires_grad_(False)
    library.requires_grad_(False)
    assert bound * 0.999 < float(layer.qkv.weight.abs().max()) <= bound
    assert float(layer.qkv.weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    attention = library.self_attn
    pairs = [
        (layer.qkv.weight, attention.in_proj_weight),
        (layer.out.weight, attention.out_proj.weight),
        (layer.up.weight, library.linear1.weight),
        (layer.down.weight, library.linear2.weight),
    ]
    for ours, theirs in pairs:
        assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.1)
    for bias in (layer.qkv.bias, layer.out.bias, attention.in_proj_bias, attention.out_proj.bias):
        assert torch.equal(bias, torch.zeros_like(bias))


@pytest.mark.parametrize("kind", ["tokens", "series"])
def test_initial_weights_depend_on_the_seed_and_on_no_global_state(kind):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        first = small(kind, seed=5)
        torch.default_generator.manual_seed(2)
        before = torch.get_rng_state()
        second = small(kind, seed=5)
        assert torch.equal(before, torch.get_rng_state())  # nor does it move the global generator
    other = small(kind, seed=6)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert not torch.equal(first.layer.qkv.weight, other.layer.qkv.weight)
    assert not torch.equal(first.entry.weight, other.entry.weight)


def test_dropout_acts_in_training_only_and_at_five_places():
    """Entry, attention weights and output, feed-forward hidden and output: five masks a pass."""
    encoder = small("tokens", dropout=0.5)
    shapes = []
    encoder.drop.source.mask = lambda like, p, positions: shapes.append(tuple(like.shape)) or torch.ones_like(like)
    x = rows("tokens", [9, 4])
    encoder.eval()(x)
    assert shapes == []
    encoder.train()(x)
    wide = (2, 9, WIDTH)
    assert shapes == [wide, (2, HEADS, 9, 9), wide, (2, 9, HIDDEN), wide]


def test_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"model\.width = 10 is not a multiple of model\.heads = 4$"):
        TransformerEncoder(nn.Embedding(3, 10), 10, 4, 8, 0.0, 5, MaskSource())
